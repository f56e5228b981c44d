// RedistributionPlan: how a tensor gets from one layout to another, as an immutable value.
//
// Any redistribution is: a free local slice, then at most one exchange X that also reduces, then at
// most one all-gather G. There is no code per pair of placements:
//
//   X    Every rank receives the boxes it needs, straight into the result's memory. If no partial
//        axis is reduced, a rank needs its region of the target layout. It receives each element
//        from the one holder that has the rank's own coordinate on the axes that do not shard the
//        source. Elements that it holds itself cost nothing.
//   X,G  If terms must be reduced and several ranks need the result, each element has one owner
//        among these: on an axis that shards the source the owner has the coordinate of the
//        element's holder; along the other axes the ranks share the elements evenly, by position.
//        (What a rank owns is its pivot region; it may be finer than the target.) X reduces at the
//        owners, G gathers from them; the pivot region is part of the result's memory. Per element
//        that is (p-1) + (w-1) messages for p terms and w ranks in need, the lower bound (and one
//        more if no rank in need holds a term). If reducing at every rank in need moves no more
//        than that (p = w = 2), X alone does it.
//
//   Options may choose differently: all ranks in need share the work, which balances it better
//   (busiest); each reduces for itself (latency); G crosses slow axes first, in rounds of their own
//   (links).
//
//   Making an axis Partial does not move anything: the holder keeps its elements (among replicas,
//   coordinate 0; or all share what moves along other axes), and other ranks hold the identity.
//   Only P(avg) is treated like Replicate: the average of equal terms is the term (except for a
//   rounding of their sum), so no term has to be scaled. An axis that goes from P(sum) to P(avg),
//   or back, keeps its terms, which are scaled locally.
//
// A plan is the same for all ranks; Receives() gives one rank's boxes. It is a pure function
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
  // Allows overwriting the source, so that an all-reduce needs no memory: the result takes the
  // source's place. Each element then has one owner, even if it would move no more bytes to let
  // every rank reduce for itself.
  bool in_place = false;
  // Allows the transport's own reduce-scatter for sums of floats, in rounds where every rank
  // receives the same amount (RedistributionRound::native). It adds in an order of its own and may
  // round to the element type after each addition. Only NCCL has one (processes with a GPU each);
  // other transports ignore this. Ranks that receive an element from the same reducing group get
  // the same bits; replicas reduced by another group, another transport or another run may differ
  // in the last bits.
  bool sums_in_any_order = false;
  // The result's type; the source's if unset. Elements are converted when they are received, and
  // sums are rounded once. Only between f32, bf16 and f16: cast other types before or after.
  std::optional<DType> dtype = {};
  // The size of the transport's staging buffers (Communicator::staging_bytes), which counts as
  // allocated by a plan with rounds. The Context sets it, to the same value on all ranks.
  int64_t staging_bytes = 0;
  CostModel links = {};
  friend bool operator==(const RedistributionOptions&, const RedistributionOptions&) = default;
};

// One round of communication.
struct RedistributionRound {
  CollectiveKind kind = CollectiveKind::kExchange;  // which collective it is
  AxisList axes;            // the mesh axes along which ranks communicate, ascending
  bool across = false;      // X between two meshes: all ranks of both talk, and axes is empty
  bool from_source = true;  // X reads the source; G reads the result's own memory on the peers
  bool pivot = false;       // X: a rank receives only the elements that it owns
  bool reduces = false;     // X: several terms per box
  bool continues = false;   // G of an all-reduce: counted with the X before it, as one collective
  int index = 0;            // which round of G it is, if G takes several
  // Whether a backend may call its own collective of this kind: all ranks of a group receive the
  // same amount, equal parts from each peer, without a change of type. Follows from the layouts and
  // the shape, so it is the same on all ranks.
  bool native = false;
  // Whether RedistributionOptions::sums_in_any_order applies: the options allow it, the round is
  // native, it adds floats, and each sum is computed on one rank only.
  bool sums_in_any_order = false;
};

// Bytes that ranks receive from others, in one round or in all rounds.
struct RedistributionBytes {
  int64_t total = 0;    // sum over ranks
  int64_t busiest = 0;  // of the rank that receives most
};

class RedistributionPlan {
 public:
  // The layouts may be on two meshes, with other ranks or another shape: then every byte crosses
  // between them once, and is distributed inside the target's mesh.
  // Errors: kInvalidArgument, naming both layouts and the shape, for different numbers of
  // dimensions, partial ops that cannot become each other (P(max) to P(sum)) on an axis that stays
  // partial, avg of integers or bool, sum or product of bool, types that cannot be converted on the
  // way, and if all ranks together would have to receive 2^63 bytes or more, which an int64 cannot
  // count; kInvalidArgument for `links` that are not valid; kResourceExhausted if some rank would
  // have to allocate more than max_extra_bytes.
  static absl::StatusOr<RedistributionPlan> Create(const Layout& from, const Layout& to,
                                                   absl::Span<const int64_t> shape, DType dtype,
                                                   const RedistributionOptions& options = {});

  const Layout& from() const { return from_; }
  const Layout& to() const { return to_; }
  const Dims& shape() const { return shape_; }
  DType dtype() const { return dtype_; }  // of the source
  DType result_dtype() const { return result_dtype_; }

  // Zero to two rounds; if links differ in speed, G may take one round for each speed. If there are
  // none, a rank's result consists of its own elements (a view if is_view() and strides allow it;
  // otherwise a local copy, see fills_identity()).
  absl::Span<const RedistributionRound> rounds() const { return rounds_; }
  bool moves_nothing() const { return rounds_.empty(); }
  // The result is exactly a box of the source's local tensor: storage may be shared.
  bool is_view() const { return is_view_; }
  // Whether the result takes the source's place in memory: options.in_place is set, and all regions
  // stay the same.
  bool in_place() const { return in_place_; }
  // Whether elements of the result that no box covers are filled with the identity of
  // to().partial_op() (R -> P, S -> P).
  bool fills_identity() const { return fills_identity_; }
  // The op of the reduction; kSum if there is none; kAvg if some of the reduced axes average.
  ReduceOp op() const { return op_; }
  // The factor by which X, or a plan without rounds, multiplies elements: 1 over the number of
  // terms that are averaged. An axis of n ranks that stays partial contributes n if it goes from
  // P(sum) to P(avg), and 1/n for the reverse.
  double scale() const { return scale_; }

  // All ranks of the mesh, or of both meshes, ascending.
  std::vector<int> Ranks() const;
  // The boxes that `rank` receives in round s; they are disjoint. X includes boxes from itself; G
  // does not, as these elements are in place already. Without rounds, s = 0 gives the local boxes.
  // Terms of a box are listed in ascending coordinate order. A rank that is on no mesh has none.
  std::vector<ReceiveBox> Receives(int s, int rank) const;

  // Bytes that `rank` receives from others, in round s and in all rounds. X moves elements of the
  // source's type, G of the result's.
  int64_t BytesReceived(int s, int rank) const;
  int64_t BytesReceived(int rank) const;
  // The same for all ranks. These functions, and those below, visit every rank. That takes about a
  // microsecond per rank, more if ranks have many peers; between two meshes the time grows with the
  // number of pairs of their ranks.
  RedistributionBytes Bytes(int s) const;
  RedistributionBytes Bytes() const;
  // The least bytes that any algorithm can move, in total and on the busiest rank, if only ranks
  // combine terms (docs/redistribution.md). If the type changes, complete elements count with the
  // size of the smaller type. A plan may be above that, since it converts elements when they are
  // received.
  RedistributionBytes Bound() const;
  // The most that any rank allocates, including the transport's staging (ExtraBytes); the same plus
  // its source (PeakBytes).
  int64_t ExtraBytes() const;
  int64_t PeakBytes() const;
  // The sum over rounds of the time that the slowest rank takes: latency, transfers over its links,
  // copies and reductions. It looks at up to eight ranks, spread over the target's mesh; at fewer
  // if the mesh has more than 2^17 ranks.
  double PredictedSeconds(const CostModel& links) const;

  // Proves the plan by its regions: on every rank each needed element is written exactly once per
  // round, and at the end contains each contribution exactly once. O(ranks * elements): for tests.
  absl::Status Verify() const;

  uint64_t digest() const { return digest_; }  // of (from, to, shape, dtype) and the choice made
  // "[tp] [] -> [] [], [8, 4] f32: all-gather(tp) 96 B": for each round its kind, its axes, and the
  // bytes that the busiest rank receives (visits all ranks).
  std::string ToString() const;

 private:
  friend class RedistributionPlanTestPeer;  // plants errors, for Verify() to find
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
