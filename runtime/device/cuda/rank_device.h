// The device of a rank of a world, made by the library or by the program.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_RANK_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_RANK_DEVICE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// Makes the device of world rank `rank` on GPU `ordinal`, with a stream or an allocator of the
// program's: MakeCudaDevice(ordinal, stream, allocator). Called once for each rank, before any rank
// runs. Each rank needs a stream of its own. The GPUs of the world's other threads must be able to
// read what the allocator returns (memory of cudaMalloc; of a pool: cudaMemPoolSetAccess).
using CudaDeviceMaker =
    std::function<absl::StatusOr<std::unique_ptr<Device>>(int rank, int ordinal)>;

// Returns what `make` returns; null: MakeCudaDevice(ordinal). Errors: theirs; kInvalidArgument if
// `make` returned none, or a device other than that GPU.
absl::StatusOr<std::unique_ptr<Device>> MakeRankDevice(const CudaDeviceMaker& make, int rank,
                                                       int ordinal);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_RANK_DEVICE_H_
