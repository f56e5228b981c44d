// Prints a local tensor as text, for people:
//
//   [2, 3] f32 on cpu
//   [[1 2 3]
//    [4 5 6]]
//
// For a DistributedTensor, std::cout << x.local() prints what this rank holds.
#ifndef DTENSOR_RUNTIME_DEVICE_PRINT_H_
#define DTENSOR_RUNTIME_DEVICE_PRINT_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct PrintOptions {
  // If a tensor has more elements, each dimension longer than 2 * edge shows its first and last
  // `edge` elements, with "..." between them. Both options count as at least 1. At most 100,000
  // elements are shown: a larger max_elements counts as that, and `edge` is reduced until that
  // limit is met.
  int64_t max_elements = 1000;
  int64_t edge = 3;
};

// Shape, type, device, strides if the memory is not dense, and the values: 6 significant digits, 4
// for 16-bit floats. Waits for the values. If the device has failed, shows its failure in place of
// them. For memory that host code cannot read, says how to copy it; meta has no values. An
// undefined tensor is "undefined".
std::string ToString(const Tensor& tensor, const PrintOptions& options = {});
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_PRINT_H_
