#include "dtensor/runtime/kernels/elementwise.h"

#include <algorithm>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/cpu/elementwise_simd.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/kernels/cpu/strided_loop.h"

namespace dtensor::kernels {
namespace {

void CheckAlike(const Tensor& a, const Tensor& b) {
  DT_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype());
}

void CheckOut(const Tensor& in, const Tensor& out) {
  DT_CHECK(out.shape() == in.shape());
  DT_CHECK(out.is_contiguous());
}

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

// Between different types.
void Convert(DType from, const void* a, DType to, void* out, int64_t n, bool stream) {
  if (from == DType::kF32 && to == DType::kBF16) {
    simd::Narrow(static_cast<const float*>(a), static_cast<BFloat16*>(out), n, stream);
  } else if (from == DType::kBF16 && to == DType::kF32) {
    simd::Widen(static_cast<const BFloat16*>(a), static_cast<float*>(out), n, stream);
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

absl::Status Binary(Device& device, BinaryOp op, const Tensor& a, const Tensor& b,
                    const Tensor& out) {
  CheckAlike(a, b);
  CheckAlike(a, out);
  CheckOut(a, out);
  DT_CHECK(op != BinaryOp::kDiv || IsFloat(a.dtype()));
  const Pieces<2, 1> pieces({&a, &b}, {&out});
  const bool stream = StreamStores({&a, &b}, out);
  return device.Launch("Binary", [=, dtype = a.dtype()] {
    pieces.ForEach([&](const void* const* in, void* const* out, int64_t n) {
      if (IsFloat(dtype)) return simd::Binary(op, dtype, in[0], in[1], out[0], n, stream);
      BinaryIntegers(op, dtype, in[0], in[1], out[0], n);
    });
    FinishStores(stream);
  });
}

absl::Status Unary(Device& device, UnaryOp op, const Tensor& a, const Tensor& out) {
  CheckOut(a, out);
  DT_CHECK(op == UnaryOp::kCopy || (a.dtype() == out.dtype() && IsFloat(a.dtype())));
  if (op == UnaryOp::kCopy && a.dtype() == out.dtype()) return Copy(device, a, out);
  const Pieces<1, 1> pieces({&a}, {&out});
  const bool stream = StreamStores({&a}, out);
  return device.Launch("Unary", [=, from = a.dtype(), to = out.dtype()] {
    pieces.ForEach([&](const void* const* in, void* const* out, int64_t n) {
      if (op == UnaryOp::kCopy) return Convert(from, in[0], to, out[0], n, stream);
      simd::Unary(op, from, in[0], out[0], n, stream);
    });
    FinishStores(stream);
  });
}

absl::Status Affine(Device& device, const Tensor& a, double scale, double shift,
                    const Tensor& out) {
  CheckAlike(a, out);
  CheckOut(a, out);
  DT_CHECK(a.dtype() != DType::kBool);
  const Pieces<1, 1> pieces({&a}, {&out});
  const bool stream = StreamStores({&a}, out);
  return device.Launch("Affine", [=, dtype = a.dtype()] {
    pieces.ForEach([&](const void* const* in, void* const* out, int64_t n) {
      if (IsFloat(dtype)) return simd::Affine(dtype, in[0], scale, shift, out[0], n, stream);
      AffineIntegers(dtype, in[0], scale, shift, out[0], n);
    });
    FinishStores(stream);
  });
}

absl::Status Fill(Device& device, const Tensor& out, double value) {
  const StridedLoop<1> loop(out.shape(), {out.strides()});
  return device.Launch("Fill", [=, dtype = out.dtype(), data = out.raw()] {
    VisitDType(dtype, [&](auto t) {
      using T = decltype(t);
      const T element = Cast<T>(value);
      loop.ForEachRow([&](const auto& offsets) {
        T* row = static_cast<T*>(data) + offsets[0];
        if (loop.inner_stride(0) == 1) return (void)std::fill_n(row, loop.inner_size(), element);
        FillStrided(row, loop.inner_size(), loop.inner_stride(0), element);
      });
    });
  });
}

absl::Status SiluGrad(Device& device, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  CheckAlike(x, dy);
  CheckAlike(x, dx);
  CheckOut(x, dx);
  DT_CHECK(IsFloat(x.dtype()));
  const Pieces<2, 1> pieces({&x, &dy}, {&dx});
  const bool stream = StreamStores({&x, &dy}, dx);
  return device.Launch("SiluGrad", [=, dtype = x.dtype()] {
    pieces.ForEach([&](const void* const* in, void* const* out, int64_t n) {
      simd::SiluGrad(dtype, in[0], in[1], out[0], n, stream);
    });
    FinishStores(stream);
  });
}

absl::Status SiluMul(Device& device, const Tensor& gate, const Tensor& up, const Tensor& y) {
  CheckAlike(gate, up);
  CheckAlike(gate, y);
  CheckOut(gate, y);
  DT_CHECK(IsFloat(gate.dtype()));
  const Pieces<2, 1> pieces({&gate, &up}, {&y});
  const bool stream = StreamStores({&gate, &up}, y);
  return device.Launch("SiluMul", [=, dtype = gate.dtype()] {
    pieces.ForEach([&](const void* const* in, void* const* out, int64_t n) {
      simd::SiluMul(dtype, in[0], in[1], out[0], n, stream);
    });
    FinishStores(stream);
  });
}

absl::Status SiluMulGrad(Device& device, const Tensor& gate, const Tensor& up, const Tensor& dy,
                         const Tensor& dgate, const Tensor& dup) {
  CheckAlike(gate, up);
  CheckAlike(gate, dy);
  for (const Tensor* out : {&dgate, &dup}) {
    CheckAlike(gate, *out);
    CheckOut(gate, *out);
  }
  DT_CHECK(IsFloat(gate.dtype()));
  const Pieces<3, 2> pieces({&gate, &up, &dy}, {&dgate, &dup});
  const bool stream = StreamStores({&gate, &up, &dy}, dgate) &&
                      StreamStores({&gate, &up, &dy}, dup) && LieAlike(dgate, dup);
  return device.Launch("SiluMulGrad", [=, dtype = gate.dtype()] {
    pieces.ForEach([&](const void* const* in, void* const* out, int64_t n) {
      simd::SiluMulGrad(dtype, in[0], in[1], in[2], out[0], out[1], n, stream);
    });
    FinishStores(stream);
  });
}

}  // namespace dtensor::kernels
