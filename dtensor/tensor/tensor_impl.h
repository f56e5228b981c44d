// What is behind a DistributedTensor, and the tape. For dispatch, autograd and the factories only.
//
// Aliases and values (docs/architecture.md). Detach and the views of ops.h are aliases: what is
// written through one is seen through all, so writes are counted by storage (Tensor::version). The
// result of a redistribution is a value: where it shares memory with its source it has borrowed it
// (Tensor::Borrow). What a rank shares depends on strides, so nothing that communicates may ask for
// it; row_major, CopiedView and the versions of AliasRoot() are alike on all ranks.
#ifndef DTENSOR_TENSOR_TENSOR_IMPL_H_
#define DTENSOR_TENSOR_TENSOR_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

class LateGather;     // late_values.h
class LateValues;     // late_values.h
struct GatherMember;  // gather_group.h
struct Node;
struct OpDef;
struct Replay;  // replay.h
struct TensorImpl;
using TensorImplPtr = std::shared_ptr<TensorImpl>;

// Where a tensor's gradient goes: a recorded operator's result, a leaf, or (both null) nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;  // which result of node
  TensorImplPtr leaf;
  bool wanted() const { return node != nullptr || leaf != nullptr; }
  friend bool operator==(const Edge&, const Edge&) = default;
};

// An alias that strides may have made a copy, on this rank or on another: a Reshape of what is not
// row-major, and the views of it. Made again where `base` was written to since.
struct CopiedView {
  struct Step {
    DecisionPtr decision;
    CallValues values;
    int result;
  };
  Tensor base;
  std::vector<Step> steps;  // from base to here
  uint64_t version = 0;     // of base, when the view was made
};

// What Settle() has to look at. Most tensors have none of it.
struct Unsettled {
  std::shared_ptr<PendingRedistribution> pending;  // `local` is on its way,
  size_t pending_result = 0;                       // as this result
  std::shared_ptr<LateValues> late;                // `local` has these, once they are made
  std::unique_ptr<CopiedView> view;
  bool consumed = false;  // by a redistribution in place
};

struct TensorImpl {
  // To be read after Settle(). Goes last: its memory keeps what the others refer to (WorldParts).
  Tensor local;
  Context* context = nullptr;
  SpecPtr spec;
  Lineage lineage;                       // unknown until whoever makes the tensor says it
  std::unique_ptr<Unsettled> unsettled;  // may be null

  Edge edge;  // of a tensor that an operator or a redistribution made
  // The operator without a backward that ended the record of something that led here: without an
  // edge; or where that was floats made of floats, whose gradient would be lost without a word.
  const OpDef* stopped_by = nullptr;
  bool loses_gradient = false;  // the latter
  bool requires_grad = false;   // a leaf that wants a gradient
  bool pinned = false;
  uint8_t moves = 0;  // how many redistributions led here, each remembered by what the last made
  bool row_major = false;    // `local` is, on every rank
  bool is_expanded = false;  // an alias of fewer elements, or a part of one; so on every rank
  std::optional<DType> grad_dtype;  // of a leaf's gradient; unset: its own
  TensorImplPtr grad;
  // Of a leaf in a group, and of what ForUse() makes of it: operators save the leaf.
  std::shared_ptr<GatherMember> gather;

  // Of a product that was put off: its call, also when it is made. A reduce-scatter moves it in
  // chunks either way: one rank may have looked at its term, or written to what its product reads.
  DecisionPtr put_off;

  // Of what RedistributeForUse() gathered: operators save this in its place. Of the tensor that was
  // gathered, the same, so that all share it.
  TensorImplPtr source;
  uint64_t source_version = 0;  // of it, or of a group's leaf, when this was gathered of that

  // Redistributions of this tensor, which live with it. Leaves that want gradients and what is
  // pinned have none: parameters live on, and a gathered copy must not. So has what is kMostMoves
  // redistributions away from a tensor that none made, or that would keep all that follow. Which
  // there are is alike on all ranks, and so may not depend on what a program holds on one. The
  // first caller gets what is remembered itself, while nobody writes to it; whoever comes later, a
  // value that has borrowed from it.
  static constexpr int kMostMoves = 2;  // an edge's, and that for an operator behind it
  struct Remembered {
    const Spec* spec = nullptr;
    uint64_t version = 0;  // of AliasRoot()
    TensorImplPtr moved;
  };
  absl::InlinedVector<Remembered, 1> remembered;
  bool remembers() const { return !requires_grad && !pinned && moves < kMostMoves; }
  bool is_handed_out = false;  // remembered, and a user may write to it

  // Of a redistribution's result: a tensor with the same elements as long as neither was written
  // to, which remembers for both.
  TensorImplPtr twin;
  uint64_t twin_version = 0;
};

// An operand that is gathered again when backward needs it.
struct SavedSource {
  int operand;
  TensorImplPtr source;  // a leaf in a group; or an alias of its own (TensorImpl::source)
  uint64_t version = 0;  // of it, when the operand was read
};

// One recorded operator. Holds local tensors, not TensorImpls: what a tensor remembers is not kept
// alive.
struct Node {
  Node();
  ~Node();  // of a whole chain without recursion
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  uint64_t sequence = 0;
  DecisionPtr decision;
  CallValues values;            // of the call
  uint64_t lineage = 0;         // of the call
  const void* scope = nullptr;  // in which it was called (work_scope.h)
  // In place of a backward: of a Recompute(), whose first edges are those of its operands, and the
  // others those of leaves that it reads.
  std::unique_ptr<Replay> replay;
  bool consumed = false;               // by a Backward, which cleared what follows
  absl::InlinedVector<Edge, 3> edges;  // of the operands
  // Up to the last that backward reads; others among them are undefined.
  absl::InlinedVector<Tensor, 3> operands, results;
  // Of the operands, when they were read. `bases`: of those that had a CopiedView.
  absl::InlinedVector<uint64_t, 3> versions;
  std::vector<std::pair<int, Tensor>> bases;  // (operand, base)
  std::vector<SavedSource> saved_sources;     // whose `operands` are undefined until then
};

// As an operator that was walked: it has nothing saved any more. Its edges stay.
void ClearSaved(Node& node);

// Waits for impl.local, or makes it again. Errors: what went wrong on the way; kFailedPrecondition
// where a redistribution in place took it.
absl::Status SettleSlowly(TensorImpl& impl);
// The latter alone.
absl::Status CheckNotConsumed(const TensorImpl& impl);
inline absl::Status Settle(TensorImpl& impl) {
  return impl.unsettled == nullptr ? absl::OkStatus() : SettleSlowly(impl);
}

TensorImplPtr MakeImpl(Context& context, const Spec* spec, Tensor local, bool row_major);
Edge EdgeOf(const TensorImplPtr& impl);
// A gradient flows to it while the Context records.
inline bool WantsGradient(const TensorImpl& impl) {
  return impl.requires_grad || impl.edge.wanted();
}

// The tensor whose version counts the writes to `impl`. Requires: settled.
const Tensor& AliasRoot(const TensorImpl& impl);
// That version; of a tensor that has no memory, none that a tensor had.
inline uint64_t AliasVersion(const TensorImpl& impl) {
  const Tensor& root = AliasRoot(impl);
  return root.defined() ? root.version() : ~uint64_t{0};
}

// Whether `value`, which was made of `source` when that had `version`, has its elements still:
// neither was written to since. Requires: settled.
inline bool StillEqual(const TensorImpl& value, const TensorImpl& source, uint64_t version) {
  return value.local.version() == 0 && AliasVersion(source) == version;
}

// Into how many parts the axes of its mesh cut a tensor.
int64_t NumParts(const Layout& layout);

// `impl` in the layout of `target` (same mesh, shape and type), remembered, without an edge. Never
// written to: a caller that hands it on borrows from it.
absl::StatusOr<TensorImplPtr> RedistributeTo(const TensorImplPtr& impl, const Spec* target,
                                             const ExchangeCaller& caller);
// The same for who may be told of values that are made later: of an all-gather (late_values.h).
absl::StatusOr<TensorImplPtr> RedistributeLate(const TensorImplPtr& impl, const Spec* target,
                                               const ExchangeCaller& caller);
// The same as a tensor of its own, whose gradient is that of `impl` while the Context records.
absl::StatusOr<TensorImplPtr> RedistributedValue(const TensorImplPtr& impl, const Spec* target,
                                                 const ExchangeCaller& caller,
                                                 bool may_be_late = false);
// The all-gather that `impl` waits for; null: none.
std::shared_ptr<LateGather> LateGatherOf(const TensorImpl& impl);
// `impl` by another plan, not remembered. Where the plan is in place, `impl` is consumed.
absl::StatusOr<TensorImplPtr> RedistributeBy(const TensorImplPtr& impl, const Spec* target,
                                             std::shared_ptr<const RankRedistributionPlan> plan,
                                             bool async, const ExchangeCaller& caller);
// What Redistribute() says of itself.
ExchangeCaller RedistributeCaller(const TensorImpl& impl, const Spec& target);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TENSOR_IMPL_H_
