#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/attention_block.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention_merge.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Element [batch, head, row].
template <typename T>
T* RowOf(const AttentionOperand& x, int64_t batch, int64_t head, int64_t row) {
  return static_cast<T*>(x.data) + batch * x.batch_stride + head * x.head_stride +
         row * x.row_stride;
}

// For one row: replaces each part's lse in `weights` by its weight, and returns the sum's lse.
template <typename T>
T WeightsOf(T* weights, int64_t n) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const T top = *std::max_element(weights, weights + n);
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = weights[i] == -kInf ? 0 : std::exp(weights[i] - top);
    sum += weights[i];
  }
  if (sum == 0) return -kInf;
  for (int64_t i = 0; i < n; ++i) weights[i] /= sum;
  return top + std::log(sum);
}

template <typename Out, typename T>
void MergeRow(const AttentionMergeParts& parts, const T* weights, int64_t dim, int64_t batch,
              int64_t head, int64_t row, Out* out) {
  const hn::ScalableTag<T> d;
  const int64_t n = static_cast<int64_t>(parts.o.size());
  ForEachVector(d, dim, [&](int64_t x, auto lanes) DT_VECTOR_LAMBDA {
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < n; ++i) {
      if (weights[i] == 0) continue;  // this part's o may hold anything, even NaN
      const T* o = RowOf<T>(parts.o[i], batch, head, row);
      sum = hn::MulAdd(hn::Set(d, weights[i]), Load(d, o + x, lanes), sum);
    }
    Store(sum, d, out + x, lanes);
  });
}

template <typename Out, typename T>
void MergeRows(const AttentionShape& shape, const AttentionMergeParts& parts,
               const AttentionOperand& o, const AttentionOperand& lse, T* weights) {
  const int64_t n = static_cast<int64_t>(parts.lse.size());
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.q_heads; ++head) {
      for (int64_t row = 0; row < shape.q_rows; ++row) {
        for (int64_t i = 0; i < n; ++i) weights[i] = *RowOf<T>(parts.lse[i], batch, head, row);
        *RowOf<T>(lse, batch, head, row) = WeightsOf(weights, n);
        MergeRow(parts, weights, shape.dim, batch, head, row, RowOf<Out>(o, batch, head, row));
      }
    }
  }
}

void Merge(const AttentionShape& shape, const AttentionMergeParts& parts, const AttentionOperand& o,
           const AttentionOperand& lse, void* scratch) {
  VisitFloat(shape.out_dtype, [&](auto t) {
    using Out = decltype(t);
    if constexpr (std::is_same_v<Out, double>) {
      MergeRows<double>(shape, parts, o, lse, static_cast<double*>(scratch));
    } else {
      MergeRows<Out>(shape, parts, o, lse, static_cast<float*>(scratch));
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Merge);

void RunAttentionMerge(const AttentionShape& shape, const AttentionMergeParts& parts,
                       const AttentionOperand& o, const AttentionOperand& lse, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Merge)(shape, parts, o, lse, scratch);
}

}  // namespace dtensor::kernels
#endif  // HWY_ONCE
