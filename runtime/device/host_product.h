// HostProduct: any product on host memory, on the calling thread.
//
//   f32, bf16        oneDNN; where it has no fast code, as below
//   f64, i32, i64    SimpleProduct
//   f16, bf16        widened to f32, a matrix at a time
#ifndef DTENSOR_RUNTIME_DEVICE_HOST_PRODUCT_H_
#define DTENSOR_RUNTIME_DEVICE_HOST_PRODUCT_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/one_dnn_product.h"
#include "dtensor/runtime/device/product.h"
#include "dtensor/runtime/device/scratch.h"
#include "dtensor/runtime/device/simple_product.h"

namespace dtensor {

class HostProduct {
 public:
  // Requires: Validate(product) is OK, no dimension is 0. Errors: kResourceExhausted, kInternal.
  absl::Status Run(const Product& product);

 private:
  template <typename T>
  absl::Status RunWidened(const Product& product);

  OneDnnProduct one_dnn_;
  SimpleProduct simple_;
  Scratch a_, b_, c_;  // widened matrices
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_HOST_PRODUCT_H_
