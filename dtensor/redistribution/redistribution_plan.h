// RedistributionPlan: how a tensor gets from one layout to another, as an immutable value.
//
// Any redistribution is: a free local slice, then at most one exchange X that also reduces, then at
// most one all-gather G. There is no code per pair of placements:
//
//   X    Every rank receives the boxes it needs, straight into the result's memory. When no partial
//        axis is reduced, it needs what the target layout gives it, each element from the one
//        holder that shares its coordinate on the axes that do not shard the source; what it holds
//        itself costs nothing.
//   X,G  When terms must be reduced and several ranks need the result, each element has one owner
//        among these: on an axis that shards the source the owner has the coordinate of the
//        element's holder, and on the others the ranks share the work evenly, by place (a pivot,
//        finer than the target). X reduces at the owners, G gathers from them; the pivot lives
//        inside the result's memory. Per element that is (p-1) + (w-1) messages for p terms and w
//        ranks in need, the lower bound (and one more where no rank in need holds a term). Where
//        reducing at every rank in need moves no more than that (p = w = 2), X alone does it.
//
//   Options may trade: all ranks in need may share the work, which evens it out further (busiest),
//   each may reduce for itself (latency), and G may cross slow axes first and alone (links).
//
//   An axis that becomes Partial costs nothing by itself: the holder keeps its elements (of
//   replicas, coordinate 0; or all share what moves along other axes), others hold the identity.
//   Only P(avg) is like Replicate: the average of equal terms is the term (but for a rounding of
//   their sum), and no term has to be scaled. An axis that goes from P(sum) to P(avg), or back,
//   keeps its terms, scaled where they lie.
//
// A plan says nothing about one rank; Receives() gives a rank's boxes. All of it is a pure function
// of (from, to, shape, dtype, options): equal on every rank. Proofs: docs/redistribution.md.
#ifndef DTENSOR_REDISTRIBUTION_REDISTRIBUTION_PLAN_H_
#define DTENSOR_REDISTRIBUTION_REDISTRIBUTION_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class CrossMeshTransition;
class SameMeshTransition;

// What a plan minimizes. Reduced elements have the same bits whichever is chosen; if the result is
// Partial, the choice may affect which rank holds which term.
enum class RedistributionObjective : uint8_t {
  kTotal,    // bytes summed over ranks: the bound; then the busiest rank's, or the predicted time
             // if links differ
  kBusiest,  // bytes that the busiest rank receives; then the total
  kLatency   // predicted time: tiny tensors are reduced by every rank for itself
};
absl::string_view ToString(RedistributionObjective objective);  // "total", "busiest", "latency"
absl::StatusOr<RedistributionObjective> ParseRedistributionObjective(
    absl::string_view text);  // Errors: kInvalidArgument

struct RedistributionOptions {
  RedistributionObjective objective = RedistributionObjective::kTotal;
  // The most bytes that a rank may allocate for the redistribution, including its result; -1: no
  // cap. A plan allocates its result (except for a view or an in-place all-reduce) and, if it has
  // rounds, the transport's staging (staging_bytes). Not counted: the copy that an in-place
  // redistribution makes first if aliases or the tape still refer to the source's memory.
  int64_t max_extra_bytes = -1;
  // The source may be overwritten: an all-reduce then needs no memory. Its result takes the
  // source's place, and each element has one owner even where every rank reducing for itself would
  // move no more.
  bool in_place = false;
  // Allows the transport's own reduce-scatter for sums of floats, in rounds where every rank
  // receives the same amount (RedistributionRound::native). It adds in an order of its own and may
  // round to the element type after each addition. Only NCCL has one (processes with a GPU each);
  // other transports ignore this. Ranks that receive an element from the same reducing group get
  // the same bits; replicas reduced by another group, another transport or another run may differ
  // in the last bits.
  bool sums_in_any_order = false;
  // The result's type; the source's if unset. Elements are converted where they are received, and
  // sums rounded once. Between f32, bf16 and f16 alone: cast others before or after.
  std::optional<DType> dtype = {};
  // What the transport sets aside to exchange anything (Communicator::staging_bytes): part of what
  // a plan with rounds allocates. A Context says it; so it is the same on all ranks.
  int64_t staging_bytes = 0;
  CostModel links = {};
  friend bool operator==(const RedistributionOptions&, const RedistributionOptions&) = default;
};

// One round of communication.
struct RedistributionRound {
  CollectiveKind kind = CollectiveKind::kExchange;  // what it does
  AxisList axes;            // the mesh axes whose ranks talk to each other, ascending
  bool across = false;      // X between two meshes: all ranks of both talk, and axes is empty
  bool from_source = true;  // X reads the source; G reads the result's own memory on the peers
  bool pivot = false;       // X: the rank receives its pivot region only
  bool reduces = false;     // X: several terms per box
  bool continues = false;   // G of an all-reduce: counted with the X before it, as one collective
  int index = 0;            // of G, where it takes several rounds
  // A backend may call its own collective of this kind: ranks of a group receive as much from each
  // peer as from every other, and as much as each other, of one type. Follows from the layouts and
  // the shape: alike on all ranks.
  bool native = false;
  // The options allow it, it is native, adds floats, and each sum is one rank's alone.
  bool sums_in_any_order = false;
};

// Bytes that ranks receive from others, in one round or in all.
struct RedistributionBytes {
  int64_t total = 0;    // summed over ranks
  int64_t busiest = 0;  // of the rank that receives most
};

class RedistributionPlan {
 public:
  // The layouts may be on two meshes, of other ranks or another shape: then every byte crosses
  // once, and is spread inside the target's mesh.
  // Errors: kInvalidArgument, naming both layouts and the shape, for unlike ranks,
  // partial ops that cannot turn into each other (P(max) to P(sum)) on an axis that stays partial,
  // avg of integers or bool, sum
  // or product of bool, types that do not convert on the way; kResourceExhausted when some rank's
  // result is larger than max_extra_bytes; kInvalidArgument where ranks would have to receive 2^63
  // bytes or more together, which an int64 does not count.
  static absl::StatusOr<RedistributionPlan> Create(const Layout& from, const Layout& to,
                                                   absl::Span<const int64_t> shape, DType dtype,
                                                   const RedistributionOptions& options = {});

  const Layout& from() const { return from_; }
  const Layout& to() const { return to_; }
  const Dims& shape() const { return shape_; }
  DType dtype() const { return dtype_; }  // of the source
  DType result_dtype() const { return result_dtype_; }

  // Zero to two rounds; where links differ in speed, G may take one for each speed. None: a rank's
  // result is made of its own elements (a view, where strides allow, if is_view(); otherwise a
  // local copy, with `fills_identity`).
  absl::Span<const RedistributionRound> rounds() const { return rounds_; }
  bool moves_nothing() const { return rounds_.empty(); }
  // The result is exactly a box of the source's local tensor: storage may be shared.
  bool is_view() const { return is_view_; }
  // The result takes the source's place in memory: options.in_place, and what is reduced stays
  // where it is.
  bool in_place() const { return in_place_; }
  // Elements of the result that no box covers are the identity of to().partial_op() (R -> P, S ->
  // P).
  bool fills_identity() const { return fills_identity_; }
  // Of the reduction, kSum if none; kAvg where some of the reduced axes average.
  ReduceOp op() const { return op_; }
  // What X, or a plan without rounds, multiplies elements by: 1 over the number of terms that are
  // averaged; and where an axis of n ranks stays partial, n from P(sum) to P(avg), 1/n for the
  // reverse.
  double scale() const { return scale_; }

  // All ranks of the mesh, or of both meshes, ascending.
  std::vector<int> Ranks() const;
  // The boxes that `rank` receives in round s, disjoint. Its own
  // are among them, but in G, where they lie in place. With no rounds, s = 0 gives the local boxes.
  // Terms of a box are listed in ascending coordinate order. None for a rank that is on no mesh.
  std::vector<ReceiveBox> Receives(int s, int rank) const;

  // Bytes that `rank` receives from others, in round s and in all. X moves elements of the source's
  // type, G of the result's.
  int64_t BytesReceived(int s, int rank) const;
  int64_t BytesReceived(int rank) const;
  // Of all ranks, in round s and in all rounds. These, and what follows, walk the ranks: about a
  // microsecond each, and more where each has many peers: between two meshes as long as all pairs
  // of their ranks take.
  RedistributionBytes Bytes(int s) const;
  RedistributionBytes Bytes() const;
  // The least that any endpoint-only algorithm can move in total, and on its busiest rank:
  // docs/redistribution.md. Where the type changes, complete elements count in the smaller of the
  // two, and a plan may be above the bound: it converts where elements are received.
  RedistributionBytes Bound() const;
  // Of the rank that has most: what the redistribution allocates, the transport's staging
  // included; and that with the source.
  int64_t ExtraBytes() const;
  int64_t PeakBytes() const;
  // The rounds one after the other, each as long as its slowest rank takes: a latency, what comes
  // over its links, what it copies and reduces. Looks at up to eight ranks of the target's mesh,
  // from its first to its last; at fewer of more than 2^17.
  double PredictedSeconds(const CostModel& links) const;

  // Proves the plan on the region algebra: on every rank each needed element is written exactly
  // once per round and holds each contribution exactly once at the end. O(ranks * elements): for
  // tests.
  absl::Status Verify() const;

  uint64_t digest() const { return digest_; }  // of (from, to, shape, dtype) and the choice made
  // "[tp] [] -> [] [], [8, 4] f32: all-gather(tp) 96 B": of each round what it is, its axes, and
  // the bytes that the busiest rank receives (walks all ranks).
  std::string ToString() const;

 private:
  friend class RedistributionPlanTestPeer;  // plants lies, for Verify() to find
  RedistributionPlan() = default;
  void Choose(SameMeshTransition transition);
  void Choose(CrossMeshTransition transition);
  void SetScale();
  void ReduceInPlace();
  int64_t KeptTerms() const;        // coordinates on the axes that stay partial
  absl::int128 LeastBytes() const;  // Bound().total
  int64_t MostLacking() const;
  int64_t MostLackingAcross() const;
  absl::Status CheckTotal() const;
  absl::Status Improve(const RedistributionOptions& options);
  Layout from_, to_;
  Dims shape_;
  DType dtype_ = DType::kF32, result_dtype_ = DType::kF32;
  std::vector<RedistributionRound> rounds_;
  bool is_view_ = false, in_place_ = false, fills_identity_ = false;
  bool allows_any_order_ = false;
  ReduceOp op_ = ReduceOp::kSum;
  double scale_ = 1;
  int64_t staging_bytes_ = 0;  // 0 without rounds
  uint64_t digest_ = 0;
  std::shared_ptr<const SameMeshTransition> same_mesh_;    // on one mesh
  std::shared_ptr<const CrossMeshTransition> cross_mesh_;  // between two
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_REDISTRIBUTION_PLAN_H_
