// Matrix products overlapped with the all-gathers before them and the reduce-scatters after them:
// the same bits, bytes and collectives as without overlap (docs/overlap.md).
//
// DTENSOR_OVERLAP_CASES=N runs N random blocks (40 unless set; 20 on GPUs), DTENSOR_OVERLAP_SEED
// others.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_again.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/testing/suite_device.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

int Number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// A block as sequence parallelism has it: x [batch, s|, width] is gathered, `readers` projections
// read it, and a row-parallel one makes a sum of their results that is scattered again. Width is
// split by a second axis, which that leaves alone: projections sum over it.
struct Block {
  int tp = 2, dp = 1, chunks = 2, readers = 1;
  int64_t batch = 1, sequence = 8, width = 4, hidden = 4;
  DType dtype = DType::kF32;
  bool matmul = false, bias = false, keeps = false, recomputes = false, keeps_collectives = false;
  Device::Kind device = Device::Kind::kCpu;  // or the suite's

  int ranks() const { return tp * dp; }
  std::string mesh() const { return absl::StrCat("tp=", tp, ",dp=", dp); }
  std::string ToString() const {
    return absl::StrCat(
        mesh(), ", ", chunks, " chunks, ", readers, " readers, [", batch, ", ", sequence, ", ",
        width, "] ", dtensor::ToString(dtype), ", hidden ", hidden, matmul ? " MatMul" : " Linear",
        bias ? " bias" : "", keeps ? " keeps" : "", recomputes ? " recomputes" : "",
        keeps_collectives ? " keeps collectives" : "", " on ", dtensor::ToString(device));
  }
};

// What one rank has in the end: the bits of the result and of all gradients, and what it received.
struct Outcome {
  std::vector<std::string> bits;
  int64_t bytes = 0, calls = 0, messages = 0;
};
auto ValueFields(Outcome& o) { return std::tie(o.bits, o.bytes, o.calls, o.messages); }

absl::Status AddBits(const DistributedTensor& tensor, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor.Detach(), DType::kF64));
  DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToHost<double>(wide.local()));
  outcome.bits.emplace_back(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(double));
  return absl::OkStatus();
}

struct Leaves {
  DistributedTensor x, down;
  std::vector<DistributedTensor> up, biases;

  std::vector<DistributedTensor> all() const {
    std::vector<DistributedTensor> all = {x, down};
    all.insert(all.end(), up.begin(), up.end());
    all.insert(all.end(), biases.begin(), biases.end());
    return all;
  }
};

absl::StatusOr<Leaves> MakeLeaves(Context& context, const DeviceMesh& mesh, const Block& block) {
  uint64_t stream = 0;
  const auto leaf = [&](const Placement& tp, const Placement& dp, Dims shape) -> TensorOr {
    DT_ASSIGN_OR_RETURN(DistributedTensor made,
                        RandomNormal(context, mesh, {tp, dp}, shape,
                                     {.seed = 7, .stream = ++stream, .dtype = block.dtype}));
    DT_RETURN_IF_ERROR(made.set_requires_grad(true));
    return made;
  };
  Leaves leaves;
  const int64_t in = block.width, mid = block.hidden;
  DT_ASSIGN_OR_RETURN(leaves.x, leaf(Shard(1), Shard(2), {block.batch, block.sequence, in}));
  for (int i = 0; i < block.readers; ++i) {
    DT_ASSIGN_OR_RETURN(leaves.up.emplace_back(), block.matmul
                                                      ? leaf(Shard(1), Shard(0), {in, mid})
                                                      : leaf(Shard(0), Shard(1), {mid, in}));
    if (block.bias) {
      DT_ASSIGN_OR_RETURN(leaves.biases.emplace_back(), leaf(Shard(0), Replicate(), {mid}));
    }
  }
  DT_ASSIGN_OR_RETURN(leaves.down, block.matmul ? leaf(Shard(0), Shard(1), {mid, in})
                                                : leaf(Shard(1), Shard(0), {in, mid}));
  return leaves;
}

TensorOr Project(const Block& block, const TensorOr& x, const DistributedTensor& weight,
                 const DistributedTensor* bias) {
  if (block.matmul) return MatMul(x, weight);
  return bias == nullptr ? Linear(x, weight) : Linear(x, weight, *bias);
}

// Twice the same, so that what one leaves the other finds as it should.
TensorOr RunBlock(const Block& block, const Leaves& leaves, const DistributedTensor& start) {
  const DeviceMesh& mesh = start.mesh();
  DT_ASSIGN_OR_RETURN(const Layout split,
                      Layout::FromPlacements(mesh, {Shard(1), Shard(2)}, start.shape()));
  DT_ASSIGN_OR_RETURN(const Layout whole,
                      Layout::FromPlacements(mesh, {Replicate(), Shard(2)}, start.shape()));
  TensorOr x = Tanh(start);  // not a leaf: its gradient moves on its way
  DT_RETURN_IF_ERROR(x.status());
  for (int repeat = 0; repeat < 2; ++repeat) {
    TensorOr sum;
    for (int i = 0; i < block.readers; ++i) {
      const TensorOr gathered =
          block.keeps ? x->Redistribute(whole, {.on_use = true}) : RedistributeForUse(*x, whole);
      const DistributedTensor* const bias = block.bias ? &leaves.biases[i] : nullptr;
      const TensorOr y = Project(block, gathered, leaves.up[i], bias);
      sum = i == 0 ? y : Mul(sum, y);
    }
    const TensorOr product = Project(block, Tanh(sum), leaves.down, nullptr);
    DT_RETURN_IF_ERROR(product.status());
    DT_ASSIGN_OR_RETURN(const DistributedTensor scattered, product->Redistribute(split));
    x = Add(x, scattered);
    DT_RETURN_IF_ERROR(x.status());
  }
  return x;
}

// On a simulated rank there are no bits.
absl::Status Train(Context& context, const Block& block, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(block.mesh()));
  DT_ASSIGN_OR_RETURN(const Leaves leaves, MakeLeaves(context, mesh, block));
  context.communicator().ResetTraffic();
  TensorOr y;
  if (block.recomputes) {
    const auto run = [&](absl::Span<const DistributedTensor> operands) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(const DistributedTensor result, RunBlock(block, leaves, operands[0]));
      return std::vector<DistributedTensor>{result};
    };
    const RecomputeOptions options{.keep_collectives = block.keeps_collectives};
    DT_ASSIGN_OR_RETURN(const auto results, Recompute({leaves.x}, run, options));
    y = results[0];
  } else {
    y = RunBlock(block, leaves, leaves.x);
  }
  DT_RETURN_IF_ERROR(y.status());
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1, 2})));
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    outcome.bytes += traffic.bytes;
    outcome.calls += traffic.calls;
    outcome.messages += traffic.messages;
  }
  if (context.device().is_meta()) return absl::OkStatus();
  DT_RETURN_IF_ERROR(AddBits(*y, outcome));
  for (const DistributedTensor& leaf : leaves.all()) {
    DT_RETURN_IF_ERROR(AddBits(leaf.grad(), outcome));
  }
  return absl::OkStatus();
}

RunOptions OptionsOf(const Block& block) {
  RunOptions options;
  options.device = block.device;
  return options;
}

absl::StatusOr<std::vector<Outcome>> OnRanks(const Block& block, const OverlapOptions& overlap) {
  return OnSuiteRanks(
      block.ranks(),
      [&](Context& world) -> absl::StatusOr<Outcome> {
        Context context(world.communicator(), world.device(), {.overlap = overlap});
        Outcome outcome;
        DT_RETURN_IF_ERROR(Train(context, block, outcome));
        return outcome;
      },
      OptionsOf(block));
}

// Whether something moved in chunks.
bool ExpectSame(const Block& block) {
  SCOPED_TRACE(block.ToString());
  const auto at_once = OnRanks(block, {});
  const auto overlapped = OnRanks(block, {.chunks = block.chunks, .min_bytes = 0});
  EXPECT_THAT(at_once, IsOk());
  EXPECT_THAT(overlapped, IsOk());
  if (!at_once.ok() || !overlapped.ok()) return false;
  int64_t more = 0;
  for (int rank = 0; rank < block.ranks(); ++rank) {
    const Outcome &expected = (*at_once)[rank], &got = (*overlapped)[rank];
    EXPECT_EQ(got.bytes, expected.bytes) << "rank " << rank;
    EXPECT_EQ(got.calls, expected.calls) << "rank " << rank;
    more += got.messages - expected.messages;
    EXPECT_EQ(got.bits.size(), expected.bits.size());
    for (size_t i = 0; i < expected.bits.size(); ++i) {
      EXPECT_TRUE(got.bits[i] == expected.bits[i]) << "rank " << rank << ", tensor " << i;
    }
  }
  return more > 0;
}

Block RandomBlock(std::mt19937& random) {
  const auto up_to = [&](int n) { return 1 + static_cast<int>(random() % n); };
  Block block;
  block.dp = random() % 2 == 0 ? up_to(3) : 1;
  block.tp = up_to(8 / block.dp);
  block.chunks = up_to(6);
  block.readers = up_to(3);
  block.batch = up_to(3);
  // Also fewer rows than ranks.
  block.sequence = random() % 4 == 0 ? up_to(3) : up_to(20 * block.tp);
  block.width = random() % 4 == 0 ? up_to(2) : up_to(12);
  block.hidden = random() % 4 == 0 ? up_to(2) : up_to(20);
  const DType types[] = {DType::kF32, DType::kF64, DType::kBF16};
  block.dtype = types[random() % 3];
  block.matmul = random() % 3 == 0;
  block.bias = !block.matmul && random() % 3 == 0;
  block.keeps = random() % 3 == 0;
  block.recomputes = random() % 4 == 0;
  block.keeps_collectives = random() % 2 == 0;
  const bool defers = random() % 2 == 0 && SuiteDevice() == Device::Kind::kCpu;
  if (defers) block.device = Device::Kind::kDeferred;
  return block;
}

TEST(OverlapTest, RandomBlocksHaveTheBitsOfThoseThatAreMadeAtOnce) {
  std::mt19937 random(Number("DTENSOR_OVERLAP_SEED", 1));
  const bool on_gpus = SuiteDevice() == Device::Kind::kCuda;
  const int count = Number("DTENSOR_OVERLAP_CASES", on_gpus ? 20 : 40);
  int in_chunks = 0, done = 0, fitting = 0;
  for (int drawn = 0; fitting < count && drawn < 100 * count && !HasFailure(); ++drawn) {
    const Block block = RandomBlock(random);
    if (block.ranks() == 1 || !SuiteHasRanks(block.ranks())) continue;
    ++fitting;
    if (!SuiteHasRanks(block.ranks(), OptionsOf(block))) continue;  // processes do not defer
    in_chunks += ExpectSame(block);
    ++done;
  }
  EXPECT_EQ(fitting, count);
  EXPECT_GT(in_chunks, done / 4);
}

// Simulate() runs the same chunks.
TEST(OverlapTest, PredictionIsWhatIsCounted) {
  const Block block{
      .tp = 4, .dp = 2, .chunks = 3, .readers = 2, .batch = 2, .sequence = 13, .bias = true};
  const OverlapOptions overlap{.chunks = block.chunks, .min_bytes = 0};
  DT_ASSERT_OK_AND_ASSIGN(const auto counted, OnRanks(block, overlap));
  for (int rank = 0; rank < block.ranks(); ++rank) {
    Outcome predicted;
    DT_ASSERT_OK(Simulate(rank, block.ranks(),
                          [&](Context& context) { return Train(context, block, predicted); },
                          {.contexts = {.overlap = overlap}}));
    EXPECT_EQ(predicted.bytes, counted[rank].bytes);
    EXPECT_EQ(predicted.messages, counted[rank].messages);
    EXPECT_EQ(predicted.calls, counted[rank].calls);
  }
}

absl::StatusOr<SimulatedTime> TimeOf(const Block& block, const OverlapOptions& overlap) {
  CostModel cost;
  cost.Set("tp", {.latency_us = 1, .gb_per_second = 300});
  cost.set_copy_gb_per_second(3000);
  cost.set_reduce_gb_per_second(3000);
  cost.set_memory_gb_per_second(3000);
  cost.set_multiply_gf_per_second(200000);
  SimulatedTime time;
  DT_RETURN_IF_ERROR(Simulate(0, block.ranks(),
                              [&](Context& context) -> absl::Status {
                                Outcome outcome;
                                DT_RETURN_IF_ERROR(Train(context, block, outcome));
                                time = context.simulated_clock()->time();
                                return absl::OkStatus();
                              },
                              {.cost = cost, .contexts = {.overlap = overlap}}));
  return time;
}

// Of a block of a size at which products take as long as what moves; the work is the same.
TEST(OverlapTest, WhatMovesIsHiddenBehindProducts) {
  const Block block{.tp = 4, .batch = 1, .sequence = 8192, .width = 4096, .hidden = 4096};
  DT_ASSERT_OK_AND_ASSIGN(const SimulatedTime at_once, TimeOf(block, {}));
  DT_ASSERT_OK_AND_ASSIGN(const SimulatedTime overlapped, TimeOf(block, {.chunks = 4}));
  std::printf("at once %.0f us, of which %.0f exposed; in 4 chunks %.0f and %.0f\n",
              at_once.total() * 1e6, at_once.exposed_seconds * 1e6, overlapped.total() * 1e6,
              overlapped.exposed_seconds * 1e6);
  EXPECT_NEAR(overlapped.compute_seconds, at_once.compute_seconds, 0.1 * at_once.compute_seconds);
  EXPECT_LT(overlapped.exposed_seconds, 0.6 * at_once.exposed_seconds);
}

// Calls fn on two ranks that overlap all there is, with x [6|, 4], and w [4, 4|] and its sum.
struct Pair {
  DistributedTensor x, w;
};
using PairFunction = std::function<absl::Status(Context&, const Pair&)>;
absl::Status OnPair(const PairFunction& fn) {
  ContextOptions contexts;
  contexts.overlap = {.chunks = 2, .min_bytes = 0};
  contexts.read_environment = false;
  RunOptions options;
  options.device = SuiteDevice();
  return RunRanks(
      2,
      [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
        Pair pair;
        DT_ASSIGN_OR_RETURN(pair.x, RandomNormal(context, mesh, {Shard(0)}, {6, 4}, {.seed = 1}));
        DT_ASSIGN_OR_RETURN(pair.w, RandomNormal(context, mesh, {Shard(1)}, {4, 4}, {.seed = 2}));
        return fn(context, pair);
      },
      options, contexts);
}

absl::StatusOr<std::vector<float>> Values(const TensorOr& x) {
  DT_RETURN_IF_ERROR(x.status());
  return ToGlobal<float>(*x);
}

absl::Status Overwrite(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(BeforeWrite(x));
  return x.context().device().FillBytes(x.local().raw(), 0, x.local().numel() * SizeOf(x.dtype()));
}

absl::Status ExpectEqual(const std::vector<float>& got, const std::vector<float>& expected) {
  return got == expected ? absl::OkStatus() : absl::InternalError("other values");
}

TEST(OverlapTest, WritesComeBehindWhatIsStillToBeMade) {
  DT_EXPECT_OK(OnPair([](Context&, const Pair& pair) -> absl::Status {
    const Layout whole = Layout::Replicated(pair.x.mesh(), 2);
    DT_ASSIGN_OR_RETURN(const auto before, Values(pair.x));
    DT_ASSIGN_OR_RETURN(const auto gathered, pair.x.Redistribute(whole, {.on_use = true}));
    DT_RETURN_IF_ERROR(Overwrite(pair.x));
    return ExpectEqual(Values(gathered).value(), before);
  }));
  DT_EXPECT_OK(OnPair([](Context&, const Pair& pair) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, pair.w.Redistribute({Shard(1)}));
    DT_ASSIGN_OR_RETURN(const auto expected, Values(Linear(x, pair.w)));
    const TensorOr product = Linear(x, pair.w);  // a sum over ranks, not yet made
    DT_RETURN_IF_ERROR(Overwrite(pair.w));
    DT_ASSIGN_OR_RETURN(const auto scattered, product->Redistribute({Shard(0)}));
    return ExpectEqual(Values(scattered).value(), expected);
  }));
}

TEST(OverlapTest, WhatNobodyUsesDoesNotMove) {
  DT_EXPECT_OK(OnPair([](Context& context, const Pair& pair) -> absl::Status {
    const Layout whole = Layout::Replicated(pair.x.mesh(), 2);
    DT_RETURN_IF_ERROR(pair.x.Redistribute(whole, {.on_use = true}).status());
    const auto& traffic = context.communicator().traffic();
    return traffic.empty() ? absl::OkStatus() : absl::InternalError("it moved");
  }));
}

TEST(OverlapTest, AnybodyElseGetsAllOfIt) {
  DT_EXPECT_OK(OnPair([](Context&, const Pair& pair) -> absl::Status {
    const Layout whole = Layout::Replicated(pair.x.mesh(), 2);
    DT_ASSIGN_OR_RETURN(const auto expected, Values(pair.x));
    DT_ASSIGN_OR_RETURN(const auto first, pair.x.Redistribute(whole, {.on_use = true}));
    const DistributedTensor alias = first.Detach();
    DT_ASSIGN_OR_RETURN(const auto values, ToHost<float>(alias.local()));
    DT_RETURN_IF_ERROR(ExpectEqual(values, expected));
    DT_ASSIGN_OR_RETURN(const auto again, pair.x.Redistribute(whole, {.on_use = true}));
    DT_ASSIGN_OR_RETURN(const auto local, ToHost<float>(again.local()));
    return ExpectEqual(local, expected);
  }));
}

TEST(OverlapTest, RanksThatCutOtherwiseAreToldSo) {
  RunOptions options;
  options.device = SuiteDevice();
  const absl::Status status = RunRanks(
      2,
      [&](Context& world) -> absl::Status {
        Context context(world.communicator(), world.device(),
                        {.overlap = {.chunks = 2 + world.rank(), .min_bytes = 0}});
        DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
        DT_ASSIGN_OR_RETURN(const auto x,
                            RandomNormal(context, mesh, {Shard(0)}, {6, 4}, {.seed = 1}));
        DT_ASSIGN_OR_RETURN(const auto gathered,
                            x.Redistribute(Layout::Replicated(mesh, 2), {.on_use = true}));
        return Values(gathered).status();
      },
      options);
  EXPECT_THAT(status.message(), HasSubstr("chunk 1 of 2 of [6, 4] f32"));
  EXPECT_THAT(status.message(), HasSubstr("chunk 1 of 3 of [6, 4] f32"));
}

TEST(OverlapTest, ARankThatLeavesBetweenTwoChunksFailsTheOthers) {
  const absl::Status status = OnPair([](Context& context, const Pair& pair) -> absl::Status {
    const Layout whole = Layout::Replicated(pair.x.mesh(), 2);
    DT_ASSIGN_OR_RETURN(const auto gathered, pair.x.Redistribute(whole, {.on_use = true}));
    if (context.rank() == 1) return absl::AbortedError("rank 1 has had enough");
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, MatMul(gathered, pair.w));
    return Values(y).status();
  });
  EXPECT_THAT(status.message(), HasSubstr("rank 1 has had enough"));
}

}  // namespace
}  // namespace dtensor
