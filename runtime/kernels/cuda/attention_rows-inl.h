// Rows of attention's operands on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_ROWS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_ROWS_INL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// [batch, rows, heads, dim], row-major, as the operands of most programs are.
inline AttentionOperand RowMajorRows(void* data, int64_t rows, int64_t heads, int64_t dim) {
  return {data, rows * heads * dim, dim, heads * dim};
}

struct RowPlace {
  int64_t batch, head, row;
};
__device__ inline RowPlace PlaceOfRow(int64_t i, int64_t heads, int64_t rows) {
  const int64_t y = i / rows;
  return {y / heads, y % heads, i % rows};
}
template <typename T>
__device__ T* RowAt(const AttentionOperand& x, const RowPlace& at) {
  return static_cast<T*>(x.data) + at.batch * x.batch_stride + at.head * x.head_stride +
         at.row * x.row_stride;
}

// Copies rows to others of another type, or adds them.
struct PutPass {
  AttentionOperand from, into;
  int64_t batch, heads, rows, dim;
  bool adds;
};

namespace internal {

template <typename From, typename Into>
__global__ void PutKernel(PutPass a) {
  ForEachRow<kWarp>(a.batch * a.heads * a.rows, [&](int64_t i, int lane) {
    const RowPlace at = PlaceOfRow(i, a.heads, a.rows);
    const auto* const from = RowAt<const From>(a.from, at);
    auto* const into = RowAt<Into>(a.into, at);
    for (int64_t f = lane; f < a.dim; f += kWarp) {
      const float value = Widen(from[f]);
      into[f] = Round<Into>(a.adds ? Widen(into[f]) + value : value);
    }
  });
}

// These call fn(T{}): VisitNarrow with the operands' type, of 16 bits; VisitResult also with float.
template <typename Fn>
absl::Status VisitNarrow(DType dtype, Fn fn) {
  return dtype == DType::kBF16 ? fn(BFloat16()) : fn(Float16());
}
template <typename Fn>
absl::Status VisitResult(DType dtype, Fn fn) {
  return dtype == DType::kF32 ? fn(float()) : VisitNarrow(dtype, fn);
}

}  // namespace internal

// Puts rows of a 16-bit type into rows of the same type, or of f32.
inline absl::Status PutRows(Device& device, const char* kernel, const PutPass& pass, DType from,
                            DType into) {
  return internal::VisitNarrow(from, [&](auto f) {
    return internal::VisitResult(into, [&](auto t) {
      return LaunchRows<kWarp>(device, kernel, pass.batch * pass.heads * pass.rows,
                               internal::PutKernel<decltype(f), decltype(t)>, pass);
    });
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_ROWS_INL_H_
