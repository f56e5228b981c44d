// Rings on ranks that are threads, against one rank that computes in f64.
#include "dtensor/attention/ring_executor.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/message_communicator.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/ring_reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kHeadDim = 8;
constexpr double kScale = 0.35;

// Row-major [batch, length, heads, head_dim]; lse: [batch, heads, length].
struct Global {
  Doubles q, k, v, dout, o, lse, dq, dk, dv;
};

Doubles Random(int64_t n, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Doubles values(n);
  // Exact in all types.
  for (double& value : values) value = static_cast<float>(BFloat16(normal(random)));
  return values;
}

// One step with all keys, in f64.
Global Oracle(const AttentionMask& mask, int64_t s, int64_t t) {
  const auto device = MakeCpuDevice();
  Global g;
  g.q = Random(kBatch * s * kHeads * kHeadDim, 1);
  g.k = Random(kBatch * t * kKvHeads * kHeadDim, 2);
  g.v = Random(kBatch * t * kKvHeads * kHeadDim, 3);
  g.dout = Random(kBatch * s * kHeads * kHeadDim, 4);
  const Dims queries = {kBatch, s, kHeads, kHeadDim}, keys = {kBatch, t, kKvHeads, kHeadDim};
  const Dims rows = {kBatch, kHeads, s};
  const auto from = [&](const Doubles& values, const Dims& shape) {
    return FromHost<double>(*device, values, shape).value();
  };
  const auto empty = [&](const Dims& shape) {
    return Tensor::Empty(*device, DType::kF64, shape).value();
  };
  const Tensor q = from(g.q, queries), k = from(g.k, keys), v = from(g.v, keys);
  const Tensor dout = from(g.dout, queries), o = empty(queries), lse = empty(rows);
  const Tensor delta = empty(rows), dq = empty(queries), dk = empty(keys), dv = empty(keys);
  const kernels::AttentionStep step = {.scale = kScale,
                                       .mask = mask,
                                       .q_positions = IndexSet::Interval(0, s),
                                       .k_positions = IndexSet::Interval(0, t)};
  DT_EXPECT_OK(kernels::Attention(*device, q, k, v, step, nullptr, o, lse));
  DT_EXPECT_OK(kernels::AttentionDelta(*device, o, dout, delta));
  DT_EXPECT_OK(kernels::AttentionGrad(*device, q, k, v, lse, delta, dout, step, dq, dk, dv));
  g.o = ToHost<double>(o).value();
  g.lse = ToHost<double>(lse).value();
  g.dq = ToHost<double>(dq).value();
  g.dk = ToHost<double>(dk).value();
  g.dv = ToHost<double>(dv).value();
  return g;
}

// The rows at `positions` of [batch, length, width], and the columns of [batch * heads, length].
Doubles Rows(const Doubles& global, int64_t length, int64_t width, const IndexSet& positions) {
  return RowsAt(global, kBatch, length, width, positions);
}
Doubles Columns(const Doubles& global, int64_t length, const IndexSet& positions) {
  return RowsAt(global, kBatch * kHeads, length, 1, positions);
}

double MeanSquare(const Doubles& values) {
  double sum = 0;
  for (double value : values) sum += std::isfinite(value) ? value * value : 0;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Root mean square of a shard's difference over that of the whole tensor: a shard may be zero but
// for rounding. Infinities must be equal.
double Error(const Doubles& got, const Doubles& want, const Doubles& whole) {
  Doubles difference;
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    if (!std::isfinite(got[i] - want[i])) return std::numeric_limits<double>::infinity();
    difference.push_back(got[i] - want[i]);
  }
  if (difference.empty()) return 0;
  return std::sqrt(MeanSquare(difference) / MeanSquare(whole));
}

absl::Status Check(absl::string_view what, const Tensor& got, const Doubles& want,
                   const Doubles& whole, double limit) {
  DT_ASSIGN_OR_RETURN(const Doubles values, ToDoubles(got));
  const double error = Error(values, want, whole);
  if (error <= limit) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " is off by ", error));
}

template <typename T>
absl::Status RunOn(const RingSchedule& schedule, const Global& g, double limit,
                   Communicator& communicator, Device& device) {
  const RankRing ring(schedule, communicator.rank());
  const RingProblem& p = schedule.problem();
  const IndexSet& mine = schedule.q_positions(ring.ring_rank());
  const IndexSet& keys = schedule.kv_positions(ring.ring_rank());
  const int64_t query_width = kHeads * kHeadDim, key_width = kKvHeads * kHeadDim;
  const auto make = [&](const Doubles& global, int64_t length, int64_t heads,
                        const IndexSet& positions) {
    const Doubles rows = Rows(global, length, heads * kHeadDim, positions);
    std::vector<T> values;
    for (double row : rows) values.push_back(T(static_cast<float>(row)));
    return FromHost<T>(device, values, {kBatch, positions.size(), heads, kHeadDim});
  };
  DT_ASSIGN_OR_RETURN(const Tensor q, make(g.q, p.q_length, kHeads, mine));
  DT_ASSIGN_OR_RETURN(const Tensor k, make(g.k, p.kv_length, kKvHeads, keys));
  DT_ASSIGN_OR_RETURN(const Tensor v, make(g.v, p.kv_length, kKvHeads, keys));
  DT_ASSIGN_OR_RETURN(const Tensor dout, make(g.dout, p.q_length, kHeads, mine));
  communicator.ResetTraffic();
  DT_ASSIGN_OR_RETURN(const RingResults r,
                      RunBoth(ring, {.scale = kScale}, q, k, v, dout, communicator));
  DT_RETURN_IF_ERROR(Check("o", r.o, Rows(g.o, p.q_length, query_width, mine), g.o, limit));
  DT_RETURN_IF_ERROR(Check("lse", r.lse, Columns(g.lse, p.q_length, mine), g.lse, limit));
  DT_RETURN_IF_ERROR(Check("dq", r.dq, Rows(g.dq, p.q_length, query_width, mine), g.dq, limit));
  DT_RETURN_IF_ERROR(Check("dk", r.dk, Rows(g.dk, p.kv_length, key_width, keys), g.dk, limit));
  DT_RETURN_IF_ERROR(Check("dv", r.dv, Rows(g.dv, p.kv_length, key_width, keys), g.dv, limit));

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
  for (const AttentionMask& mask : Masks()) {
    SCOPED_TRACE(absl::StrCat(c.mesh, " ", mask.ToString(), " ", c.q_length, " ", c.kv_length));
    const Global g = Oracle(mask, c.q_length, c.kv_length);
    const RingSchedule f32 = Schedule(c, mask, DType::kF32), f64 = Schedule(c, mask, DType::kF64);
    const RingSchedule bf16 = Schedule(c, mask, DType::kBF16);
    const int ranks = f32.problem().q.mesh().size();
    Mailbox mailbox;
    EXPECT_THAT(RunLocalRanks(
                    ranks,
                    [&](Communicator& communicator, Device& device) -> absl::Status {
                      DT_RETURN_IF_ERROR(RunOn<float>(f32, g, 3e-6, communicator, device));
                      if (device.kind() == Device::Kind::kCpu) {
                        MessageCommunicator messages(communicator, mailbox);
                        DT_RETURN_IF_ERROR(RunOn<float>(f32, g, 3e-6, messages, device));
                      }
                      // o, which backward reads, is rounded to bf16; one shard may have more than
                      // its part of the error. Kernels' tests hold it against that of one step.
                      DT_RETURN_IF_ERROR(RunOn<BFloat16>(bf16, g, 8e-3, communicator, device));
                      return RunOn<double>(f64, g, 1e-13, communicator, device);
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
  const Global g = Oracle(AttentionMask::Causal(), 40, 40);
  DT_EXPECT_OK(RunLocalRanks(1, [&](Communicator& communicator, Device& device) -> absl::Status {
    const auto make = [&](const Doubles& values, int64_t heads) {
      return FromHost<float>(device, std::vector<float>(values.begin(), values.end()),
                             {kBatch, 40, heads, kHeadDim});
    };
    DT_ASSIGN_OR_RETURN(const Tensor q, make(g.q, kHeads));
    DT_ASSIGN_OR_RETURN(const Tensor k, make(g.k, kKvHeads));
    DT_ASSIGN_OR_RETURN(const Tensor v, make(g.v, kKvHeads));
    DT_ASSIGN_OR_RETURN(const Tensor dout, make(g.dout, kHeads));
    const RankRing ring(schedule, 0);
    DT_ASSIGN_OR_RETURN(const RingResults r,
                        RunBoth(ring, {.scale = kScale}, q, k, v, dout, communicator));
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
