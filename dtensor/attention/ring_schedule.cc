#include "dtensor/attention/ring_schedule.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status CheckAxes(const RingProblem& problem) {
  const DeviceMesh& mesh = problem.q.mesh();
  const AxisList& axes = problem.axes;
  if (!(problem.kv.mesh() == mesh)) {
    return InvalidArgument({"ring attention: q lies on ", mesh.ToString(), " and kv on ",
                            problem.kv.mesh().ToString(), "; redistribute one of them"});
  }
  if (axes.empty()) {
    return InvalidArgument({"ring attention: it has no axes; name those that split the sequence"});
  }
  for (const int axis : axes) {
    if (axis >= 0 && axis < mesh.num_axes()) continue;
    return InvalidArgument({"ring attention: mesh ", mesh.ToString(), " has no axis ",
                            absl::StrCat(axis), "; take one from 0 to ",
                            absl::StrCat(mesh.num_axes() - 1)});
  }
  for (const int axis : axes) {
    if (absl::c_count(axes, axis) == 1) continue;
    return InvalidArgument({"ring attention: its axes overlap: \"", mesh.axis_name(axis),
                            "\" is there twice; give each axis once"});
  }
  return absl::OkStatus();
}

// A schedule has a turn for each pair of ranks, so their number is limited.
absl::Status CheckRanks(const RingProblem& problem) {
  int64_t ranks = 1;
  for (const int axis : problem.axes) ranks *= problem.q.mesh().axis_size(axis);
  if (ranks <= RingSchedule::kMostRanks) return absl::OkStatus();
  return InvalidArgument({"ring attention: a ring of ", absl::StrCat(ranks), " ranks on mesh ",
                          problem.q.mesh().ToString(), "; take ",
                          absl::StrCat(RingSchedule::kMostRanks),
                          " or fewer, and let other axes split the batch or the heads"});
}

absl::Status CheckLayout(const RingProblem& problem, absl::string_view name, const Layout& layout) {
  const DeviceMesh& mesh = layout.mesh();
  if (layout.ndim() != 1 || layout.is_partial()) {
    return InvalidArgument({"ring attention: ", name, " is ", layout.ToString(),
                            "; give the layout of the sequence alone, without partial axes"});
  }
  const AxisList sharding = layout.sharding_axes();
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const bool of_ring = absl::c_linear_search(problem.axes, axis);
    const bool splits = absl::c_linear_search(sharding, axis);
    if (mesh.axis_size(axis) == 1 || of_ring == splits) continue;
    return InvalidArgument({"ring attention: ", name, " is ", layout.ToString(), ", and axis \"",
                            mesh.axis_name(axis),
                            splits ? "\" is not the ring's; give the ring this axis, or take it "
                                     "off the sequence"
                                   : "\" of the ring does not split it; shard the sequence over "
                                     "it, or take the axis off the ring"});
  }
  return absl::OkStatus();
}

// Checks that bytes and pairs can be counted in int64.
absl::Status CheckCountable(const RingProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 62, kMostPositions = int64_t{1} << 31;
  const int64_t positions =
      std::max(problem.q_start + problem.q_length, problem.kv_start + problem.kv_length);
  int64_t bytes = 8 * 32;  // 8-byte elements; 32 tensors are more than there are
  bool fits = positions <= kMostPositions;
  for (const int64_t n : {problem.batch, problem.heads, positions, problem.head_dim}) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes) || bytes > kMost) {
      fits = false;
      break;
    }
  }
  // A rank may have to send every block.
  if (fits && bytes <= kMost / problem.q.mesh().size()) return absl::OkStatus();
  return InvalidArgument(
      {"ring attention: more bytes or positions than can be counted; make the tensors smaller (up "
       "to 2^31 "
       "positions)"});
}

absl::Status CheckSizes(const RingProblem& problem) {
  for (const int64_t n :
       {problem.batch, problem.q_length, problem.kv_length, problem.q_start, problem.kv_start}) {
    if (n < 0)
      return InvalidArgument({"ring attention: a size of ", absl::StrCat(n), "; take 0 or more"});
  }
  for (const int64_t n : {problem.heads, problem.kv_heads, problem.head_dim}) {
    if (n < 1)
      return InvalidArgument({"ring attention: a size of ", absl::StrCat(n), "; take 1 or more"});
  }
  if (problem.heads % problem.kv_heads != 0) {
    return InvalidArgument({"ring attention: ", absl::StrCat(problem.heads),
                            " heads are not divisible by ", absl::StrCat(problem.kv_heads),
                            " kv heads; every kv head serves as many heads: take a divisor"});
  }
  if (!IsFloat(problem.dtype)) {
    return InvalidArgument({"ring attention: attention needs a float type, not ",
                            ToString(problem.dtype), "; take f32, f64, bf16 or f16"});
  }
  return CheckCountable(problem);
}

absl::Status Check(const RingProblem& problem) {
  DT_RETURN_IF_ERROR(CheckAxes(problem));
  DT_RETURN_IF_ERROR(CheckRanks(problem));
  DT_RETURN_IF_ERROR(CheckLayout(problem, "q", problem.q));
  DT_RETURN_IF_ERROR(CheckLayout(problem, "kv", problem.kv));
  DT_RETURN_IF_ERROR(CheckSizes(problem));
  return problem.mask.CheckFits(
      std::max(problem.q_start + problem.q_length, problem.kv_start + problem.kv_length));
}

int64_t SumOfBytes(const std::vector<RingMessage>& messages) {
  int64_t bytes = 0;
  for (const RingMessage& message : messages) bytes += message.bytes;
  return bytes;
}

}  // namespace

// Builds a schedule: first the turns, then the messages between them.
class RingPlanner {
 public:
  explicit RingPlanner(const RingProblem& problem) {
    schedule_.problem_ = problem;
    const DeviceMesh& mesh = problem.q.mesh();
    for (const int rank : mesh.Group(mesh.RankOf(0), problem.axes)) {
      const auto coordinate = mesh.Coordinate(rank);
      schedule_.q_.push_back(
          DimRegion(problem.q, 0, problem.q_length, coordinate).Shifted(problem.q_start));
      schedule_.kv_.push_back(
          DimRegion(problem.kv, 0, problem.kv_length, coordinate).Shifted(problem.kv_start));
    }
    ring_size_ = schedule_.ring_size();
    outer_ = problem.axes.size() == 2 ? mesh.axis_size(problem.axes[0]) : 1;
    if (outer_ == ring_size_) outer_ = 1;  // inner rings of one rank: the outer one is the ring
    inner_ = ring_size_ / outer_;
    schedule_.outer_size_ = outer_;
  }

  RingSchedule Plan() && {
    step_of_hop_.assign(ring_size_, -1);
    works_.assign(ring_size_ * ring_size_, false);
    for (int hop = 0; hop < ring_size_; ++hop) AddStep(hop);
    for (const int hop : KeptHops()) {
      for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
        const int block = SourceOf(ring_rank, hop);
        if (!Works(ring_rank, block)) continue;
        if (hop > 0) FetchBlock(ring_rank, block, hop);
        SendGradient(ring_rank, block, hop);
      }
    }
    return std::move(schedule_);
  }

 private:
  int RingRankAt(int outer, int inner) const {
    return (outer + outer_) % outer_ * inner_ + (inner + inner_) % inner_;
  }
  int OuterOf(int ring_rank) const { return ring_rank / inner_; }
  int InnerOf(int ring_rank) const { return ring_rank % inner_; }
  int SourceOf(int ring_rank, int hop) const {
    return RingRankAt(OuterOf(ring_rank) - hop / inner_, InnerOf(ring_rank) - hop % inner_);
  }
  bool Works(int ring_rank, int block) const { return works_[ring_rank * ring_size_ + block]; }

  std::vector<int> KeptHops() const {
    std::vector<int> hops;
    for (const RingStep& step : schedule_.steps_) hops.push_back(step.hop);
    return hops;
  }

  void AddStep(int hop) {
    RingStep step = {hop, std::vector<RingTurn>(ring_size_)};
    bool any = hop == 0;
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      RingTurn& turn = step.turns[ring_rank];
      turn.source = SourceOf(ring_rank, hop);
      const AttentionMask& mask = schedule_.problem_.mask;
      const IndexSet &q = schedule_.q_[ring_rank], &kv = schedule_.kv_[turn.source];
      turn.block_case = mask.Classify(q, kv);
      turn.work = mask.Count(q, kv);
      works_[ring_rank * ring_size_ + turn.source] = turn.work > 0;
      any = any || turn.work > 0;
    }
    if (!any) return;
    step_of_hop_[hop] = static_cast<int>(schedule_.steps_.size());
    schedule_.steps_.push_back(std::move(step));
  }

  // The block comes from the ring rank that had it before, if that one worked on it, else from its
  // owner.
  void FetchBlock(int ring_rank, int block, int hop) {
    const bool starts_ring = hop % inner_ == 0;
    const int before = starts_ring ? RingRankAt(OuterOf(ring_rank) - 1, InnerOf(ring_rank))
                                   : RingRankAt(OuterOf(ring_rank), InnerOf(ring_rank) - 1);
    if (Works(before, block)) {
      AddBlock(step_of_hop_[starts_ring ? hop - inner_ : hop - 1], before, ring_rank, block);
    } else {
      AddBlock(step_of_hop_[hop] - 1, block, ring_rank, block);
    }
  }

  // The gradient goes to the ring rank that works on the block at the next hop, if any, else home.
  void SendGradient(int ring_rank, int block, int hop) {
    const bool ends_ring = (hop + 1) % inner_ == 0;
    const int next = RingRankAt(OuterOf(ring_rank) + (ends_ring ? 1 : 0), InnerOf(ring_rank) + 1);
    const bool goes_on = hop + 1 < ring_size_ && Works(next, block);
    const int to = goes_on ? next : block;
    if (to != ring_rank) AddGradient(step_of_hop_[hop], ring_rank, to, block);
  }

  void AddBlock(int step, int from, int to, int block) {
    const bool crosses = OuterOf(from) != OuterOf(to);
    const int64_t bytes = schedule_.BlockBytes(block);
    std::vector<RingTurn>& turns = schedule_.steps_[step].turns;
    turns[from].sends.push_back({to, block, bytes, crosses});
    turns[to].receives.push_back({from, block, bytes, crosses});
  }
  void AddGradient(int step, int from, int to, int block) {
    const bool crosses = OuterOf(from) != OuterOf(to);
    const int64_t bytes = schedule_.GradientBytes(block);
    std::vector<RingTurn>& turns = schedule_.steps_[step].turns;
    turns[from].gradient_sends.push_back({to, block, bytes, crosses});
    turns[to].gradient_receives.push_back({from, block, bytes, crosses});
  }

  RingSchedule schedule_;
  int ring_size_ = 0, outer_ = 1, inner_ = 1;
  std::vector<int> step_of_hop_;  // -1: left out
  std::vector<bool> works_;       // by ring rank, then block
};

absl::StatusOr<RingSchedule> RingSchedule::Create(const RingProblem& problem) {
  DT_RETURN_IF_ERROR(Check(problem));
  return RingPlanner(problem).Plan();
}

int64_t RingSchedule::BlockBytes(int block) const {
  const RingProblem& p = problem_;
  return 2 * SizeOf(p.dtype) * p.batch * kv_[block].size() * p.kv_heads * p.head_dim;
}

int64_t RingSchedule::GradientBytes(int block) const {
  return BlockBytes(block) / SizeOf(problem_.dtype) * SizeOf(AccumulatorOf(problem_.dtype));
}

int64_t RingSchedule::ForwardBytes(int ring_rank) const {
  int64_t bytes = 0;
  for (const RingStep& step : steps_) bytes += SumOfBytes(step.turns[ring_rank].sends);
  return bytes;
}

int64_t RingSchedule::BackwardBytes(int ring_rank) const {
  int64_t bytes = ForwardBytes(ring_rank);
  for (const RingStep& step : steps_) bytes += SumOfBytes(step.turns[ring_rank].gradient_sends);
  return bytes;
}

std::vector<RingLink> RingSchedule::Links() const {
  std::vector<RingLink> used;
  for (int from = 0; from < ring_size(); ++from) {
    std::vector<RingLink> links(ring_size());
    for (const RingStep& step : steps_) {
      for (const RingMessage& m : step.turns[from].sends) {
        links[m.peer].forward_bytes += m.bytes;
        links[m.peer].backward_bytes += m.bytes;
      }
      for (const RingMessage& m : step.turns[from].gradient_sends) {
        links[m.peer].backward_bytes += m.bytes;
      }
    }
    for (int to = 0; to < ring_size(); ++to) {
      links[to].from = from, links[to].to = to;
      if (links[to].backward_bytes > 0) used.push_back(links[to]);
    }
  }
  return used;
}

int RingSchedule::CrossingBlocks() const {
  int crossing = 0;
  for (const RingStep& step : steps_) {
    for (const RingTurn& turn : step.turns) {
      for (const RingMessage& message : turn.sends) crossing += message.crosses;
    }
  }
  return crossing;
}

int RingSchedule::CrossingGradients() const {
  int crossing = 0;
  for (const RingStep& step : steps_) {
    for (const RingTurn& turn : step.turns) {
      for (const RingMessage& message : turn.gradient_sends) crossing += message.crosses;
    }
  }
  return crossing;
}

double RingSchedule::Balance() const {
  // Uses integers: sums of doubles are rounded, each differently, and their quotient may exceed 1.
  absl::uint128 total = 0, slowest = 0;
  for (const RingStep& step : steps_) {
    int64_t largest = 0;
    for (const RingTurn& turn : step.turns) {
      total += turn.work;
      largest = std::max(largest, turn.work);
    }
    slowest += largest;
  }
  if (slowest == 0) return 1;
  return static_cast<double>(total) / static_cast<double>(ring_size() * slowest);
}

int64_t RingSchedule::OwnBytes() const {
  size_t turns = 0, messages = 0;
  for (const RingStep& step : steps_) {
    turns += step.turns.size();
    for (const RingTurn& turn : step.turns) {
      for (const auto* list :
           {&turn.sends, &turn.receives, &turn.gradient_sends, &turn.gradient_receives}) {
        messages += list->capacity();
      }
    }
  }
  const size_t bytes = turns * sizeof(RingTurn) + messages * sizeof(RingMessage) +
                       (q_.size() + kv_.size()) * sizeof(IndexSet) +
                       problem_.mask.starts().size() * sizeof(int64_t);
  return static_cast<int64_t>(bytes);
}

// One block is worked on while the next one arrives. A double ring holds one more, which has
// arrived for the next inner ring.
int RingSchedule::KvBuffers(int ring_rank) const {
  const int most = outer_size_ == 1 ? 2 : 3;
  int received = 0;
  for (const RingStep& step : steps_) {
    received += static_cast<int>(step.turns[ring_rank].receives.size());
  }
  return std::min(received, most);
}

}  // namespace dtensor
