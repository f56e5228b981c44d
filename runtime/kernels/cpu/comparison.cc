#include "dtensor/runtime/kernels/cpu/comparison.h"

#include <cstdint>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/comparison_simd.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/streaming_walk.h"

namespace dtensor::kernels::cpu {
namespace {

template <typename T, typename Op>
void CompareAll(Op op, const T* a, const T* b, bool* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = op(static_cast<Compute<T>>(a[i]), static_cast<Compute<T>>(b[i]));
  }
}

template <typename T>
void CompareOf(CompareOp op, const T* a, const T* b, bool* out, int64_t n) {
  switch (op) {
    case CompareOp::kEqual:
      return CompareAll([](auto x, auto y) { return x == y; }, a, b, out, n);
    case CompareOp::kNotEqual:
      return CompareAll([](auto x, auto y) { return x != y; }, a, b, out, n);
    case CompareOp::kLess:
      return CompareAll([](auto x, auto y) { return x < y; }, a, b, out, n);
    default:
      return CompareAll([](auto x, auto y) { return x <= y; }, a, b, out, n);
  }
}

void CompareElements(CompareOp op, DType dtype, const void* a, const void* b, bool* out, int64_t n,
                     bool stream) {
  if (IsFloat(dtype) && dtype != DType::kF64) {
    return simd::Compare(op, dtype, a, b, out, n, stream);
  }
  VisitDType(dtype, [&](auto t) {
    using T = decltype(t);
    CompareOf(op, static_cast<const T*>(a), static_cast<const T*>(b), out, n);
  });
}

// Moves elements as bits, whatever their type means. Uses bit masks instead of branches.
template <typename Bits>
void Choose(const bool* condition, const void* a, const void* b, void* out, int64_t n) {
  const Bits *x = static_cast<const Bits*>(a), *y = static_cast<const Bits*>(b);
  Bits* dst = static_cast<Bits*>(out);
  for (int64_t i = 0; i < n; ++i) {
    const Bits mask = static_cast<Bits>(-static_cast<Bits>(condition[i]));
    dst[i] = static_cast<Bits>(y[i] ^ ((x[i] ^ y[i]) & mask));
  }
}

void ChooseElements(int64_t size, const void* const* in, void* out, int64_t n, bool stream) {
  const auto* condition = static_cast<const bool*>(in[0]);
  if (size == 1) return Choose<uint8_t>(condition, in[1], in[2], out, n);
  if (size == 8) return Choose<uint64_t>(condition, in[1], in[2], out, n);
  simd::Where(size, condition, in[1], in[2], out, n, stream);
}

}  // namespace

absl::Status Compare(Device& device, const char* kernel, const CompareArgs& args) {
  return Launch(device, kernel, args, [](const CompareArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      CompareElements(a.op, a.dtype, in[0], in[1], static_cast<bool*>(out[0]), n, stream);
    });
  });
}

absl::Status Where(Device& device, const char* kernel, const WhereArgs& args) {
  return Launch(device, kernel, args, [](const WhereArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      ChooseElements(a.operands.out_size[0], in, out[0], n, stream);
    });
  });
}

}  // namespace dtensor::kernels::cpu
