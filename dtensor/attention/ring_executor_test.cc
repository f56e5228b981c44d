// Rings on ranks that are threads, against the reference.
#include "dtensor/attention/ring_executor.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/testing/shared_ranks.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/testing/ring_reference.h"
#include "dtensor/testing/ring_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kHeadDim = 8;
constexpr double kScale = 0.35;

using Wide = std::vector<long double>;

// Root mean square of a shard's difference, where there is one, over that of the whole tensor: a
// shard may be zero but for rounding. Infinities must be equal.
double Error(const Doubles& got, const Wide& want, const Wide& whole) {
  Wide differences;
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    differences.push_back(got[i] - want[i]);
    if (!std::isfinite(differences.back())) return std::numeric_limits<double>::infinity();
  }
  return differences.empty() ? 0 : static_cast<double>(Rms(differences) / Rms(whole));
}

// Whether a rank's tensor has the rows at `positions` of [outer, length, width].
absl::Status Check(absl::string_view what, const Tensor& got, const Wide& whole, int64_t outer,
                   int64_t length, int64_t width, const IndexSet& positions, double limit) {
  DT_ASSIGN_OR_RETURN(const Doubles values, ToDoubles(got));
  const double error = Error(values, RowsAt(whole, outer, length, width, positions), whole);
  if (error <= limit) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " is off by ", error));
}

struct Global {
  AttentionInputs in;
  AttentionReference out;
};

absl::Status RunOn(const RingSchedule& schedule, const Global& g, double limit,
                   Communicator& communicator, Device& device, Digest& seen) {
  const RankRing ring(schedule, communicator.rank());
  const RingProblem& p = schedule.problem();
  const IndexSet& mine = schedule.q_positions(ring.ring_rank());
  const IndexSet& keys = schedule.kv_positions(ring.ring_rank());
  const int64_t s = p.q_length, t = p.kv_length;
  const int64_t query = kHeads * kHeadDim, key = kKvHeads * kHeadDim;
  DT_ASSIGN_OR_RETURN(const RingArguments in, ArgumentsOf(ring, g.in, device));
  communicator.ResetTraffic();
  DT_ASSIGN_OR_RETURN(const RingResults r, RunBoth(ring, {.scale = kScale}, in, communicator));
  DT_RETURN_IF_ERROR(Check("o", r.o, g.out.o, kBatch, s, query, mine, limit));
  DT_RETURN_IF_ERROR(Check("lse", r.lse, g.out.lse, kBatch * kHeads, s, 1, mine, limit));
  DT_RETURN_IF_ERROR(Check("dq", r.dq, g.out.dq, kBatch, s, query, mine, limit));
  DT_RETURN_IF_ERROR(Check("dk", r.dk, g.out.dk, kBatch, t, key, keys, limit));
  DT_RETURN_IF_ERROR(Check("dv", r.dv, g.out.dv, kBatch, t, key, keys, limit));

  for (const Tensor& tensor : {r.o, r.lse, r.dq, r.dk, r.dv}) {
    DT_RETURN_IF_ERROR(AddElements(tensor, seen));
  }

  // What came is what the schedule says the others send here.
  int64_t counted = 0, planned = 0;
  for (const auto& [key, traffic] : communicator.traffic()) counted += traffic.bytes;
  for (const RingLink& link : schedule.Links()) {
    if (link.to == ring.ring_rank()) planned += link.forward_bytes + link.backward_bytes;
  }
  if (counted == planned) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("counted ", counted, " B, planned ", planned));
}

struct Case {
  std::string mesh;
  std::vector<Placement> placements;
  int64_t q_length, kv_length;
};

RingSchedule Schedule(const Case& c, const AttentionMask& mask, DType dtype) {
  const DeviceMesh mesh = DeviceMesh::Parse(c.mesh).value();
  AxisList axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) axes.push_back(axis);
  return RingSchedule::Create(
             {.q = Layout::FromPlacements(mesh, c.placements, {c.q_length}).value(),
              .kv = Layout::FromPlacements(mesh, c.placements, {c.kv_length}).value(),
              .q_length = c.q_length,
              .kv_length = c.kv_length,
              .axes = axes,
              .batch = kBatch,
              .heads = kHeads,
              .kv_heads = kKvHeads,
              .head_dim = kHeadDim,
              .dtype = dtype,
              .mask = mask})
      .value();
}

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(5).value(),
          AttentionMask::Prefix(3).value(), AttentionMask::Documents({0, 7, 15}).value()};
}

void ExpectRight(const Case& c, const RunOptions& options = {}) {
  const int ranks = DeviceMesh::Parse(c.mesh)->size();
  if (!SuiteHasRanks(ranks, options)) return;
  for (const AttentionMask& mask : Masks()) {
    SCOPED_TRACE(absl::StrCat(c.mesh, " ", mask.ToString(), " ", c.q_length, " ", c.kv_length));
    const RingSchedule f32 = Schedule(c, mask, DType::kF32), f64 = Schedule(c, mask, DType::kF64);
    const RingSchedule bf16 = Schedule(c, mask, DType::kBF16);
    const AttentionInputs in = RandomInputs(f64.problem());
    const Global g = {in, ReferenceAttention(ReferenceOf(f64.problem(), kScale), in)};
    EXPECT_THAT(OnSuiteRanks(
                    ranks,
                    [&](Context& context) -> absl::StatusOr<uint64_t> {
                      Communicator& communicator = context.communicator();
                      Device& device = context.device();
                      Digest seen;
                      DT_RETURN_IF_ERROR(RunOn(f32, g, 3e-6, communicator, device, seen));
                      // o, which backward reads, is rounded to bf16; one shard may have more than
                      // its part of the error. Kernels' tests hold it against that of one step.
                      DT_RETURN_IF_ERROR(RunOn(bf16, g, 8e-3, communicator, device, seen));
                      DT_RETURN_IF_ERROR(RunOn(f64, g, 1e-13, communicator, device, seen));
                      return seen.value();
                    },
                    options),
                IsOk());
    SocketRanks sockets(ranks);
    SharedRanks arenas(ranks);
    EXPECT_THAT(RunLocalRanks(
                    ranks,
                    [&](Communicator& threads, Device& device) -> absl::Status {
                      SocketRank rank = sockets.Make(threads, device);
                      Digest seen;
                      DT_RETURN_IF_ERROR(RunOn(f32, g, 3e-6, rank.communicator(), device, seen));
                      SharedRank shared = arenas.Make(threads, options.max_delay_us);
                      return RunOn(f32, g, 3e-6, shared.communicator(), shared.device(), seen);
                    },
                    options),
                IsOk());
  }
}

TEST(RingExecutorTest, EveryOrderAndNumberOfRanks) {
  for (const ShardOrder& order :
       {ShardOrder::Contiguous(), ShardOrder::Zigzag(), ShardOrder::Block(1)}) {
    for (int cp = 1; cp <= 5; ++cp) {
      for (int64_t length : {24, 23}) {
        ExpectRight({absl::StrCat("cp=", cp), {Shard(0, order)}, length, length});
      }
    }
  }
}

TEST(RingExecutorTest, ARingOfRings) {
  for (absl::string_view mesh : {"node=2,cp=2", "node=3,cp=2", "node=2,cp=1"}) {
    ExpectRight({std::string(mesh), {Shard(0), Shard(0)}, 24, 24});
    ExpectRight({std::string(mesh), {Shard(0), Shard(0)}, 17, 17});
  }
}

TEST(RingExecutorTest, ARingOfEight) {
  ExpectRight({"cp=8", {Shard(0, ShardOrder::Zigzag())}, 37, 37});
  ExpectRight({"cp=8", {Shard(0)}, 12, 40});  // two ranks without queries
  ExpectRight({"node=2,cp=4", {Shard(0), Shard(0)}, 32, 32});
}

TEST(RingExecutorTest, CrossAttentionAndEmptyShards) {
  ExpectRight({"cp=4", {Shard(0)}, 6, 23});
  ExpectRight({"cp=4", {Shard(0)}, 16, 16});
  ExpectRight({"cp=5", {Shard(0)}, 16, 21});
}

TEST(RingExecutorTest, OnADeviceThatRunsLate) {
  ExpectRight({"cp=3", {Shard(0, ShardOrder::Zigzag())}, 23, 23},
              {.device = Device::Kind::kDeferred, .max_delay_us = 50});
}

TEST(RingExecutorTest, OneRankHasTheBitsOfTheLocalKernel) {
  const RingSchedule schedule =
      Schedule({"cp=1", {Shard(0)}, 40, 40}, AttentionMask::Causal(), DType::kF32);
  DT_EXPECT_OK(RunLocalRanks(1, [&](Communicator& communicator, Device& device) -> absl::Status {
    const RankRing ring(schedule, 0);
    DT_ASSIGN_OR_RETURN(const RingArguments in,
                        ArgumentsOf(ring, RandomInputs(schedule.problem()), device));
    DT_ASSIGN_OR_RETURN(const RingResults r, RunBoth(ring, {.scale = kScale}, in, communicator));
    const auto& [q, k, v, dout] = in;
    const auto like = [&](const Tensor& tensor) {
      return Tensor::Empty(device, DType::kF32, tensor.shape()).value();
    };
    const Tensor o = like(q), lse = like(r.lse), dq = like(q), dk = like(k), dv = like(v);
    DT_RETURN_IF_ERROR(kernels::Attention(device, q, k, v, kScale, true, o, lse));
    DT_RETURN_IF_ERROR(
        kernels::AttentionGrad(device, q, k, v, o, lse, dout, kScale, true, dq, dk, dv));
    const auto same = [](const Tensor& a, const Tensor& b) {
      return ToHost<float>(a).value() == ToHost<float>(b).value();
    };
    EXPECT_TRUE(same(r.o, o) && same(r.lse, lse));
    EXPECT_TRUE(same(r.dq, dq) && same(r.dk, dk) && same(r.dv, dv));
    EXPECT_TRUE(communicator.traffic().empty());
    return absl::OkStatus();
  }));
}

// Forward, then backward, with one tensor replaced on every rank.
absl::Status RunWith(int replaced, const std::function<Tensor(const Tensor&)>& replace) {
  const RingSchedule schedule =
      Schedule({"cp=2", {Shard(0)}, 8, 8}, AttentionMask::Causal(), DType::kF32);
  return RunLocalRanks(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    const Dims query = {kBatch, 4, kHeads, kHeadDim}, key = {kBatch, 4, kKvHeads, kHeadDim};
    const Dims row = {kBatch, kHeads, 4};
    std::vector<Tensor> x;  // q, k, v, o, lse, dout, dq, dk, dv
    for (const Dims& shape : {query, key, key, query, row, query, query, key, key}) {
      DT_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::Empty(device, DType::kF32, shape));
      DT_RETURN_IF_ERROR(kernels::Fill(device, tensor, 0));
      x.push_back(tensor);
    }
    x[replaced] = replace(x[replaced]);
    const RankRing ring(schedule, communicator.rank());
    if (replaced < 5) {
      DT_RETURN_IF_ERROR(RunRing(ring, {}, x[0], x[1], x[2], communicator, "Ring", x[3], x[4]));
    }
    return RunRingBackward(ring, {}, x[0], x[1], x[2], x[3], x[4], x[5], communicator, "Ring", x[6],
                           x[7], x[8]);
  });
}

TEST(RingExecutorTest, RefusesTensorsThatAreNotWhatTheProblemSays) {
  const auto longer = [](const Tensor& x) {
    Dims shape = x.shape();
    ++shape[1];
    return Tensor::Empty(x.device(), x.dtype(), shape).value();
  };
  const auto apart = [](const Tensor& x) {
    Dims shape = x.shape();
    shape.back() *= 2;
    Dims strides = Tensor::Empty(x.device(), x.dtype(), shape)->strides();
    strides.back() = 2;
    return Tensor::Empty(x.device(), x.dtype(), shape)->View(x.shape(), strides, 0);
  };
  const absl::string_view names[] = {"q",
                                     "k",
                                     "v",
                                     "o",
                                     "lse",
                                     "the gradient of o",
                                     "the gradient of q",
                                     "the gradient of k",
                                     "the gradient of v"};
  for (int i = 0; i < 9; ++i) {
    const std::string name(names[i]);
    EXPECT_THAT(RunWith(i, longer), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr(absl::StrCat("Ring: ", name, " is [2, "))));
    EXPECT_THAT(RunWith(i, [](const Tensor&) { return Tensor(); }),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat(name, " is undefined where place"))));
    if (name == "lse") {
      DT_EXPECT_OK(RunWith(i, apart));
    } else {
      EXPECT_THAT(RunWith(i, apart),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat(name, i < 6 ? " lie 2 apart" : " has gaps"))));
    }
  }
}

}  // namespace
}  // namespace dtensor
