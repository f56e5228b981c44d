// BareNccl: exchanges by NCCL alone, which those of a world are measured beside.
#ifndef DTENSOR_BENCH_GPU_BARE_NCCL_H_
#define DTENSOR_BENCH_GPU_BARE_NCCL_H_

#include <nccl.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"

namespace dtensor::bench {

// A communicator of its own, of all ranks; what it moves is behind what the device's stream has.
// Calls block until NCCL has launched them, without an end where a rank is gone.
class BareNccl {
 public:
  // Collective. `context` outlives it. Errors: of NCCL; the world's failure.
  static absl::StatusOr<std::unique_ptr<BareNccl>> Make(Context& context);
  ~BareNccl();
  BareNccl(const BareNccl&) = delete;

  // Of f32. `all` has the tensors of all ranks, one behind the other. Collective.
  absl::Status AllGather(const Tensor& mine, const Tensor& all);
  // Rank r receives the sum of the r-th of as many equal parts as there are ranks. Collective.
  absl::Status ReduceScatter(const Tensor& from, const Tensor& to);
  // Rank r is sent the r-th of as many equal parts as there are ranks. Collective.
  absl::Status AllToAll(const Tensor& from, const Tensor& to);

 private:
  explicit BareNccl(Context& context) : context_(context) {}
  absl::Status Checked(ncclResult_t result);

  Context& context_;
  ncclComm_t comm_ = nullptr;
  bool failed_ = false;
};

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_GPU_BARE_NCCL_H_
