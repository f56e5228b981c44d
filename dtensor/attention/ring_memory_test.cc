// The memory of rings, as devices count it, against its closed form, which is a law. An attention
// that gathers all keys and values must be seen to break it.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/layout/placement.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int kMostRanks = 8;

struct Case {
  DType dtype;
  AttentionMask mask;
  ShardOrder order = ShardOrder::Zigzag();
  // Zigzag over 3 to 8 ranks divides the length: its least common multiple is 1680.
  int64_t length = 16800, batch = 1, heads = 16, kv_heads = 4, head_dim = 128;
};

RingSchedule Schedule(const Case& c, int cp) {
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("cp=", cp)).value();
  const Layout layout = Layout::FromPlacements(mesh, {Shard(0, c.order)}, {c.length}).value();
  return RingSchedule::Create({.q = layout,
                               .kv = layout,
                               .q_length = c.length,
                               .kv_length = c.length,
                               .axes = {0},
                               .batch = c.batch,
                               .heads = c.heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim,
                               .dtype = c.dtype,
                               .mask = c.mask})
      .value();
}

struct Operands {
  Tensor q, k, v, dout, o, lse, dq, dk, dv;
};
using Forward = absl::Status(const RankRing&, const Operands&, Communicator&);
// One way to do attention over the ring's ranks.
struct Variant {
  std::function<Forward> forward, backward;
};

Variant Ring() {
  return {[](const RankRing& ring, const Operands& x, Communicator& communicator) {
            return RunRing(ring, {}, x.q, x.k, x.v, communicator, "Ring", x.o, x.lse);
          },
          [](const RankRing& ring, const Operands& x, Communicator& communicator) {
            return RunRingBackward(ring, {}, x.q, x.k, x.v, x.o, x.lse, x.dout, communicator,
                                   "Ring", x.dq, x.dk, x.dv);
          }};
}

// All keys, or values, on every rank.
absl::StatusOr<Tensor> GatherKeys(const RankRing& ring, const Tensor& keys,
                                  Communicator& communicator) {
  const RingProblem& p = ring.schedule().problem();
  const Dims shape = {p.batch, p.kv_length, p.kv_heads, p.head_dim};
  DT_ASSIGN_OR_RETURN(const Layout from,
                      Layout::Parse(p.kv.mesh(), absl::StrCat("[] ", p.kv.ToString(), " [] []")));
  DT_ASSIGN_OR_RETURN(
      const auto plan,
      RedistributionPlan::Create(from, Layout::Replicated(p.kv.mesh(), 4), shape, p.dtype));
  return ExecutePlan(RankRedistributionPlan(plan, communicator.rank()), keys, communicator,
                     "Gather");
}

kernels::AttentionStep AllKeys(const RankRing& ring) {
  const RingProblem& p = ring.schedule().problem();
  return {.mask = p.mask,
          .q_positions = ring.schedule().q_positions(ring.ring_rank()),
          .k_positions = IndexSet::Interval(0, p.kv_length)};
}

// Keys and values of all ranks, and one call of the kernel. Gradients of all keys follow from one
// call, too; reducing them over the ranks would take still more.
Variant Gathering() {
  return {[](const RankRing& ring, const Operands& x, Communicator& communicator) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const Tensor k, GatherKeys(ring, x.k, communicator));
            DT_ASSIGN_OR_RETURN(const Tensor v, GatherKeys(ring, x.v, communicator));
            return kernels::Attention(x.q.device(), x.q, k, v, AllKeys(ring), nullptr, x.o, x.lse);
          },
          [](const RankRing& ring, const Operands& x, Communicator& communicator) -> absl::Status {
            Device& device = x.q.device();
            DT_ASSIGN_OR_RETURN(const Tensor k, GatherKeys(ring, x.k, communicator));
            DT_ASSIGN_OR_RETURN(const Tensor v, GatherKeys(ring, x.v, communicator));
            const auto like = [&](const Tensor& tensor) {
              return Tensor::Empty(device, tensor.dtype(), tensor.shape());
            };
            DT_ASSIGN_OR_RETURN(const Tensor dk, like(k));
            DT_ASSIGN_OR_RETURN(const Tensor dv, like(v));
            DT_ASSIGN_OR_RETURN(const Tensor delta, like(x.lse));
            DT_RETURN_IF_ERROR(kernels::AttentionDelta(device, x.o, x.dout, delta));
            return kernels::AttentionGrad(device, x.q, k, v, x.lse, delta, x.dout, AllKeys(ring),
                                          x.dq, dk, dv);
          }};
}

struct Peaks {
  int64_t forward = 0, backward = 0;
  friend bool operator==(const Peaks&, const Peaks&) = default;
};

// What the device counts from before the arguments are made, so that they are part of it. Backward
// needs more of them.
absl::StatusOr<Peaks> Measure(const RingSchedule& schedule, const Variant& variant,
                              Communicator& communicator, Device& device) {
  const RankRing ring(schedule, communicator.rank());
  const RingProblem& p = schedule.problem();
  const int64_t n = schedule.q_positions(ring.ring_rank()).size();
  const int64_t t = schedule.kv_positions(ring.ring_rank()).size(),
                before = device.memory().live_bytes;
  const Dims query = {p.batch, n, p.heads, p.head_dim}, key = {p.batch, t, p.kv_heads, p.head_dim};
  const auto make = [&](Tensor& x, const Dims& shape, DType dtype) -> absl::Status {
    DT_ASSIGN_OR_RETURN(x, Tensor::Empty(device, dtype, shape));
    return kernels::Fill(device, x, 0.5);
  };
  Operands x;
  for (Tensor* tensor : {&x.q, &x.o}) DT_RETURN_IF_ERROR(make(*tensor, query, p.dtype));
  for (Tensor* tensor : {&x.k, &x.v}) DT_RETURN_IF_ERROR(make(*tensor, key, p.dtype));
  DT_RETURN_IF_ERROR(make(x.lse, {p.batch, p.heads, n}, AccumulatorOf(p.dtype)));
  Peaks peaks;
  device.ResetPeak();
  DT_RETURN_IF_ERROR(variant.forward(ring, x, communicator));
  peaks.forward = device.memory().peak_bytes - before;
  for (Tensor* tensor : {&x.dout, &x.dq}) DT_RETURN_IF_ERROR(make(*tensor, query, p.dtype));
  for (Tensor* tensor : {&x.dk, &x.dv}) DT_RETURN_IF_ERROR(make(*tensor, key, p.dtype));
  device.ResetPeak();
  DT_RETURN_IF_ERROR(variant.backward(ring, x, communicator));
  peaks.backward = device.memory().peak_bytes - before;
  return peaks;
}

// The same calls on a device that only counts: of any size at no cost.
absl::StatusOr<Peaks> MeasureOnPaper(const RingSchedule& schedule, const Variant& variant,
                                     int rank) {
  const auto communicator = MakeSimulatedCommunicator(rank, schedule.ring_size());
  const auto device = MakeMetaDevice();
  return Measure(schedule, variant, *communicator, *device);
}

// --- The law.

absl::Status Broken(int cp, absl::string_view pass, int64_t measured, double allowed) {
  return absl::InternalError(absl::StrCat(pass, " of ", cp, " ranks holds ", measured,
                                          " B where the law allows ", allowed));
}

// Each rank's peak is its closed form, within 5%.
absl::Status CheckClosedForm(const Case& c, const Variant& variant) {
  for (int cp = 1; cp <= kMostRanks; ++cp) {
    const RingSchedule schedule = Schedule(c, cp);
    for (int rank = 0; rank < cp; ++rank) {
      DT_ASSIGN_OR_RETURN(const Peaks peaks, MeasureOnPaper(schedule, variant, rank));
      const auto check = [&](absl::string_view pass, int64_t measured, int64_t planned) {
        const double ratio = static_cast<double>(measured) / static_cast<double>(planned);
        if (0.95 <= ratio && ratio <= 1.05) return absl::OkStatus();
        return Broken(cp, pass, measured, static_cast<double>(planned));
      };
      DT_RETURN_IF_ERROR(check("forward", peaks.forward, schedule.ForwardMemory(rank).total()));
      DT_RETURN_IF_ERROR(check("backward", peaks.backward, schedule.BackwardMemory(rank).total()));
    }
  }
  return absl::OkStatus();
}

// The largest peak times the number of ranks is constant within 15% from 3 ranks on, and not more
// with one or two.
absl::Status CheckConstant(const Case& c, const Variant& variant) {
  double least[2] = {1e300, 1e300}, most[2] = {};
  const absl::string_view passes[2] = {"forward", "backward"};
  for (int cp = kMostRanks; cp >= 1; --cp) {
    const RingSchedule schedule = Schedule(c, cp);
    int64_t peak[2] = {};
    for (int rank = 0; rank < cp; ++rank) {
      DT_ASSIGN_OR_RETURN(const Peaks peaks, MeasureOnPaper(schedule, variant, rank));
      peak[0] = std::max(peak[0], peaks.forward);
      peak[1] = std::max(peak[1], peaks.backward);
    }
    for (int pass = 0; pass < 2; ++pass) {
      const double all = static_cast<double>(cp * peak[pass]);
      if (cp >= 3) {
        least[pass] = std::min(least[pass], all);
        most[pass] = std::max(most[pass], all);
        if (most[pass] <= 1.15 * least[pass]) continue;
      } else if (all <= most[pass]) {
        continue;
      }
      return Broken(cp, passes[pass], peak[pass], 1.15 * least[pass] / cp);
    }
  }
  return absl::OkStatus();
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const AttentionMask& mask : {AttentionMask::Full(), AttentionMask::Causal()}) {
      cases.push_back({dtype, mask});
    }
  }
  return cases;
}

TEST(RingMemoryTest, ThePeakOfEveryRankIsItsClosedForm) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(absl::StrCat(ToString(c.dtype), " ", c.mask.ToString()));
    DT_EXPECT_OK(CheckClosedForm(c, Ring()));
  }
}

TEST(RingMemoryTest, ThePeakTimesTheRanksIsConstant) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(absl::StrCat(ToString(c.dtype), " ", c.mask.ToString()));
    DT_EXPECT_OK(CheckConstant(c, Ring()));
  }
}

// The law is one that can be broken.
TEST(RingMemoryTest, GatheringAllKeysBreaksTheLaw) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(absl::StrCat(ToString(c.dtype), " ", c.mask.ToString()));
    EXPECT_THAT(CheckClosedForm(c, Gathering()),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("where the law allows")));
    EXPECT_THAT(CheckConstant(c, Gathering()),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("where the law allows")));
  }
}

// Other orders and masks skip messages, share blocks unevenly, and leave ranks without work: the
// closed form is of each rank.
TEST(RingMemoryTest, EveryOrderAndMaskHasItsClosedForm) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const ShardOrder& order :
         {ShardOrder::Contiguous(), ShardOrder::Zigzag(), ShardOrder::Block(16)}) {
      for (const absl::string_view mask :
           {"causal", "window:2500", "window:1", "prefix:300", "documents:0,5000,5600,16000"}) {
        SCOPED_TRACE(absl::StrCat(ToString(dtype), " ", Shard(0, order).ToString(), " ", mask));
        DT_EXPECT_OK(CheckClosedForm(
            {.dtype = dtype, .mask = AttentionMask::Parse(mask).value(), .order = order}, Ring()));
      }
    }
  }
}

// What is counted on paper is what ranks that compute take.
TEST(RingMemoryTest, RanksThatComputeTakeWhatIsCounted) {
  for (Case c : Cases()) {
    c.length = 240, c.batch = 2, c.heads = 4, c.kv_heads = 2, c.head_dim = 16;
    for (int cp = 1; cp <= kMostRanks; ++cp) {
      const RingSchedule schedule = Schedule(c, cp);
      DT_EXPECT_OK(
          RunLocalRanks(cp, [&](Communicator& communicator, Device& device) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const Peaks peaks, Measure(schedule, Ring(), communicator, device));
            DT_ASSIGN_OR_RETURN(const Peaks counted,
                                MeasureOnPaper(schedule, Ring(), communicator.rank()));
            EXPECT_EQ(peaks, counted) << peaks.forward << " " << counted.forward << ", "
                                      << peaks.backward << " " << counted.backward;
            return absl::OkStatus();
          }));
    }
  }
}

}  // namespace
}  // namespace dtensor
