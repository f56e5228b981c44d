#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/reduce.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Additions of whole numbers are atomic: their order changes nothing.
using Total = unsigned long long;  // NOLINT: the type that atomicAdd has

constexpr int kBinsOfBlock = 2048;

// A block counts its ids in its own bins, and adds these to the totals of all blocks.
__global__ void CountFewBinsKernel(Ids ids, int64_t num_ids, int64_t bins, Total* totals) {
  DT_SHARED(unsigned, mine, kBinsOfBlock);
  for (int64_t bin = threadIdx.x; bin < bins; bin += blockDim.x) mine[bin] = 0;
  __syncthreads();
  ForEachPiece<int64_t>(num_ids, [&](int64_t i) {
    const int64_t id = ids[i];
    if (0 <= id && id < bins) atomicAdd(&mine[id], 1U);
  });
  __syncthreads();
  for (int64_t bin = threadIdx.x; bin < bins; bin += blockDim.x) {
    if (mine[bin] > 0) atomicAdd(&totals[bin], static_cast<Total>(mine[bin]));
  }
}

__global__ void CountKernel(Ids ids, int64_t num_ids, int64_t bins, Total* totals) {
  ForEachPiece<int64_t>(num_ids, [&](int64_t i) {
    const int64_t id = ids[i];
    if (0 <= id && id < bins) atomicAdd(&totals[id], static_cast<Total>(1));
  });
}

template <typename T>
__global__ void StoreKernel(const Total* totals, int64_t bins, T* counts) {
  ForEachPiece<int64_t>(
      bins, [&](int64_t bin) { counts[bin] = Convert<T>(static_cast<int64_t>(totals[bin])); });
}

}  // namespace

absl::Status Bincount(Device& device, const char* kernel, const BincountArgs& args) {
  if (args.bins == 0) return device.failure();
  const int64_t bytes = args.bins * static_cast<int64_t>(sizeof(Total));
  DT_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(device, bytes));
  DT_RETURN_IF_ERROR(device.FillBytes(scratch.get(), 0, bytes));
  auto* const totals = static_cast<Total*>(scratch.get());
  if (args.num_ids > 0) {
    const auto count = args.bins <= kBinsOfBlock ? CountFewBinsKernel : CountKernel;
    DT_RETURN_IF_ERROR(Launch(device, kernel, BlocksFor(args.num_ids), kThreads, count,
                              Ids(args.ids, args.id_dtype), args.num_ids, args.bins, totals));
  }
  return VisitFloat(args.dtype, [&](auto t) {
    using T = decltype(t);
    return Launch(device, kernel, BlocksFor(args.bins), kThreads, StoreKernel<T>, totals, args.bins,
                  static_cast<T*>(args.counts));
  });
}

}  // namespace dtensor::kernels::cuda
