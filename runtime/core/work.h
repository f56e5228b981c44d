// KernelWork: how much work a kernel does, as far as its time depends on it; WorkCounts: the sum
// over many kernels.
#ifndef DTENSOR_RUNTIME_CORE_WORK_H_
#define DTENSOR_RUNTIME_CORE_WORK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// One number for each element type.
using PerDType = std::array<double, static_cast<size_t>(DType::kBool) + 1>;

// Numbers are doubles, since a simulated program may do more than an int64 can count.
struct KernelWork {
  DType dtype = DType::kF32;   // of the products
  double gemm_flops = 0;       // of matrix products: two for each multiplication
  double attention_flops = 0;  // of attention's products
  double bytes = 0;            // read and written, including operands of products
};

struct WorkCounts {
  PerDType gemm_flops = {}, attention_flops = {};  // by type
  double bytes = 0;
  int64_t kernels = 0;

  void Add(const KernelWork& work) {
    gemm_flops[static_cast<size_t>(work.dtype)] += work.gemm_flops;
    attention_flops[static_cast<size_t>(work.dtype)] += work.attention_flops;
    bytes += work.bytes;
    ++kernels;
  }
  friend bool operator==(const WorkCounts&, const WorkCounts&) = default;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_WORK_H_
