// RedistributionPlan::Verify: runs the plan on sets of terms instead of numbers.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Which terms each element of a rank's result holds: one bit per term, `words` words per element.
struct Result {
  Region region;
  Dims shape;
  std::vector<uint64_t> terms;
};

bool HasElements(const Region& region) {
  return absl::c_none_of(region, [](const IndexSet& set) { return set.empty(); });
}

// For plans in place: a read of an element of a peer's source, and where the reader puts it.
struct Read {
  int peer, reader;
  int64_t src, dst;
};

class Verifier {
 public:
  explicit Verifier(const RedistributionPlan& plan)
      : plan_(plan), mesh_(plan.from().mesh()), target_mesh_(plan.to().mesh()) {
    const bool one_mesh = mesh_ == target_mesh_;
    for (int axis : plan.from().partial_axes()) {
      const bool stays = one_mesh && plan.to().use(axis) == Layout::AxisUse::kPartial;
      (stays ? kept_ : reduced_).push_back(axis);
    }
    for (int axis : plan.to().partial_axes()) {
      const bool kept = one_mesh && absl::c_linear_search(kept_, axis);
      if (!kept && plan.to().partial_op(axis) != ReduceOp::kAvg) created_.push_back(axis);
    }
    for (int axis : reduced_) terms_ *= mesh_.axis_size(axis);
    words_ = (terms_ + 63) / 64;
    ranks_ = plan.Ranks();
    sources_.resize(ranks_.back() + 1);
    results_.resize(ranks_.back() + 1);
    for (int rank : ranks_) {
      if (mesh_.Contains(rank)) {
        sources_[rank] = Regions(plan.from(), plan.shape(), mesh_.Coordinate(rank));
      }
      if (!target_mesh_.Contains(rank)) continue;
      Result& result = results_[rank];
      result.region = Regions(plan.to(), plan.shape(), target_mesh_.Coordinate(rank));
      for (const IndexSet& set : result.region) result.shape.push_back(set.size());
      result.terms.assign(NumElements(result.shape) * words_, 0);
    }
  }

  absl::Status Run() {
    if (plan_.in_place()) DT_RETURN_IF_ERROR(CheckPlace());
    const int rounds = std::max<int>(1, static_cast<int>(plan_.rounds().size()));
    for (int s = 0; s < rounds; ++s) {
      before_ = results_;
      for (int rank : ranks_) DT_RETURN_IF_ERROR(RunRound(s, rank));
      if (!plan_.moves_nothing() && plan_.rounds()[s].native) DT_RETURN_IF_ERROR(CheckNative(s));
      DT_RETURN_IF_ERROR(CheckReads());
    }
    return CheckComplete();
  }

 private:
  absl::Status Wrong(absl::string_view what, int rank) const {
    return absl::InternalError(absl::StrCat(plan_.ToString(), ": ", what, " on rank ", rank));
  }

  // Checks that the result can take the source's memory, element for element.
  absl::Status CheckPlace() const {
    if (plan_.dtype() != plan_.result_dtype()) return Wrong("in place, of another type", ranks_[0]);
    for (int rank : ranks_) {
      const Region &source = sources_[rank], &result = results_[rank].region;
      if (source != result && (HasElements(source) || HasElements(result))) {
        return Wrong("in place, and the result is not the source's region", rank);
      }
    }
    return absl::OkStatus();
  }

  // Checks that what ranks read from sources in this round is not overwritten by a result.
  absl::Status CheckReads() {
    for (const Read& read : reads_) {
      const bool is_place = read.peer == read.reader && read.src == read.dst;
      if (!is_place && IsComplete(&results_[read.peer].terms[read.src * words_])) {
        return Wrong("what a peer reads may be overwritten", read.peer);
      }
    }
    reads_.clear();
    return absl::OkStatus();
  }

  bool FromSource(int s) const { return plan_.moves_nothing() || plan_.rounds()[s].from_source; }

  absl::Status RunRound(int s, int rank) {
    const bool from_source = FromSource(s);
    const int64_t size = SizeOf(from_source ? plan_.dtype() : plan_.result_dtype());
    const std::vector<ReceiveBox> boxes = plan_.Receives(s, rank);
    if (plan_.is_view() && boxes.size() > 1) return Wrong("a view is not one box", rank);
    if (plan_.is_view() && plan_.scale() != 1) return Wrong("a view is scaled", rank);
    int64_t bytes = 0;
    for (const ReceiveBox& box : boxes) {
      const auto strided = [](const MatchedRun& piece) { return piece.count > 1; };
      if (plan_.is_view() && absl::c_any_of(box.dims, strided)) {
        return Wrong("a view has strides", rank);
      }
      if (box.dims.size() != plan_.shape().size())
        return Wrong("a box has not as many dimensions", rank);
      for (int peer : box.peers) {
        if (peer != rank) bytes += box.elements() * size;
        DT_RETURN_IF_ERROR(CheckPeer(s, rank, peer));
      }
      DT_RETURN_IF_ERROR(RunBox(box, from_source, rank));
    }
    if (bytes != plan_.BytesReceived(s, rank))
      return Wrong("the bytes of the boxes are not BytesReceived", rank);
    return absl::OkStatus();
  }

  // Checks that ranks of a group all receive the same amount, equal parts from each peer. If they
  // reduce in one round, all must reduce the same elements, or each its own.
  absl::Status CheckNative(int s) const {
    for (int rank : ranks_) {
      const std::vector<int> group = mesh_.Group(rank, plan_.rounds()[s].axes);
      std::map<int, int64_t> received;
      for (int peer : group) received[peer] = 0;
      for (const ReceiveBox& box : plan_.Receives(s, rank)) {
        for (int peer : box.peers) received[peer] += box.elements();
      }
      received.erase(rank);
      const RedistributionRound& round = plan_.rounds()[s];
      if (round.reduces && !round.pivot) {
        const bool same = round.kind == CollectiveKind::kAllReduce;
        for (const auto& [peer, elements] : received) {
          if ((results_[peer].region == results_[rank].region) != same)
            return Wrong("a native round is not what its name says", rank);
        }
      }
      const int64_t total = plan_.BytesReceived(s, rank);
      for (const auto& [peer, elements] : received) {
        if (elements != received.begin()->second || plan_.BytesReceived(s, peer) != total)
          return Wrong("a native round is uneven", rank);
      }
    }
    return absl::OkStatus();
  }

  // Checks that peers differ only along the round's axes, and that terms which stay partial are not
  // mixed.
  absl::Status CheckPeer(int s, int rank, int peer) const {
    if (!(FromSource(s) ? mesh_ : target_mesh_).Contains(peer)) {
      return Wrong("a peer does not exist", rank);
    }
    if (!(mesh_ == target_mesh_)) return absl::OkStatus();  // the round names no axes
    const auto mine = mesh_.Coordinate(rank), theirs = mesh_.Coordinate(peer);
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mine[axis] == theirs[axis]) continue;
      if (absl::c_linear_search(kept_, axis))
        return Wrong("terms of an axis that stays partial mix", rank);
      if (plan_.moves_nothing() || !absl::c_linear_search(plan_.rounds()[s].axes, axis)) {
        return Wrong("a peer lies across an axis that the round does not name", rank);
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunBox(const ReceiveBox& box, bool from_source, int rank) {
    Dims index(box.dims.size(), 0), src(box.dims.size()), dst(box.dims.size());
    for (int64_t left = box.elements(); left > 0; --left) {
      for (size_t d = 0; d < box.dims.size(); ++d) {
        const MatchedRun& piece = box.dims[d];
        const int64_t j = index[d] / piece.length, i = index[d] % piece.length;
        src[d] = piece.src + j * piece.src_stride + i;
        dst[d] = piece.dst + j * piece.dst_stride + i;
      }
      DT_RETURN_IF_ERROR(Receive(box, from_source, rank, src, dst));
      for (size_t d = box.dims.size(); d-- > 0 && ++index[d] == box.dims[d].size();) index[d] = 0;
    }
    return absl::OkStatus();
  }

  absl::Status Receive(const ReceiveBox& box, bool from_source, int rank,
                       absl::Span<const int64_t> src, absl::Span<const int64_t> dst) {
    Result& result = results_[rank];
    if (!Inside(result.region, dst)) return Wrong("a box lies outside the result", rank);
    uint64_t* terms = &result.terms[Offset(result.shape, dst) * words_];
    if (std::any_of(terms, terms + words_, [](uint64_t word) { return word != 0; })) {
      return Wrong("an element is written twice", rank);
    }
    for (int peer : box.peers) {
      const Region& theirs = from_source ? sources_[peer] : results_[peer].region;
      if (!Inside(theirs, src)) return Wrong("a box lies outside what a peer holds", rank);
      for (size_t d = 0; d < src.size(); ++d) {
        if (theirs[d].At(src[d]) != result.region[d].At(dst[d]))
          return Wrong("an element is misplaced", rank);
      }
      if (from_source && plan_.in_place()) {
        reads_.push_back({peer, rank, Offset(result.shape, src), Offset(result.shape, dst)});
      }
      for (int64_t w = 0; w < words_; ++w) {
        const uint64_t more =
            from_source ? TermOf(peer, w)
                        : before_[peer].terms[Offset(before_[peer].shape, src) * words_ + w];
        if ((terms[w] & more) != 0) return Wrong("a term is counted twice", rank);
        terms[w] |= more;
      }
    }
    if (!IsComplete(terms)) return Wrong("an element lacks a term", rank);
    return absl::OkStatus();
  }

  uint64_t TermOf(int peer, int64_t word) const {
    const auto coordinate = mesh_.Coordinate(peer);
    int64_t term = 0;
    for (int axis : reduced_) term = term * mesh_.axis_size(axis) + coordinate[axis];
    return term / 64 == word ? uint64_t{1} << (term % 64) : 0;
  }

  bool IsComplete(const uint64_t* terms) const {
    for (int64_t term = 0; term < terms_; ++term) {
      if ((terms[term / 64] >> (term % 64) & 1) == 0) return false;
    }
    return true;
  }

  static bool Inside(const Region& region, absl::Span<const int64_t> position) {
    for (size_t d = 0; d < region.size(); ++d) {
      if (position[d] < 0 || position[d] >= region[d].size()) return false;
    }
    return true;
  }

  static int64_t Offset(const Dims& shape, absl::Span<const int64_t> position) {
    int64_t offset = 0;
    for (size_t d = 0; d < shape.size(); ++d) offset = offset * shape[d] + position[d];
    return offset;
  }

  // Checks that among ranks that differ only on axes that become partial, each element is complete
  // on exactly one rank; on the others it must be the identity.
  absl::Status CheckComplete() const {
    for (int rank : ranks_) {
      if (!target_mesh_.Contains(rank)) continue;
      const std::vector<int> group = target_mesh_.Group(rank, created_);
      for (int64_t i = 0; i < NumElements(results_[rank].shape); ++i) {
        int complete = 0;
        for (int other : group) complete += IsComplete(&results_[other].terms[i * words_]);
        if (complete != 1)
          return Wrong(absl::StrCat("element ", i, " is complete ", complete, " times"), rank);
      }
    }
    return absl::OkStatus();
  }

  const RedistributionPlan& plan_;
  const DeviceMesh &mesh_, &target_mesh_;
  std::vector<int> ranks_;
  AxisList reduced_, kept_, created_;
  int64_t terms_ = 1, words_ = 1;
  std::vector<Region> sources_;  // by rank
  std::vector<Result> results_, before_;
  std::vector<Read> reads_;  // in this round, if the plan is in place
};

}  // namespace

absl::Status RedistributionPlan::Verify() const { return Verifier(*this).Run(); }

}  // namespace dtensor
