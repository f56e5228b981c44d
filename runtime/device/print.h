// A local tensor as text, to look at:
//
//   [2, 3] f32 on cpu
//   [[1 2 3]
//    [4 5 6]]
//
// Of a DistributedTensor, std::cout << x.local() prints what this rank has.
#ifndef DTENSOR_RUNTIME_DEVICE_PRINT_H_
#define DTENSOR_RUNTIME_DEVICE_PRINT_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct PrintOptions {
  // Of a tensor of more elements, dimensions of more than 2 * edge show their first and last
  // `edge`, and "..." between them. Both count as at least 1. No more than 100,000 elements are
  // shown: a larger max_elements counts as that, and edge is made smaller until they are no more.
  int64_t max_elements = 1000;
  int64_t edge = 3;
};

// Shape, type, device, the strides where the memory is not dense, and the values: 6 significant
// digits, 4 of 16-bit floats. Waits for the values; tells of the device's failure in place of them.
// What host code cannot read says how to copy it; meta has no values. An undefined tensor is
// "undefined".
std::string ToString(const Tensor& tensor, const PrintOptions& options = {});
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_PRINT_H_
