// Operators on one rank, for their tests.
#ifndef DTENSOR_ONE_RANK_FOR_TESTING_H_
#define DTENSOR_ONE_RANK_FOR_TESTING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/distributed_tensor.h"
#include "dtensor/op_cases.h"
#include "dtensor/runtime/core/status_matchers.h"

namespace dtensor {

// Makes tensors on one rank.
class Maker {
 public:
  explicit Maker(Context& context) : context_(context) {}
  TensorOr F32(std::vector<int64_t> shape, std::vector<float> values) const {
    return Distribute<float>(context_, DeviceMesh(), {}, shape, values);
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

#endif  // DTENSOR_ONE_RANK_FOR_TESTING_H_
