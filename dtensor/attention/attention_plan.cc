#include "dtensor/attention/attention_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/layout/regions.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr int kSequence = 1, kHeads = 2;  // dimensions of q, k and v
constexpr double kBackwardWork = 2.5;     // operations of backward relative to forward
constexpr absl::string_view kKinds[] = {"automatic", "ring", "gather", "all-to-all"};

bool SameAxes(AxisList a, AxisList b) {
  absl::c_sort(a);
  absl::c_sort(b);
  return a == b;
}

AxisList Without(const AxisList& axes, const AxisList& removed) {
  AxisList rest;
  for (int axis : axes) {
    if (!absl::c_linear_search(removed, axis)) rest.push_back(axis);
  }
  return rest;
}

// Seconds of each direction, on the slowest rank.
struct Times {
  double forward = 0, backward = 0;
};

class Pricing {
 public:
  Pricing(const AttentionProblem& problem, const CostModel& links)
      : problem_(problem),
        links_(links.On(problem.q.mesh())),
        mesh_(problem.q.mesh()),
        axes_(StreamedAxes(problem)) {}

  absl::StatusOr<std::vector<AttentionPlan>> Run() {
    std::vector<AttentionPlan> plans;
    if (axes_.empty() || !HasWork()) return plans;
    DT_ASSIGN_OR_RETURN(const RingSchedule ring,
                        RingSchedule::Create(RingOf(problem_, FirstRank())));
    plans.push_back(Ring(problem_, ring));
    DT_ASSIGN_OR_RETURN(plans.emplace_back(), Gather(ring));
    for (unsigned mask = 1; mask < 1u << axes_.size(); ++mask) {
      AxisList moved;
      for (size_t i = 0; i < axes_.size(); ++i) {
        if (mask >> i & 1) moved.push_back(axes_[i]);
      }
      absl::c_sort(moved);
      if (!SharesHeads(moved)) continue;
      absl::StatusOr<AttentionPlan> plan = AllToAll(moved);
      if (plan.ok()) plans.push_back(*std::move(plan));  // else no layout can express it
    }
    return plans;
  }

 private:
  int FirstRank() const { return mesh_.RankOf(0); }

  // Asks the rank that has the most. There may be fewer heads than ranks that shard them.
  bool HasWork() const {
    const RingProblem ring = RingOf(problem_, FirstRank());
    return ring.batch > 0 && ring.heads > 0 && ring.kv_heads > 0;
  }

  // Whether every rank gets equally many heads, with the heads of a group together.
  bool SharesHeads(const AxisList& moved) const {
    const AxisList split = AxesOf(problem_.kv.dim(kHeads));
    if (!SameAxes(split, AxesOf(problem_.q.dim(kHeads)))) return false;
    int64_t ranks = 1;
    for (int axis : split) ranks *= mesh_.axis_size(axis);
    for (int axis : moved) ranks *= mesh_.axis_size(axis);
    return problem_.kv_shape[kHeads] % ranks == 0;
  }

  double SecondsOfWork(const AttentionProblem& problem, double pairs) const {
    const Dims q = problem.q.LocalShape(problem.q_shape, FirstRank());
    const double operations = 4.0 * static_cast<double>(q[0] * q[kHeads] * q[3]) * pairs;
    return operations / (links_.multiply_gf_per_second() * 1e9);
  }

  // The time of messages that start together.
  double SecondsOfBytes(double bytes, int messages = 1) const {
    double latency = 0, rate = 1e300;
    for (int axis : axes_) {
      const LinkSpeed& link = links_.Of(mesh_.axis_name(axis));
      latency = std::max(latency, link.latency_us * 1e-6);
      rate = std::min(rate, link.gb_per_second * 1e9);
    }
    return bytes == 0 ? 0 : latency * messages + bytes / rate;
  }

  static double Largest(const RingStep& step, std::vector<RingMessage> RingTurn::*messages) {
    double largest = 0;
    for (const RingTurn& turn : step.turns) {
      double bytes = 0;
      for (const RingMessage& message : turn.*messages) bytes += static_cast<double>(message.bytes);
      largest = std::max(largest, bytes);
    }
    return largest;
  }

  Times RingTimes(const AttentionProblem& problem, const RingSchedule& ring) const {
    Times times;
    for (const RingStep& step : ring.steps()) {
      int64_t pairs = 0;
      for (const RingTurn& turn : step.turns) pairs = std::max(pairs, turn.work);
      const double work = SecondsOfWork(problem, static_cast<double>(pairs));
      const double keys = SecondsOfBytes(Largest(step, &RingTurn::receives));
      times.forward += std::max(work, keys);
      times.backward += std::max(kBackwardWork * work, keys) +
                        SecondsOfBytes(Largest(step, &RingTurn::gradient_receives));
    }
    return times;
  }

  // The time for all pairs that one rank works on, without a ring.
  double WholeSeconds(const RingSchedule& ring) const {
    int64_t largest = 0;
    for (int ring_rank = 0; ring_rank < ring.ring_size(); ++ring_rank) {
      int64_t pairs = 0;
      for (const RingStep& step : ring.steps()) pairs += step.turns[ring_rank].work;
      largest = std::max(largest, pairs);
    }
    return SecondsOfWork(problem_, static_cast<double>(largest));
  }

  int64_t RingBytes(const RingSchedule& ring) const {
    int64_t bytes = 0;
    for (int ring_rank = 0; ring_rank < ring.ring_size(); ++ring_rank) {
      bytes +=
          ring.ForwardBytes(ring_rank) + (problem_.backward ? ring.BackwardBytes(ring_rank) : 0);
    }
    return bytes * (mesh_.size() / ring.ring_size());
  }

  int64_t RingExtra(const RingSchedule& ring) const {
    int64_t extra = 0;
    for (int ring_rank = 0; ring_rank < ring.ring_size(); ++ring_rank) {
      const RingMemory memory =
          problem_.backward ? ring.BackwardMemory(ring_rank) : ring.ForwardMemory(ring_rank);
      extra = std::max(extra, memory.kv_buffers + memory.gradient_buffers);
    }
    return extra;
  }

  double Total(const Times& times) const {
    return times.forward + (problem_.backward ? times.backward : 0);
  }

  AttentionPlan Ring(const AttentionProblem& problem, const RingSchedule& ring) const {
    AttentionPlan plan;
    plan.q = problem.q;
    plan.kv = problem.kv;
    plan.seconds = Total(RingTimes(problem, ring));
    plan.bytes = RingBytes(ring);
    plan.extra_bytes = RingExtra(ring);
    return plan;
  }

  // Bytes that all ranks together receive when a tensor goes from one layout to another.
  double Moved(const Layout& from, const Layout& to, const Dims& shape) const {
    return MovingCost(from, to, shape, problem_.dtype);
  }
  double PerRank(double bytes) const { return bytes / static_cast<double>(mesh_.size()); }

  absl::StatusOr<AttentionPlan> Gather(const RingSchedule& ring) const {
    AttentionPlan plan;
    plan.kind = AttentionPlanKind::kGather;
    plan.q = problem_.q;
    DT_ASSIGN_OR_RETURN(plan.kv, problem_.kv.WithDim(kSequence, {}));
    DT_ASSIGN_OR_RETURN(const Layout partial, plan.kv.WithPartial(axes_));
    const double keys = 2 * Moved(problem_.kv, plan.kv, problem_.kv_shape);
    const double gradients = 2 * Moved(partial, problem_.kv, problem_.kv_shape);
    const double work = WholeSeconds(ring);
    plan.seconds = Total({work + SecondsOfBytes(PerRank(keys), 2),
                          kBackwardWork * work + SecondsOfBytes(PerRank(gradients), 2)});
    plan.bytes = static_cast<int64_t>(keys + (problem_.backward ? gradients : 0));
    // Keys and values of other ranks, and in backward the gradients for all of them.
    int64_t all = 0, least = ring.BlockBytes(0);
    for (int block = 0; block < ring.ring_size(); ++block) {
      all += ring.BlockBytes(block);
      least = std::min(least, ring.BlockBytes(block));
    }
    plan.kept_bytes = problem_.backward ? all - least : 0;
    plan.extra_bytes = all - least + (problem_.backward ? all : 0);
    return plan;
  }

  absl::StatusOr<AttentionPlan> AllToAll(const AxisList& moved) const {
    AttentionProblem inside = problem_;
    DT_ASSIGN_OR_RETURN(inside.q, problem_.q.WithAxes(moved, Shard(kHeads)));
    DT_ASSIGN_OR_RETURN(inside.kv, problem_.kv.WithAxes(moved, Shard(kHeads)));
    AttentionPlan plan;
    plan.q = inside.q;
    plan.kv = inside.kv;
    if (!Without(axes_, moved).empty()) {
      DT_ASSIGN_OR_RETURN(const RingSchedule ring,
                          RingSchedule::Create(RingOf(inside, FirstRank())));
      plan = Ring(inside, ring);
    } else {
      const int64_t s = problem_.q_shape[kSequence], t = problem_.kv_shape[kSequence];
      const int64_t q = problem_.first_query(), k = problem_.first_key();
      const double work =
          SecondsOfWork(inside, static_cast<double>(problem_.mask.Count(
                                    IndexSet::Interval(q, q + s), IndexSet::Interval(k, k + t))));
      plan.seconds = Total({work, kBackwardWork * work});
    }
    plan.kind = AttentionPlanKind::kAllToAll;
    plan.all_to_all = moved;
    const double bytes = 2 * Moved(problem_.q, inside.q, problem_.q_shape) +
                         2 * Moved(problem_.kv, inside.kv, problem_.kv_shape);
    const int directions = problem_.backward ? 2 : 1;
    plan.seconds += directions * SecondsOfBytes(PerRank(bytes), 4);
    plan.bytes += directions * static_cast<int64_t>(bytes);
    // q, k, v and o in the inner layout; this o is kept for backward.
    const int64_t queries = SizeOf(problem_.dtype) * Elements(inside.q, problem_.q_shape);
    const int64_t keys = SizeOf(problem_.dtype) * Elements(inside.kv, problem_.kv_shape);
    plan.extra_bytes += 2 * (queries + keys);
    plan.kept_bytes = problem_.backward ? queries : 0;
    return plan;
  }

  int64_t Elements(const Layout& layout, const Dims& shape) const {
    return NumElements(layout.LocalShape(shape, FirstRank()));
  }

  const AttentionProblem& problem_;
  const CostModel links_;
  const DeviceMesh& mesh_;
  const AxisList axes_;
};

}  // namespace

absl::string_view ToString(AttentionPlanKind kind) { return kKinds[static_cast<int>(kind)]; }

AxisList StreamedAxes(const AttentionProblem& problem) {
  AxisList axes = AxesOf(problem.q.dim(kSequence));
  if (!SameAxes(axes, AxesOf(problem.kv.dim(kSequence)))) axes.clear();
  return axes;
}

RingProblem RingOf(const AttentionProblem& problem, int mesh_rank) {
  const DeviceMesh& mesh = problem.q.mesh();
  const auto sequence = [&](const Layout& layout) {
    return Layout::Create(mesh, {layout.dim(kSequence)}).value();
  };
  const Dims q = problem.q.LocalShape(problem.q_shape, mesh_rank);
  const Dims kv = problem.kv.LocalShape(problem.kv_shape, mesh_rank);
  RingProblem ring;
  ring.q = sequence(problem.q);
  ring.kv = sequence(problem.kv);
  ring.q_length = problem.q_shape[kSequence];
  ring.kv_length = problem.kv_shape[kSequence];
  ring.q_start = problem.first_query();
  ring.kv_start = problem.first_key();
  ring.axes = StreamedAxes(problem);
  ring.batch = q[0];
  ring.heads = q[kHeads];
  ring.kv_heads = kv[kHeads];
  ring.head_dim = q[3];
  ring.dtype = problem.dtype;
  ring.mask = problem.mask;
  return ring;
}

std::string AttentionPlan::ToString(const DeviceMesh& mesh) const {
  std::string text(dtensor::ToString(kind));
  if (!all_to_all.empty()) {
    absl::StrAppend(&text, " over ", mesh.AxisNames(all_to_all));
    const AxisList ring = AxesOf(q.dim(kSequence));
    if (!ring.empty()) absl::StrAppend(&text, ", ring over ", mesh.AxisNames(ring));
  }
  return absl::StrCat(text, ": ", absl::StrFormat("%.3g ms, ", seconds * 1e3), bytes,
                      " bytes received; extra bytes on a rank: ", extra_bytes,
                      ", kept for backward ", kept_bytes);
}

absl::StatusOr<std::vector<AttentionPlan>> AttentionPlans(const AttentionProblem& problem,
                                                          const CostModel& links) {
  return Pricing(problem, links).Run();
}

const AttentionPlan& ChooseAttentionPlan(const std::vector<AttentionPlan>& plans,
                                         int64_t max_extra_bytes) {
  DT_CHECK(!plans.empty());
  const auto fits = [&](const AttentionPlan& plan) {
    return max_extra_bytes < 0 || plan.extra_bytes <= max_extra_bytes;
  };
  double fastest = std::numeric_limits<double>::infinity();
  for (const AttentionPlan& plan : plans) {
    if (fits(plan)) fastest = std::min(fastest, plan.seconds);
  }
  const auto smaller = [](const AttentionPlan& a, const AttentionPlan& b) {
    return std::tie(a.kept_bytes, a.extra_bytes) < std::tie(b.kept_bytes, b.extra_bytes);
  };
  const AttentionPlan* best = nullptr;
  for (const AttentionPlan& plan : plans) {
    if (!fits(plan) || plan.seconds > 1.05 * fastest) continue;
    if (best == nullptr || smaller(plan, *best)) best = &plan;
  }
  return best == nullptr ? plans[0] : *best;
}

}  // namespace dtensor
