// Operators on one rank, for their tests.
#ifndef DTENSOR_TESTING_ONE_RANK_H_
#define DTENSOR_TESTING_ONE_RANK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/testing/op_cases.h"

namespace dtensor {

// Makes tensors on one rank.
class Maker {
 public:
  explicit Maker(Context& context) : context_(context) {}
  TensorOr F32(std::vector<int64_t> shape, std::vector<float> values) const {
    return Distribute<float>(context_, DeviceMesh(), {}, shape, values);
  }
  TensorOr F64(std::vector<int64_t> shape, std::vector<double> values) const {
    return Distribute<double>(context_, DeviceMesh(), {}, shape, values);
  }
  TensorOr I64(std::vector<int64_t> shape, std::vector<int64_t> values) const {
    return Distribute<int64_t>(context_, DeviceMesh(), {}, shape, values);
  }
  TensorOr Zeros(std::vector<int64_t> shape, DType dtype = DType::kF32) const {
    return Full(context_, Layout::Replicated(DeviceMesh(), static_cast<int>(shape.size())), shape,
                dtype, 0);
  }

 private:
  Context& context_;
};

inline void OnOneRank(const std::function<void(const Maker&)>& fn) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) {
    fn(Maker(context));
    return absl::OkStatus();
  }));
}

inline std::vector<double> Values(const TensorOr& tensor) {
  DT_EXPECT_OK(tensor.status());
  return tensor.ok() ? *GlobalValues(*tensor) : std::vector<double>();
}

}  // namespace dtensor

#endif  // DTENSOR_TESTING_ONE_RANK_H_
