#include "dtensor/runtime/kernels/cuda/scan.h"

#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// One chunk of one column: `begin` and `end` in the order of the sums.
struct Chunk {
  __device__ Chunk(const CumSumArgs& a, int64_t chunks, int64_t piece) {
    const int64_t rest = Divide(piece, a.inner);
    b = piece - rest * a.inner;
    outer = Divide(rest, chunks);
    begin = (rest - outer * chunks) * kScanChunk;
    end = Lesser(begin + kScanChunk, a.n);
  }
  __device__ int64_t Offset(const CumSumArgs& a, int64_t i) const {
    return (a.reverse ? a.n - 1 - i : i) * a.inner + b;
  }
  int64_t outer, b, begin, end;
};

// sums[outer, chunk, inner]: of each chunk, from 0.
template <typename T>
__global__ void SumChunksKernel(CumSumArgs a, int64_t chunks, Compute<T>* sums) {
  ForEachPiece<int64_t>(a.outer * chunks * a.inner, [&](int64_t piece) {
    const Chunk chunk(a, chunks, piece);
    const T* const x = static_cast<const T*>(a.x) + chunk.outer * a.x_outer_stride;
    Compute<T> sum = 0;
    for (int64_t i = chunk.begin; i < chunk.end; ++i) sum = Add(sum, Widen(x[chunk.Offset(a, i)]));
    sums[piece] = sum;
  });
}

// Replaces each chunk's sum by that of the chunks before it.
template <typename T>
__global__ void SumBeforeKernel(CumSumArgs a, int64_t chunks, Compute<T>* sums) {
  ForEachPiece<int64_t>(a.outer * a.inner, [&](int64_t column) {
    const int64_t outer = Divide(column, a.inner), b = column - outer * a.inner;
    Compute<T> before = a.start == nullptr ? 0 : static_cast<const Compute<T>*>(a.start)[column];
    for (int64_t c = 0; c < chunks; ++c) {
      Compute<T>& sum = sums[(outer * chunks + c) * a.inner + b];
      const Compute<T> next = Add(before, sum);
      sum = before;
      before = next;
    }
  });
}

template <typename T>
__global__ void ScanKernel(CumSumArgs a, int64_t chunks, const Compute<T>* before) {
  ForEachPiece<int64_t>(a.outer * chunks * a.inner, [&](int64_t piece) {
    const Chunk chunk(a, chunks, piece);
    const T* const x = static_cast<const T*>(a.x) + chunk.outer * a.x_outer_stride;
    T* const y = static_cast<T*>(a.y) + chunk.outer * a.y_outer_stride;
    Compute<T> sum = before[piece];
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
      const int64_t at = chunk.Offset(a, i);
      sum = Add(sum, Widen(x[at]));
      y[at] = Round<T>(sum);
    }
  });
}

template <typename T>
absl::Status ScanAll(Device& device, const char* kernel, const CumSumArgs& a) {
  const int64_t chunks = (a.n + kScanChunk - 1) / kScanChunk;
  const int64_t columns = a.outer * a.inner, pieces = columns * chunks;
  DT_ASSIGN_OR_RETURN(const Scratch scratch,
                      Scratch::Make(device, pieces * static_cast<int64_t>(sizeof(Compute<T>))));
  auto* const sums = static_cast<Compute<T>*>(scratch.get());
  DT_RETURN_IF_ERROR(
      Launch(device, kernel, BlocksFor(pieces), kThreads, SumChunksKernel<T>, a, chunks, sums));
  DT_RETURN_IF_ERROR(
      Launch(device, kernel, BlocksFor(columns), kThreads, SumBeforeKernel<T>, a, chunks, sums));
  return Launch(device, kernel, BlocksFor(pieces), kThreads, ScanKernel<T>, a, chunks, sums);
}

}  // namespace

absl::Status CumSum(Device& device, const char* kernel, const CumSumArgs& args) {
  if (args.outer == 0 || args.n == 0 || args.inner == 0) return device.failure();
  switch (args.dtype) {
    case DType::kI32:
      return ScanAll<int32_t>(device, kernel, args);
    case DType::kI64:
      return ScanAll<int64_t>(device, kernel, args);
    default:
      return VisitFloat(args.dtype,
                        [&](auto t) { return ScanAll<decltype(t)>(device, kernel, args); });
  }
}

}  // namespace dtensor::kernels::cuda
