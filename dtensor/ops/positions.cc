// Functions of where elements stand: made of other operators, with indices in the layout of what
// they are for, so that nothing moves.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace {

// The indices of dimension `dim` of x, sharded as it is.
TensorOr IndicesOf(const DistributedTensor& x, int dim) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(x.mesh(), {x.layout().dim(dim)}));
  return Arange(x.context(), layout, x.shape()[dim], DType::kI64);
}

// x where keeps(column - row, diagonal), else 0.
TensorOr Triangle(absl::string_view op, const TensorOr& x, int64_t diagonal,
                  TensorOr (*keeps)(const TensorOr&, const TensorOr&)) {
  DT_RETURN_IF_ERROR(internal::CheckDefined(op, x));
  const int ndim = x->spec().ndim();
  if (ndim < 2) {
    return InvalidArgument({op, ": there are no rows and columns in ", x->ToString(),
                            "; give two dimensions or more"});
  }
  DT_ASSIGN_OR_RETURN(const DistributedTensor rows, IndicesOf(*x, ndim - 2));
  DT_ASSIGN_OR_RETURN(const DistributedTensor columns, IndicesOf(*x, ndim - 1));
  const TensorOr distance = Sub(columns, Reshape(rows, {rows.shape()[0], 1}));
  DT_RETURN_IF_ERROR(distance.status());
  const TensorOr mask = keeps(distance, FullLike(*distance, static_cast<double>(diagonal), {}));
  return Where(mask, x, FullLike(*x, 0, {}));
}

}  // namespace

TensorOr Tril(const TensorOr& x, int64_t diagonal) {
  return Triangle("Tril", x, diagonal, LessEqual);
}

TensorOr Triu(const TensorOr& x, int64_t diagonal) {
  return Triangle("Triu", x, diagonal, GreaterEqual);
}

TensorOr OneHot(const TensorOr& ids, int64_t n, DType dtype) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("OneHot", ids));
  if (ids->dtype() != DType::kI32 && ids->dtype() != DType::kI64) {
    return InvalidArgument({"OneHot: takes i32 or i64, got ", ids->ToString(), "; Cast it first"});
  }
  if (n < 0) {
    return InvalidArgument({"OneHot: ", absl::StrCat(n), " classes; give a number from 0"});
  }
  Dims shape = ids->shape();
  shape.push_back(1);
  const TensorOr classes =
      Arange(ids->context(), Layout::Replicated(ids->mesh(), 1), n, ids->dtype());
  return Cast(Equal(Reshape(ids, shape), classes), dtype);
}

TensorOr IndexSelect(const TensorOr& x, int dim, const TensorOr& ids) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("IndexSelect", x));
  DT_RETURN_IF_ERROR(internal::CheckDefined("IndexSelect", ids));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("IndexSelect", x->spec(), dim));
  if (ids->spec().ndim() != 1) {
    return InvalidArgument({"IndexSelect: the indices are ", ids->ToString(),
                            "; give one dimension, or TakeAlongDim"});
  }
  const Spec* const specs[] = {&ids->spec(), &x->spec()};
  const OpDef takes = {.name = "IndexSelect",
                       .operand_types = {TypeSet::Integers(), TypeSet::Floats()}};
  DT_RETURN_IF_ERROR(takes.CheckTypes(specs));
  // The dimension in front, and the others as one.
  std::vector<int> to_front = {d}, back;
  for (int i = 0; i < x->spec().ndim(); ++i) {
    if (i != d) to_front.push_back(i);
    back.push_back(i < d ? i + 1 : i == d ? 0 : i);
  }
  const TensorOr turned = Permute(x, to_front);
  DT_RETURN_IF_ERROR(turned.status());
  Dims shape = turned->shape();
  const int64_t others = NumElements(absl::MakeConstSpan(shape).subspan(1));
  const TensorOr picked = Embedding(ids, Reshape(turned, {shape[0], others}));
  shape[0] = ids->shape()[0];
  return Permute(Reshape(picked, shape), back);
}

}  // namespace dtensor
