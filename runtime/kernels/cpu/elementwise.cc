#include "dtensor/runtime/kernels/cpu/elementwise.h"

#include <algorithm>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/elementwise_grad_simd.h"
#include "dtensor/runtime/kernels/cpu/elementwise_simd.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/pow_simd.h"
#include "dtensor/runtime/kernels/cpu/streaming_walk.h"

namespace dtensor::kernels::cpu {
namespace {

template <typename T>
T ApplyInteger(BinaryOp op, T a, T b) {
  switch (op) {
    case BinaryOp::kAdd:
      return WrapAdd(a, b);
    case BinaryOp::kSub:
      return WrapSub(a, b);
    case BinaryOp::kMul:
      return WrapMul(a, b);
    case BinaryOp::kMax:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

void BinaryIntegers(BinaryOp op, DType dtype, const void* a, const void* b, void* out, int64_t n) {
  VisitInteger(dtype, [&](auto t) {
    using T = decltype(t);
    const T* lhs = static_cast<const T*>(a);
    const T* rhs = static_cast<const T*>(b);
    T* result = static_cast<T*>(out);
    for (int64_t i = 0; i < n; ++i) result[i] = ApplyInteger(op, lhs[i], rhs[i]);
  });
}

void AddIntegers(DType dtype, const void* const* in, int terms, void* out, int64_t n) {
  VisitInteger(dtype, [&](auto t) {
    using T = decltype(t);
    T* sum = static_cast<T*>(out);
    for (int64_t i = 0; i < n; ++i) {
      T value = static_cast<const T*>(in[0])[i];
      for (int k = 1; k < terms; ++k) value = WrapAdd(value, static_cast<const T*>(in[k])[i]);
      sum[i] = value;
    }
  });
}

// kNeg, and kNot for bools.
void UnaryIntegers(DType dtype, const void* a, void* out, int64_t n) {
  VisitInteger(dtype, [&](auto t) {
    using T = decltype(t);
    const T* src = static_cast<const T*>(a);
    T* dst = static_cast<T*>(out);
    const T whole = std::is_same_v<T, bool>;  // x != true is !x
    for (int64_t i = 0; i < n; ++i) dst[i] = WrapSub(whole, src[i]);
  });
}

// Converts between different types.
void Convert(DType from, const void* a, DType to, void* out, int64_t n, bool stream) {
  const bool in_f32 = AccumulatorOf(from) == DType::kF32 && AccumulatorOf(to) == DType::kF32;
  if (in_f32 && from != to) {
    simd::Convert(from, a, to, out, n, stream);
  } else {
    VisitDType(from, [&](auto f) {
      VisitDType(to, [&](auto t) {
        using From = decltype(f);
        using To = decltype(t);
        const From* src = static_cast<const From*>(a);
        To* dst = static_cast<To*>(out);
        for (int64_t i = 0; i < n; ++i) dst[i] = Cast<To>(src[i]);
      });
    });
  }
}

bool IsWhole(double x) { return x == static_cast<double>(Truncate<int64_t>(x)); }

// Whole factors stay in integers, so that no bit is lost above 2^53; others go through f64.
void AffineIntegers(DType dtype, const void* a, double scale, double shift, void* out, int64_t n) {
  VisitInteger(dtype, [&](auto t) {
    using T = decltype(t);
    const T* src = static_cast<const T*>(a);
    T* dst = static_cast<T*>(out);
    if (IsWhole(scale) && IsWhole(shift)) {
      const T s = static_cast<T>(Truncate<int64_t>(scale));
      const T b = static_cast<T>(Truncate<int64_t>(shift));
      for (int64_t i = 0; i < n; ++i) dst[i] = WrapAdd(WrapMul(s, src[i]), b);
    } else {
      for (int64_t i = 0; i < n; ++i) dst[i] = Cast<T>(scale * static_cast<double>(src[i]) + shift);
    }
  });
}

template <typename T>
void FillStrided(T* out, int64_t n, int64_t stride, T value) {
  for (int64_t i = 0; i < n; ++i) out[i * stride] = value;
}

}  // namespace

absl::Status Binary(Device& device, const char* kernel, const BinaryArgs& args) {
  return Launch(device, kernel, args, [](const BinaryArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      if (IsFloat(a.dtype)) return simd::Binary(a.op, a.dtype, in[0], in[1], out[0], n, stream);
      BinaryIntegers(a.op, a.dtype, in[0], in[1], out[0], n);
    });
  });
}

absl::Status AddN(Device& device, const char* kernel, const AddNArgs& args) {
  return Launch(device, kernel, args, [](const AddNArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      if (!IsFloat(a.dtype)) return AddIntegers(a.dtype, in, a.terms, out[0], n);
      simd::AddN(a.dtype, in, a.terms, out[0], n, stream);
    });
  });
}

absl::Status Unary(Device& device, const char* kernel, const UnaryArgs& args) {
  return Launch(device, kernel, args, [](const UnaryArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      if (a.op == UnaryOp::kCopy) return Convert(a.from, in[0], a.to, out[0], n, stream);
      if (!IsFloat(a.from)) return UnaryIntegers(a.from, in[0], out[0], n);
      simd::Unary(a.op, a.from, in[0], out[0], n, stream);
    });
  });
}

absl::Status Affine(Device& device, const char* kernel, const AffineArgs& args) {
  return Launch(device, kernel, args, [](const AffineArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      if (!IsFloat(a.dtype)) return AffineIntegers(a.dtype, in[0], a.scale, a.shift, out[0], n);
      simd::Affine(a.dtype, in[0], a.scale, a.shift, out[0], n, stream);
    });
  });
}

absl::Status Fill(Device& device, const char* kernel, const FillArgs& args) {
  return Launch(device, kernel, args, [](const FillArgs& a) {
    VisitDType(a.dtype, [&](auto t) {
      using T = decltype(t);
      const T element = Cast<T>(a.value);
      const int64_t n = a.loop.inner_size(), stride = a.loop.inner_stride(0);
      a.loop.ForEachRow([&](const auto& offsets) {
        T* row = static_cast<T*>(a.out) + offsets[0];
        if (stride == 1) return (void)std::fill_n(row, n, element);
        FillStrided(row, n, stride, element);
      });
    });
  });
}

absl::Status Pow(Device& device, const char* kernel, const PowArgs& args) {
  return Launch(device, kernel, args, [](const PowArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::Pow(a.dtype, in[0], a.exponent, out[0], n, stream);
    });
  });
}

absl::Status PowGrad(Device& device, const char* kernel, const PowGradArgs& args) {
  return Launch(device, kernel, args, [](const PowGradArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::PowGrad(a.dtype, in[0], a.exponent, in[1], out[0], n, stream);
    });
  });
}

absl::Status UnaryGrad(Device& device, const char* kernel, const UnaryGradArgs& args) {
  return Launch(device, kernel, args, [](const UnaryGradArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::UnaryGrad(a.op, a.dtype, in[0], in[1], out[0], n, stream);
    });
  });
}

absl::Status BinaryGrad(Device& device, const char* kernel, const BinaryGradArgs& args) {
  return Launch(device, kernel, args, [](const BinaryGradArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::BinaryGrad(a.op, a.operand, a.dtype, in[0], in[1], in[2], out[0], n, stream);
    });
  });
}

absl::Status SiluMul(Device& device, const char* kernel, const SiluMulArgs& args) {
  return Launch(device, kernel, args, [](const SiluMulArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::SiluMul(a.dtype, in[0], in[1], out[0], n, stream);
    });
  });
}

absl::Status SiluMulGrad(Device& device, const char* kernel, const SiluMulGradArgs& args) {
  return Launch(device, kernel, args, [](const SiluMulGradArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::SiluMulGrad(a.dtype, in[0], in[1], in[2], out[0], out[1], n, stream);
    });
  });
}

absl::Status ClampedSwiGlu(Device& device, const char* kernel, const ClampedSwiGluArgs& args) {
  return Launch(device, kernel, args, [](const ClampedSwiGluArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::ClampedSwiGlu(a.dtype, a.slope, a.limit, in[0], in[1], out[0], n, stream);
    });
  });
}

absl::Status ClampedSwiGluGrad(Device& device, const char* kernel,
                               const ClampedSwiGluGradArgs& args) {
  return Launch(device, kernel, args, [](const ClampedSwiGluGradArgs& a) {
    ForEachPieceStreaming(a.operands, [&](auto in, auto out, int64_t n, bool stream) {
      simd::ClampedSwiGluGrad(a.dtype, a.slope, a.limit, in[0], in[1], in[2], out[0], out[1], n,
                              stream);
    });
  });
}

}  // namespace dtensor::kernels::cpu
