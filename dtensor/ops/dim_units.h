// For operators that cut or join along one dimension. If every cut lies at a multiple of r, the
// dimension is written "(q! r)": cuts fall between indices in q, and r may be sharded, because each
// rank then cuts its own part of every unit. For example, if a [2 h] is sharded within its units of
// h, as [_ x h(tp)], a half of it is the rank's own half.
// [_ x h(tp)], is the rank's own half.
#ifndef DTENSOR_OPS_DIM_UNITS_H_
#define DTENSOR_OPS_DIM_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// The largest unit that divides all `sizes`; 1 if all are 0.
int64_t CommonUnit(absl::Span<const int64_t> sizes);

// The letters of `ndim` dimensions, "d0 (a! r) d2", where dimension `dim` is `name` times the unit;
// "d0 a! d2" for a unit of 1.
std::string TermInUnits(int ndim, int dim, absl::string_view name, int64_t unit);
// Adds the sizes of the letters `name` and r, for a dimension of this size.
void AddSizes(absl::string_view name, int64_t size, int64_t unit, LetterSizes& sizes);

// How many of the global indices [0, index) of `dim` this rank holds, of a tensor whose global size
// there is `size`. Requires: index and size are multiples of the unit, which is r of the operator's
// rule.
int64_t LocalIndex(const Tensor& local, int dim, int64_t size, int64_t unit, int64_t index);

// Copies `parts`, which are tensors, side by side along `dim`; together they fill `out`.
template <typename Tensors>
absl::Status CopySideBySide(Device& device, const Tensors& parts, int dim, const Tensor& out) {
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    DT_RETURN_IF_ERROR(kernels::Copy(device, part, out.Narrow(dim, begin, part.size(dim))));
    begin += part.size(dim);
  }
  return absl::OkStatus();
}

// For OpDef::choose_layouts. If `dim` of an operand is sharded otherwise than within its units, its
// axes shard the inside of the units instead, as many of them as a unit has elements for. This is
// done only if it is cheaper than what the rule found, which is to gather the dimension.
absl::StatusOr<LayoutChoice> SplitWithinUnits(const LayoutChoiceRequest& request, int dim,
                                              int64_t unit);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_DIM_UNITS_H_
