// The batch entries of one rank, where they differ: in the positions of their queries, or in how
// many keys they have. The kernel (runtime/kernels/attention.h) runs once for each run of entries
// that are alike.
#ifndef DTENSOR_ATTENTION_ATTENTION_ROWS_H_
#define DTENSOR_ATTENTION_ATTENTION_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"

namespace dtensor {

// Each has one number for each batch entry of the rank, or none.
struct AttentionRows {
  std::vector<int64_t> offsets;  // are added to the positions of the entry's queries
  std::vector<int64_t> ends;     // keys at these positions and behind them are not seen
};

// kernels::Attention for all entries: tensors, step and carry as there.
absl::Status AttendInRows(Device& device, const AttentionRows& rows, const Tensor& q,
                          const Tensor& k, const Tensor& v, const kernels::AttentionStep& step,
                          const kernels::AttentionCarry* carry, const Tensor& o, const Tensor& lse);

// kernels::AttentionGrad for all entries. Keys that are not seen get gradients of 0.
absl::Status AttendInRowsGrad(Device& device, const AttentionRows& rows, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& lse,
                              const Tensor& delta, const Tensor& dout,
                              const kernels::AttentionStep& step, const Tensor& dq,
                              const Tensor& dk, const Tensor& dv, const Tensor* o);

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_ROWS_H_
