// TensorImpl, the state behind a DistributedTensor, and Node, a recorded operator. Only for
// dispatch, autograd and the functions that make tensors.
//
// Aliases and values (docs/architecture.md). Detach and the views of ops.h are aliases: a write
// through one is seen through all, so writes are counted per storage (Tensor::version). The result
// of a redistribution is a value: if it shares memory with its source, it has borrowed that memory
// (Tensor::Borrow). Whether a rank shares memory depends on its strides, so no decision about
// communication may depend on it. row_major, CopiedView and the versions of AliasRoot() are the
// same on all ranks.
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

// How to make an alias again that may be a copy, on this rank or on another, because of strides: a
// Reshape of a tensor that is not row-major, and views of such a Reshape. It is made again if
// `base` was written to since.
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

// What Settle() has to deal with. Most tensors have none of this.
struct Unsettled {
  std::shared_ptr<PendingRedistribution> pending;  // if set: `local` is in flight,
  size_t pending_result = 0;                       // as this result of it
  std::shared_ptr<LateValues> late;                // if set: values still to be made, into `local`
  std::unique_ptr<CopiedView> view;
  bool consumed = false;  // by a redistribution in place
};

struct TensorImpl {
  // Read it only after Settle(). Declared first so that it is destroyed last: its memory keeps
  // alive what the others refer to (WorldParts).
  Tensor local;
  Context* context = nullptr;
  SpecPtr spec;
  Lineage lineage;                       // unknown until set by the code that makes the tensor
  std::unique_ptr<Unsettled> unsettled;  // may be null

  Edge edge;  // of a tensor that an operator or a redistribution made
  // Why gradients end here: the operator without a backward on the way to this tensor, or, of a
  // tensor that is not of floats, the one that made it. Set if the tensor has no edge, or if
  // loses_gradient: then some gradients pass, and others do not. Whatever makes an alias or a moved
  // copy takes both along.
  const OpDef* stopped_by = nullptr;
  bool loses_gradient = false;  // it made floats of floats: a gradient would be lost silently
  bool requires_grad = false;   // a leaf that wants a gradient
  bool pinned = false;
  uint8_t moves = 0;       // number of redistributions in a row that led here, up to kMostMoves
  bool row_major = false;  // `local` is row-major on every rank
  // A view with more elements than its source; or a view of one, or a redistribution that may share
  // its memory. The same on every rank.
  bool is_expanded = false;
  std::optional<DType> grad_dtype;  // of a leaf's gradient; unset: the leaf's own
  TensorImplPtr grad;
  // Set for a leaf in a group, and for its ForUse(): operators save the leaf.
  std::shared_ptr<GatherMember> gather;

  // Set if this is a product whose computation was put off, also after it is computed: its
  // decision. A reduce-scatter of it is made in chunks on every rank, because ranks may differ in
  // whether it is computed: one may have read its term, or written to an operand of the product.
  DecisionPtr put_off;

  // For a result of RedistributeForUse() that gathers: what operators save instead of it. For the
  // tensor that was gathered: the same, so that all its results share it.
  TensorImplPtr source;
  uint64_t source_version = 0;  // of `source`, or of a group's leaf, when this was gathered

  // Results of redistributing this tensor, kept while it lives. Leaves that want gradients and
  // pinned tensors keep none, except for KeptOnMesh: parameters live long, and gathered copies of
  // them must not. A tensor that is kMostMoves redistributions away from one that no redistribution
  // made keeps none either, else a chain of redistributions would keep all that follows. All ranks
  // must remember the same, so it may not depend on which tensors a program still holds on one
  // rank. The first caller gets the remembered tensor itself, which is valid until somebody writes
  // to it; later callers, and all of KeptOnMesh, get a value that has borrowed from it.
  static constexpr int kMostMoves = 2;  // a module edge's, and one for an operator after it
  struct Remembered {
    const Spec* spec = nullptr;
    uint64_t version = 0;  // of AliasRoot()
    TensorImplPtr moved;
  };
  absl::InlinedVector<Remembered, 1> remembered;
  bool remembers() const { return !requires_grad && !pinned && moves < kMostMoves; }
  bool is_handed_out = false;  // a user has it, and may write to it

  // For a result of a redistribution: another tensor with the same elements, as long as neither was
  // written to. Its `remembered` serves both.
  TensorImplPtr twin;
  uint64_t twin_version = 0;
};

// An operand that is not saved, but gathered again when backward needs it.
struct SavedSource {
  int operand;
  TensorImplPtr source;  // a leaf in a group, or TensorImpl::source
  uint64_t version = 0;  // of `source` when the operand was read
};

// One recorded operator. It holds local tensors, not TensorImpls, so it does not keep alive what
// those remember.
struct Node {
  Node();
  ~Node();  // destroys a whole chain without recursion
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  uint64_t sequence = 0;
  DecisionPtr decision;
  CallValues values;            // of the call
  uint64_t lineage = 0;         // of the call
  const void* scope = nullptr;  // in which it was called (work_scope.h)
  // Set for a Recompute(), in place of a backward. Its first edges are those of its operands, the
  // others those of leaves that it reads.
  std::unique_ptr<Replay> replay;
  // It is no operator, but a redistribution to another mesh: gradients are added up on that mesh,
  // and their sum is moved back. Not consumed by a Backward, as other redistributions are not.
  bool changes_mesh = false;
  bool consumed = false;  // by a Backward, which cleared what follows
  // Those of the operands, along which their gradients flow. Unless it has a replay: further ones
  // lead to operators that are visited after this one in any case, even if no gradient arrives.
  absl::InlinedVector<Edge, 3> edges;
  // Those that backward reads; others are left undefined, or left out at the end.
  absl::InlinedVector<Tensor, 3> operands, results;
  // `versions`: of the operands when they were read. `bases`: for operands that had a CopiedView.
  absl::InlinedVector<uint64_t, 3> versions;
  std::vector<std::pair<int, Tensor>> bases;  // (operand, base)
  std::vector<SavedSource> saved_sources;     // their `operands` are undefined until gathered
};

// Frees what the node has saved, and marks it as walked. Its edges stay.
void ClearSaved(Node& node);

// Waits for impl.local, makes it if it was put off, or makes it again (CopiedView). Errors: what
// went wrong on the way; kFailedPrecondition if a redistribution in place has taken its memory.
absl::Status SettleSlowly(TensorImpl& impl);
// Checks only for the latter error.
absl::Status CheckNotConsumed(const TensorImpl& impl);
inline absl::Status Settle(TensorImpl& impl) {
  return impl.unsettled == nullptr ? absl::OkStatus() : SettleSlowly(impl);
}

TensorImplPtr MakeImpl(Context& context, const Spec* spec, Tensor local, bool row_major);
Edge EdgeOf(const TensorImplPtr& impl);
// Whether a gradient flows to it from operators that are recorded.
inline bool WantsGradient(const TensorImpl& impl) {
  return impl.requires_grad || impl.edge.wanted();
}

// The tensor whose version counts the writes to `impl`. Requires: settled.
const Tensor& AliasRoot(const TensorImpl& impl);
// That version; for a tensor without memory, a number that is no tensor's version.
inline uint64_t AliasVersion(const TensorImpl& impl) {
  const Tensor& root = AliasRoot(impl);
  return root.defined() ? root.version() : ~uint64_t{0};
}

// Whether `value`, which was made from `source` when that had `version`, still has the same
// elements: neither was written to since. Requires: settled.
inline bool StillEqual(const TensorImpl& value, const TensorImpl& source, uint64_t version) {
  return value.local.version() == 0 && AliasVersion(source) == version;
}

// The number of shards into which a layout splits a tensor.
int64_t NumParts(const Layout& layout);

// Redistributes `impl` to the layout of `target` (same mesh, shape and type). The result has no
// edge and is remembered, so it must not be written to: to hand it to a user, borrow from it.
absl::StatusOr<TensorImplPtr> RedistributeTo(const TensorImplPtr& impl, const Spec* target,
                                             const ExchangeCaller& caller);
// The same, for callers that can use a result whose values are made later (a LateGather,
// late_values.h).
absl::StatusOr<TensorImplPtr> RedistributeLate(const TensorImplPtr& impl, const Spec* target,
                                               const ExchangeCaller& caller);
// The same, but the result is a tensor that a user may have. If the Context records, its gradient
// is that of `impl` or, on another mesh, is moved back (Node::changes_mesh).
absl::StatusOr<TensorImplPtr> RedistributedValue(const TensorImplPtr& impl, const Spec* target,
                                                 const ExchangeCaller& caller,
                                                 bool may_be_late = false);
// The all-gather that will make the values of `impl`; null if there is none.
std::shared_ptr<LateGather> LateGatherOf(const TensorImpl& impl);
// Redistributes `impl` by `plan`; the result is not remembered. If the plan is in place, `impl` is
// consumed.
absl::StatusOr<TensorImplPtr> RedistributeBy(const TensorImplPtr& impl, const Spec* target,
                                             std::shared_ptr<const RankRedistributionPlan> plan,
                                             bool async, const ExchangeCaller& caller);
// RedistributeKept (gather_again.h). What moved stays in leaf->remembered, although a leaf that
// wants a gradient remembers nothing else. Requires: a target on another mesh.
absl::StatusOr<TensorImplPtr> KeptOnMesh(const TensorImplPtr& leaf, const Spec* target);
// The caller that Redistribute() names in errors.
ExchangeCaller RedistributeCaller(const TensorImpl& impl, const Spec& target);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TENSOR_IMPL_H_
