#include "dtensor/runtime/kernels/cpu/reduce.h"

#include <algorithm>
#include <limits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMax:
      return a > b || a != a ? a : b;  // a NaN on either side is the result
    case ReduceOp::kMin:
      return a < b || a != a ? a : b;
    case ReduceOp::kProduct:
      if constexpr (kIsFloat<T>) return a * b;
      return WrapMul(a, b);
    default:
      if constexpr (kIsFloat<T>) return a + b;
      return WrapAdd(a, b);
  }
}

template <typename T>
T Identity(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kMax:
      return kIsFloat<T> ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::kMin:
      return kIsFloat<T> ? Limits::infinity() : Limits::max();
    case ReduceOp::kProduct:
      return T{1};
    default:
      return T{0};
  }
}

template <typename T>
Compute<T> ReduceRow(ReduceOp op, DType dtype, const T* x, int64_t n) {
  Compute<T> acc = Identity<Compute<T>>(op);
  if constexpr (kIsFloat<T>) {
    simd::ReduceRow(op, dtype, x, n, &acc);
  } else {
    for (int64_t i = 0; i < n; ++i) acc = Combine(op, acc, x[i]);
  }
  return acc;
}

template <typename T>
void ReduceInto(ReduceOp op, DType dtype, const T* x, Compute<T>* acc, int64_t n) {
  if constexpr (kIsFloat<T>) {
    simd::ReduceInto(op, dtype, x, acc, n);
  } else {
    for (int64_t i = 0; i < n; ++i) acc[i] = Combine(op, acc[i], x[i]);
  }
}

// Combines terms pairwise, like the carries of a binary counter, so that the rounding error of a
// sum grows only with the logarithm of its length.
template <typename T>
class Cascade {
 public:
  explicit Cascade(ReduceOp op) : op_(op) {}
  void Add(T term) {
    int level = 0;
    for (; (count_ >> level) & 1; ++level) term = Combine(op_, level_[level], term);
    level_[level] = term;
    ++count_;
  }
  T Total() const {
    T total = Identity<T>(op_);
    for (int level = 0; count_ >> level; ++level) {
      if ((count_ >> level) & 1) total = Combine(op_, level_[level], total);
    }
    return total;
  }

 private:
  ReduceOp op_;
  int64_t count_ = 0;
  T level_[63];
};

template <typename Out, typename Acc>
Out Result(const ReduceArgs& r, Acc total) {
  if constexpr (kIsFloat<Acc>) {
    if (r.divisor != 1) total /= static_cast<Acc>(r.divisor);
  }
  return Cast<Out>(total);
}

constexpr int64_t kTerms = 8192;   // terms of one chain of additions per lane, along rows
constexpr int64_t kRows = 256;     // terms of one chain, across rows
constexpr int64_t kColumns = 512;  // processed together: their sums stay in the first-level cache

// Reduces the elements at `x` plus each of the reduced offsets.
template <typename T>
Compute<T> ReduceOne(const ReduceArgs& r, const T* x) {
  Cascade<Compute<T>> cascade(r.op);
  const int64_t n = r.reduced.inner_size(), stride = r.reduced.inner_stride(0);
  const int64_t step = stride == 1 ? kTerms : std::min<int64_t>(kTerms, 512);
  T buffer[512];
  r.reduced.ForEachRow([&](const auto& offsets) {
    for (int64_t begin = 0; begin < n; begin += step) {
      const int64_t count = std::min(step, n - begin);
      const T* row = x + offsets[0] + begin * stride;
      if (stride != 1) GatherStrided(buffer, row, count, stride, sizeof(T));
      cascade.Add(ReduceRow(r.op, r.dtype, stride == 1 ? row : buffer, count));
    }
  });
  return cascade.Total();
}

// Reduces `n` neighbouring columns that begin at `x`: adds row after row to their sums.
template <typename T>
void ReduceColumns(const ReduceArgs& r, const T* x, int64_t n, Compute<T>* total) {
  using Acc = Compute<T>;
  const Acc identity = Identity<Acc>(r.op);
  Acc block[kColumns];
  std::fill_n(block, n, identity);
  std::fill_n(total, n, identity);
  int64_t rows = 0;
  r.reduced.ForEachRow([&](const auto& offsets) {
    for (int64_t i = 0; i < r.reduced.inner_size(); ++i) {
      ReduceInto(r.op, r.dtype, x + offsets[0] + i * r.reduced.inner_stride(0), block, n);
      if (++rows % kRows != 0) continue;
      for (int64_t c = 0; c < n; ++c) total[c] = Combine(r.op, total[c], block[c]);
      std::fill_n(block, n, identity);
    }
  });
  for (int64_t c = 0; c < n; ++c) total[c] = Combine(r.op, total[c], block[c]);
}

template <typename T, typename Out>
void ReduceAll(const ReduceArgs& r) {
  const T* x = static_cast<const T*>(r.x);
  Out* out = static_cast<Out*>(r.out);
  if (r.reduced.empty()) {
    std::fill_n(out, r.outputs, Result<Out>(r, Identity<Compute<T>>(r.op)));
    return;
  }
  const int64_t n = r.kept.inner_size(), stride = r.kept.inner_stride(0);
  const bool columns = n > 1 && stride == 1 && r.reduced.inner_stride(0) != 1;
  r.kept.ForEachRow([&](const auto& offsets) {
    const T* row = x + offsets[0];
    if (!columns) {
      for (int64_t i = 0; i < n; ++i) *out++ = Result<Out>(r, ReduceOne(r, row + i * stride));
      return;
    }
    for (int64_t begin = 0; begin < n; begin += kColumns) {
      const int64_t count = std::min(kColumns, n - begin);
      Compute<T> total[kColumns];
      ReduceColumns(r, row + begin, count, total);
      for (int64_t c = 0; c < count; ++c) *out++ = Result<Out>(r, total[c]);
    }
  });
}

}  // namespace

absl::Status Reduce(Device& device, const char* kernel, const ReduceArgs& args) {
  return Launch(device, kernel, args, [](const ReduceArgs& a) {
    VisitDType(a.dtype, [&](auto t) {
      using T = decltype(t);
      if (a.out_dtype == a.dtype) return ReduceAll<T, T>(a);
      ReduceAll<T, Compute<T>>(a);
    });
  });
}

absl::Status SumOfSquares(Device& device, const char* kernel, const SumOfSquaresArgs& args) {
  return Launch(device, kernel, args, [](const SumOfSquaresArgs& a) {
    Cascade<double> cascade(ReduceOp::kSum);
    ForEachPiece(a.x, [&](const void* const* in, void* const*, int64_t n) {
      for (int64_t begin = 0; begin < n; begin += kTerms) {
        const auto* x = static_cast<const std::byte*>(in[0]) + begin * SizeOf(a.dtype);
        cascade.Add(simd::SumOfSquares(a.dtype, x, std::min(kTerms, n - begin)));
      }
    });
    if (a.dtype == DType::kF64) {
      *static_cast<double*>(a.out) = cascade.Total();
    } else {
      *static_cast<float*>(a.out) = static_cast<float>(cascade.Total());
    }
  });
}

}  // namespace dtensor::kernels::cpu
