// Ids of either integer type on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_IDS_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_IDS_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::cpu {

// Row-major ids, i32 or i64.
class Ids {
 public:
  Ids(const void* data, DType dtype) : data_(data), wide_(dtype == DType::kI64) {}
  int64_t operator[](int64_t i) const {
    return wide_ ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
  }

 private:
  const void* data_;
  bool wide_;
};

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_IDS_H_
