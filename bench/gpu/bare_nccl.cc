#include "dtensor/bench/gpu/bare_nccl.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor::bench {

absl::StatusOr<std::unique_ptr<BareNccl>> BareNccl::Make(Context& context) {
  cudaSetDevice(context.device().ordinal());
  ncclUniqueId id = {};
  absl::Status made;
  std::unique_ptr<BareNccl> bare(new BareNccl(context));
  if (context.rank() == 0) made = bare->Checked(ncclGetUniqueId(&id));
  const auto error = static_cast<int64_t>(made.code());
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> errors, GatherValues(context, error));
  DT_ASSIGN_OR_RETURN(const std::vector<ncclUniqueId> ids, GatherValues(context, id));
  DT_RETURN_IF_ERROR(made);
  if (errors[0] != 0) return absl::AbortedError("rank 0 has no id of NCCL's for the others");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  DT_RETURN_IF_ERROR(bare->Checked(
      ncclCommInitRankConfig(&bare->comm_, context.world_size(), ids[0], context.rank(), &config)));
  return bare;
}

BareNccl::~BareNccl() {
  if (comm_ == nullptr) return;
  if (failed_) {
    ncclCommAbort(comm_);
    return;
  }
  ncclCommFinalize(comm_);
  ncclCommDestroy(comm_);
}

absl::Status BareNccl::AllGather(const Tensor& mine, const Tensor& all) {
  return Checked(ncclAllGather(mine.raw(), all.raw(), mine.bytes() / sizeof(float), ncclFloat,
                               comm_, CudaStreamOf(context_.device())));
}

absl::Status BareNccl::ReduceScatter(const Tensor& from, const Tensor& to) {
  return Checked(ncclReduceScatter(from.raw(), to.raw(), to.bytes() / sizeof(float), ncclFloat,
                                   ncclSum, comm_, CudaStreamOf(context_.device())));
}

absl::Status BareNccl::AllToAll(const Tensor& from, const Tensor& to) {
  const int64_t part = from.bytes() / context_.world_size();
  const size_t count = part / sizeof(float);
  const cudaStream_t stream = CudaStreamOf(context_.device());
  DT_RETURN_IF_ERROR(Checked(ncclGroupStart()));
  for (int rank = 0; rank < context_.world_size(); ++rank) {
    const auto* const sent = static_cast<const char*>(from.raw()) + rank * part;
    auto* const received = static_cast<char*>(to.raw()) + rank * part;
    DT_RETURN_IF_ERROR(Checked(ncclSend(sent, count, ncclFloat, rank, comm_, stream)));
    DT_RETURN_IF_ERROR(Checked(ncclRecv(received, count, ncclFloat, rank, comm_, stream)));
  }
  return Checked(ncclGroupEnd());
}

absl::Status BareNccl::Checked(ncclResult_t result) {
  if (result == ncclSuccess) return absl::OkStatus();
  failed_ = true;
  return absl::InternalError(absl::StrCat("bare NCCL: ", ncclGetErrorString(result)));
}

}  // namespace dtensor::bench
