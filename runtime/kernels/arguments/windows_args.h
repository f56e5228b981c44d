// The arguments of windows.h's kernels.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_WINDOWS_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_WINDOWS_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// Element j of window i is the element first + i * step + j * dilation.
struct WindowSteps {
  int64_t first = 0;  // may be negative, or behind the last element
  int64_t step = 1;
  int64_t dilation = 1;
};

// [outer, n, inner, row] on one side, [outer, windows, inner, size, row] on the other: row-major,
// except that the outermost dimension has a stride of its own, in elements.
struct WindowsShape {
  DType dtype;
  WindowSteps steps;
  int64_t outer, n, windows, inner, size, row;
  int64_t outer_stride, windows_outer_stride;
};

struct WindowsArgs {
  WindowsShape shape;
  double value;
  const void* x;
  void* y;
};
static_assert(std::is_trivially_copyable_v<WindowsArgs>);

struct WindowsGradArgs {
  WindowsShape shape;
  const void* dy;
  void* dx;  // row-major
};
static_assert(std::is_trivially_copyable_v<WindowsGradArgs>);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_WINDOWS_ARGS_H_
