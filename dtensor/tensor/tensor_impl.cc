#include "dtensor/tensor/tensor_impl.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/late_values.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/replay.h"

namespace dtensor {

Node::Node() = default;

// Destroys what nodes keep alive one after the other: 100,000 nested destructors, also through what
// a recomputed function holds, would overflow the stack. If there is no memory for the list, they
// are destroyed recursively after all.
Node::~Node() {
  struct Kept {
    decltype(Node::edges) edges;
    decltype(Node::saved_sources) sources;
    decltype(Node::replay) replay;
  };
  static thread_local std::vector<Kept>* open = nullptr;
  Kept mine = {std::move(edges), std::move(saved_sources), std::move(replay)};
  std::vector<Kept> all;
  const absl::Status kept = NoThrow([&] {
    (open != nullptr ? *open : all).push_back(std::move(mine));
    return absl::OkStatus();
  });
  if (open != nullptr || !kept.ok()) return;
  open = &all;
  while (!all.empty()) {
    const Kept last = std::move(all.back());
    all.pop_back();
  }
  open = nullptr;
}

void ClearSaved(Node& node) {
  node.consumed = true;
  node.operands.clear();
  node.results.clear();
  node.bases.clear();
  node.saved_sources.clear();
  node.replay.reset();
}

TensorImplPtr MakeImpl(Context& context, const Spec* spec, Tensor local, bool row_major) {
  auto impl = std::make_shared_for_overwrite<TensorImpl>();  // does not clear it first
  impl->context = &context;
  impl->spec = spec;
  impl->local = std::move(local);
  impl->row_major = row_major;
  return impl;
}

Edge EdgeOf(const TensorImplPtr& impl) {
  if (impl->requires_grad) return {nullptr, 0, impl};
  return impl->edge;
}

const Tensor& AliasRoot(const TensorImpl& impl) {
  const bool copied = impl.unsettled != nullptr && impl.unsettled->view != nullptr;
  return copied ? impl.unsettled->view->base : impl.local;
}

int64_t NumParts(const Layout& layout) {
  int64_t parts = 1;
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (layout.use(axis) == Layout::AxisUse::kShard) parts *= layout.mesh().axis_size(axis);
  }
  return parts;
}

namespace {

// Makes impl.local again, from the tensor that it is a view of.
absl::Status MakeAgain(TensorImpl& impl, CopiedView& view) {
  Tensor at = view.base;
  for (const CopiedView::Step& step : view.steps) {
    std::vector<Tensor> results(step.decision->results.size());
    const Tensor* const operand = &at;
    const OpCall call{{*impl.context, *step.decision, step.values, impl.lineage.id},
                      TensorRefs({&operand, 1}),
                      absl::MakeSpan(results)};
    if (absl::Status status = step.decision->functions.forward(call); !status.ok())
      return impl.context->communicator().Fail(status);
    at = std::move(results[step.result]);
  }
  impl.local = std::move(at);
  view.version = view.base.version();
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNotConsumed(const TensorImpl& impl) {
  if (impl.unsettled == nullptr || !impl.unsettled->consumed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a tensor ", impl.spec->ToString(),
                   " was redistributed in place, and is no more; use the result of that"));
}

absl::Status SettleSlowly(TensorImpl& impl) {
  DT_RETURN_IF_ERROR(CheckNotConsumed(impl));
  Unsettled& unsettled = *impl.unsettled;
  if (unsettled.pending != nullptr) {
    const absl::Status status = unsettled.pending->Wait().status();
    impl.local = unsettled.pending->result(unsettled.pending_result);
    DT_RETURN_IF_ERROR(status);
    unsettled.pending = nullptr;
  }
  if (unsettled.late != nullptr) {
    DT_RETURN_IF_ERROR(unsettled.late->Make());
    unsettled.late = nullptr;
  }
  CopiedView* const view = unsettled.view.get();
  if (view == nullptr) {
    impl.unsettled = nullptr;
    return absl::OkStatus();
  }
  if (!impl.spec->on_mesh) view->version = view->base.version();  // there is nothing to make
  return view->version == view->base.version() ? absl::OkStatus() : MakeAgain(impl, *view);
}

absl::Status CheckWritable(absl::string_view who, const DistributedTensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({who, ": the tensor is undefined"});
  TensorImpl& impl = *tensor.impl();
  if (impl.edge.wanted()) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, ": ", impl.spec->ToString(),
                     " is the result of a recorded operator; write to its Detach()"));
  }
  DT_RETURN_IF_ERROR(Settle(impl));
  if (&AliasRoot(impl) != &impl.local) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, ": ", impl.spec->ToString(),
        " is a Reshape of a tensor that is not row-major, which may be a copy; write to that one"));
  }
  // is_expanded is the same on all ranks; strides of memory that a program brings may differ.
  if (!impl.is_expanded && !impl.local.overlaps_itself()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": in ", impl.spec->ToString(),
                   " several elements have one place in memory; write to a copy"));
}

absl::Status BeforeWrite(const DistributedTensor& tensor, uint64_t what) {
  DT_RETURN_IF_ERROR(CheckWritable("BeforeWrite", tensor));
  TensorImpl& impl = *tensor.impl();
  DT_RETURN_IF_ERROR(impl.context->FinishReads(impl.local));
  impl.remembered.clear();
  impl.twin = nullptr;
  impl.source = nullptr;
  impl.lineage.id = MixLineage(impl.lineage.id, what);  // other values from here on
  absl::Status status = impl.local.BeforeWrite();
  return status.ok() ? status : impl.context->communicator().Fail(status);
}

uint64_t LineageOf(const DistributedTensor& tensor) {
  DT_REQUIRE_DEFINED(tensor.defined(), "LineageOf()");
  return tensor.impl()->lineage.id;
}

}  // namespace dtensor
