#include "dtensor/tensor/gather_again.h"

#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/collective_results.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

// What operators save instead of tensors gathered from `impl`: one alias for all of them. The alias
// is pinned, so it does not remember (keep) what is gathered from it again.
const TensorImplPtr& SourceOf(TensorImpl& impl) {
  if (impl.source != nullptr) {
    const bool is_alias = impl.source->spec == impl.spec;  // else `impl` was gathered from it
    if (is_alias || StillEqual(impl, *impl.source, impl.source_version)) return impl.source;
  }
  impl.source = MakeImpl(*impl.context, impl.spec, impl.local, impl.row_major);
  impl.source->lineage = impl.lineage;
  impl.source->pinned = true;
  return impl.source;
}

}  // namespace

TensorOr RedistributeForUse(const DistributedTensor& x, const Layout& layout) {
  DT_ASSIGN_OR_RETURN(DistributedTensor result, x.Redistribute(layout, {.on_use = true}));
  TensorImpl& impl = *x.impl();
  const bool gathers = layout.mesh() == x.mesh() && !x.layout().is_partial() &&
                       !layout.is_partial() && NumParts(layout) < NumParts(x.layout());
  // For a view that may be a copy (CopiedView) the alias would not see writes to its base.
  const bool copied = &AliasRoot(impl) != &impl.local;
  if (!gathers || copied || !impl.context->recording()) return result;
  if (UsesKeptResults(*impl.context)) return result;  // the gathered tensor is kept anyway
  TensorImpl& gathered = *result.impl();
  gathered.source = SourceOf(impl);
  gathered.source_version = AliasRoot(*gathered.source).version();
  return result;
}

TensorOr RedistributeKept(const DistributedTensor& leaf, const Layout& layout) {
  if (!leaf.defined()) return InvalidArgument({"RedistributeKept: the tensor is undefined"});
  if (layout.mesh() == leaf.mesh()) return leaf.Redistribute(layout);
  const bool recorded = leaf.context().recording() && WantsGradient(*leaf.impl());
  if (recorded && ReducesByAnotherOpThanSum(leaf.layout(), layout)) {
    return NoGradientPasses("RedistributeKept", "the tensor", leaf.spec());
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr target,
                      leaf.context().Intern(layout, leaf.shape(), leaf.dtype()));
  DT_ASSIGN_OR_RETURN(TensorImplPtr value, KeptOnMesh(leaf.impl(), target.get()));
  return DistributedTensor(std::move(value));
}

}  // namespace dtensor
