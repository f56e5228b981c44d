// For operators that cut or join along one dimension. Where every cut lies at a multiple of r, the
// dimension is "(q! r)": indices in q are cut, and r may be split, for each rank then cuts its own
// part of every unit. So the half of a [2 h] that is split within its units of h, as
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

// The largest unit of which all `sizes` are multiples; 1 where all are 0.
int64_t CommonUnit(absl::Span<const int64_t> sizes);

// "d0 (a! r) d2": the letters of `ndim` dimensions, `dim` being `name` times units. "d0 a! d2" for
// units of 1.
std::string TermInUnits(int ndim, int dim, absl::string_view name, int64_t unit);
// The sizes of `name` and r, where `dim` has `size`.
void AddSizes(absl::string_view name, int64_t size, int64_t unit, LetterSizes& sizes);

// How many of the indices [0, index) of `dim` a rank has, of a tensor of global size `size` there.
// Requires: index and size are multiples of the unit, which r of the operator's rule is.
int64_t LocalIndex(const Tensor& local, int dim, int64_t size, int64_t unit, int64_t index);

// Copies `parts`, tensors, side by side along `dim`; together they fill `out`.
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

// For OpDef::choose_layouts: where `dim` of an operand is split otherwise than within its units,
// its axes go there, as far as a unit has an element for each shard, if that is cheaper than what
// the rule found, which is to gather the dimension.
absl::StatusOr<LayoutChoice> SplitWithinUnits(const LayoutChoiceRequest& request, int dim,
                                              int64_t unit);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_DIM_UNITS_H_
