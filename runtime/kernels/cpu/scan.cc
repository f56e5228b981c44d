#include "dtensor/runtime/kernels/cpu/scan.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/launch.h"

namespace dtensor::kernels::cpu {
namespace {

template <typename C>
C Plus(C a, C b) {
  if constexpr (kIsFloat<C>) {
    return a + b;
  } else {
    return WrapAdd(a, b);
  }
}

// Rows [n, inner] of x, in the order of the sums.
template <typename T>
class Scan {
 public:
  using C = Compute<T>;
  explicit Scan(const CumSumArgs& a) : a_(a), before_(a.inner), sums_(a.inner), chunk_(a.inner) {}

  void Run(int64_t outer) {
    x_ = static_cast<const T*>(a_.x) + outer * a_.x_outer_stride;
    y_ = static_cast<T*>(a_.y) + outer * a_.y_outer_stride;
    std::fill(before_.begin(), before_.end(), C{0});
    if (a_.start != nullptr) {
      std::copy_n(static_cast<const C*>(a_.start) + outer * a_.inner, a_.inner, before_.begin());
    }
    for (int64_t begin = 0; begin < a_.n; begin += kScanChunk) {
      const int64_t end = std::min(begin + kScanChunk, a_.n);
      a_.inner == 1 ? RunColumn(begin, end) : RunRows(begin, end);
    }
  }

 private:
  // A chunk of one column, whose sums stay in registers.
  void RunColumn(int64_t begin, int64_t end) {
    C sum = before_[0], chunk{0};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = a_.reverse ? a_.n - 1 - i : i;
      const C value = Cast<C>(x_[at]);
      sum = Plus(sum, value);
      chunk = Plus(chunk, value);
      y_[at] = Cast<T>(sum);
    }
    before_[0] = Plus(before_[0], chunk);
  }

  void RunRows(int64_t begin, int64_t end) {
    sums_ = before_;
    std::fill(chunk_.begin(), chunk_.end(), C{0});
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = (a_.reverse ? a_.n - 1 - i : i) * a_.inner;
      for (int64_t b = 0; b < a_.inner; ++b) {
        const C value = Cast<C>(x_[at + b]);
        sums_[b] = Plus(sums_[b], value);
        chunk_[b] = Plus(chunk_[b], value);
        y_[at + b] = Cast<T>(sums_[b]);
      }
    }
    for (int64_t b = 0; b < a_.inner; ++b) before_[b] = Plus(before_[b], chunk_[b]);
  }

  const CumSumArgs& a_;
  const T* x_ = nullptr;
  T* y_ = nullptr;
  std::vector<C> before_, sums_, chunk_;
};

template <typename T>
void RunAll(const CumSumArgs& a) {
  Scan<T> scan(a);
  for (int64_t outer = 0; outer < a.outer; ++outer) scan.Run(outer);
}

}  // namespace

absl::Status CumSum(Device& device, const char* kernel, const CumSumArgs& args) {
  return Launch(device, kernel, args, [](const CumSumArgs& a) {
    if (a.outer == 0 || a.n == 0 || a.inner == 0) return;
    switch (a.dtype) {
      case DType::kI32:
        return RunAll<int32_t>(a);
      case DType::kI64:
        return RunAll<int64_t>(a);
      default:
        return VisitFloat(a.dtype, [&](auto t) { RunAll<decltype(t)>(a); });
    }
  });
}

}  // namespace dtensor::kernels::cpu
