// Products of small matrices in scratch memory, and the copies into it, from which the attention
// kernels are built. Compiled once for each instruction set: include after hwy/foreach_target.h.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_PANELS_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_PANELS_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_PANELS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/attention_scratch.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"
// After highway_targets.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// All matrices in scratch memory are divided into panels of columns: element (r, c) of a matrix of
// R rows is at (c / kPanel * R + r) * kPanel + c % kPanel. So a matrix can be either operand of a
// product without strides: as the left one its elements are at constant distances, as the right one
// they are consecutive.
template <typename T>
inline constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
template <typename T>
inline constexpr int64_t kPanel = 2 * kLanes<T>;

// The rows of the largest tile: as many as there are registers for, with two vectors per row. Tiles
// have kStrip rows, or two thirds or one third of that.
inline constexpr int kStrip = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
inline constexpr int kStep = kStrip / 3;

template <typename T>
using VecOf = hn::Vec<hn::ScalableTag<T>>;

// The greater of both; x if x is NaN.
template <class V>
HWY_INLINE V GreaterOrNan(V a, V x) {
  // Max is one instruction that does this: if one operand is NaN, x86 returns the second.
  constexpr bool kMaxDoes =
      (HWY_ARCH_X86 || HWY_ARCH_ARM) && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR;
  if constexpr (kMaxDoes) {
    return hn::Max(a, x);
  } else {
    return hn::IfThenElse(hn::Gt(a, x), a, x);
  }
}

// 2^x. Relative error at most 2e-7 (f32) or 3e-16 (f64); 0 below the smallest normal number; x <
// 127 (1023).
template <class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  constexpr bool kF32 = sizeof(T) == 4;
  constexpr int kMantissa = kF32 ? 23 : 52;
  const hn::RebindToSigned<D> di;
  // At `lowest` the polynomial is exactly 1 and the exponent field becomes 0.
  const auto lowest = hn::Set(d, static_cast<T>(kF32 ? -127 : -1023));
  x = GreaterOrNan(lowest, x);
  const auto magic =
      hn::Set(d, static_cast<T>(kF32 ? 12582912.0 : 6755399441055744.0));  // 1.5 * 2^kMantissa
  const auto shifted = hn::Add(x, magic);  // its last bits are the nearest integer
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  hn::Vec<D> p;
  // Minimax on [-1/2, 1/2] with p(0) = 1.
  if constexpr (kF32) {
    p = hn::Set(d, 0.00132647291f);
    p = hn::MulAdd(p, f, hn::Set(d, 0.00967151264f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.0555073374f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.240222421f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.693146978f));
  } else {
    p = hn::Set(d, 4.4347689286262757e-10);
    for (const double c :
         {7.0737831844583166e-09, 1.0178199586447909e-07, 1.3215435282680663e-06,
          1.525273349309594e-05, 0.00015403530457111362, 0.0013333558146774649,
          0.0096181291075941207, 0.055504108664820084, 0.2402265069591013, 0.69314718055994529}) {
      p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(c)));
    }
  }
  p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1)));
  const auto exponent = hn::ShiftLeft<kMantissa>(hn::BitCast(di, shifted));
  const auto power = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  // 2^x is always greater than x, so x replaces the power only if it is NaN.
  return GreaterOrNan(power, x);
}

template <typename T>
T Exp2Scalar(T x) {
  const hn::ScalableTag<T> d;
  return hn::GetLane(Exp2(d, hn::Set(d, x)));
}

// --- Copies between memory and panels. `memory` holds rows of In, `stride` elements apart.

inline constexpr int64_t kRowsAhead = 12;

// The row may lie outside of the tensor.
template <typename In>
HWY_INLINE void PrefetchRow(const In* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(In)) hwy::Prefetch(row + i);
}

// Copies rows x dim elements, times `factor`, into panels of a matrix of `panel_rows` rows,
// followed by `spare` rows of 0. Columns that complete a vector become 0; later ones are not
// touched.
template <typename In, typename T>
void Pack(const void* memory, int64_t stride, int64_t rows, int64_t spare, int64_t dim, T factor,
          int64_t panel_rows, T* panels) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  const In* in = static_cast<const In*>(memory);
  const auto factors = hn::Set(d, factor);
  for (int64_t r = 0; r < rows; ++r, in += stride, panels += P) {
    if (r + kRowsAhead < rows) PrefetchRow(in + kRowsAhead * stride, dim);
    T* panel = panels;
    int64_t c = 0;
    for (; c + P <= dim; c += P, panel += panel_rows * P) {
      hn::Store(hn::Mul(Load(d, in + c, All()), factors), d, panel);
      hn::Store(hn::Mul(Load(d, in + c + L, All()), factors), d, panel + L);
    }
    if (c + L <= dim) {
      hn::Store(hn::Mul(Load(d, in + c, All()), factors), d, panel);
      c += L;
      panel += L;
    }
    if (c < dim) hn::Store(hn::Mul(Load(d, in + c, First{dim - c}), factors), d, panel);
  }
  for (int64_t c = 0; c < dim; c += P, panels += panel_rows * P) {
    for (int64_t i = 0; i < spare * P; i += L) hn::Store(hn::Zero(d), d, panels + i);
  }
}

// The reverse of Pack. Bypasses the caches if `stream`, which requires rows of whole, aligned
// vectors.
template <typename Out, typename T>
void Unpack(const T* panels, int64_t panel_rows, int64_t rows, int64_t dim, T factor, void* memory,
            int64_t stride, bool stream) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  const auto factors = hn::Set(d, factor);
  Out* out = static_cast<Out*>(memory);
  // Row by row: a row's elements are adjacent, while different rows may share cache sets.
  for (int64_t r = 0; r < rows; ++r, panels += P, out += stride) {
    for (int64_t c = 0; c < dim; c += L) {
      const T* const panel = panels + c / P * P * panel_rows + c % P;
      const auto v = hn::Mul(hn::Load(d, panel), factors);
      if (c + L <= dim) {
        Store(v, d, out + c, All{stream});
      } else {
        Store(v, d, out + c, First{dim - c});
      }
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// Transposes kBlock columns of kLanes rows, beginning at column c: t[i] is column c + i.
template <typename T>
HWY_INLINE void TransposeBlock(const T* const* rows, int64_t c, VecOf<T>* t) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, kBlock = 16 / sizeof(T);
  // v[i] holds 16 bytes of each of the rows i, kBlock + i, 2 * kBlock + i...
  VecOf<T> v[kBlock];
#pragma GCC unroll 4
  for (int64_t i = 0; i < kBlock; ++i) {
    v[i] = hn::LoadDup128(d, rows[L - kBlock + i] + c);
#pragma GCC unroll 4
    for (int64_t j = L - 2 * kBlock; j >= 0; j -= kBlock) {
      v[i] = hn::IfThenElse(hn::FirstN(d, j + kBlock), hn::LoadDup128(d, rows[j + i] + c), v[i]);
    }
  }
  if constexpr (kBlock == 4) {
    const hn::RepartitionToWide<decltype(d)> dw;
    const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v[0], v[1]));
    const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v[2], v[3]));
    const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v[0], v[1]));
    const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v[2], v[3]));
    t[0] = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
    t[1] = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
    t[2] = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
    t[3] = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
  } else {
    t[0] = hn::InterleaveLower(d, v[0], v[1]);
    t[1] = hn::InterleaveUpper(d, v[0], v[1]);
  }
}
#endif

// Copies the transpose of rows x dim elements into panels of a matrix of `dim` rows: each row
// becomes a column. Columns that complete a vector are copies of the last one. `staging` has room
// for kAttentionPad rows, padded.
template <typename In, typename T>
void PackTransposed(const void* memory, int64_t stride, int64_t rows, int64_t dim, T* staging,
                    T* panels) {
  const hn::ScalableTag<T> d;
  constexpr int64_t P = kPanel<T>;
  const In* in = static_cast<const In*>(memory);
#if HWY_TARGET == HWY_SCALAR
  (void)staging;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < dim; ++c) {
      const auto x = Load(d, in + r * stride + c, All());
      hn::Store(x, d, panels + r / P * P * dim + r % P + c * P);
    }
  }
#else
  constexpr int64_t L = kLanes<T>, kBlock = 16 / sizeof(T);
  const bool in_place = std::is_same_v<In, T> && dim % kBlock == 0;
  const int64_t staging_stride = RoundUp(dim, L);
  for (int64_t r = 0; r < rows; r += L) {
    T* panel = panels + r / P * P * dim + r % P;
    const T* sources[L];
    for (int64_t i = 0; i < L; ++i) {
      const In* row = in + std::min(r + i, rows - 1) * stride;
      PrefetchRow(row + L * stride, dim);
      if constexpr (std::is_same_v<In, T>) sources[i] = row;
      if (in_place) continue;
      T* const copy = staging + i * staging_stride;
      ForEachVector(d, dim, [&](int64_t c, auto lanes) DT_VECTOR_LAMBDA {
        hn::Store(Load(d, row + c, lanes), d, copy + c);
      });
      sources[i] = copy;
    }
    VecOf<T> t[kBlock];
    int64_t c = 0;
    for (; c + kBlock <= dim; c += kBlock) {
      TransposeBlock(sources, c, t);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kBlock; ++i) hn::Store(t[i], d, panel + (c + i) * P);
    }
    if (c < dim) {
      TransposeBlock(sources, c, t);
      for (int64_t i = 0; i < dim - c; ++i) hn::Store(t[i], d, panel + (c + i) * P);
    }
  }
#endif
}

// --- Pairs of bf16. CPUs with AVX512_BF16 multiply them twice as fast as f32, exactly, and sum in
// f32. A pair is moved like a float, so rows of n elements are rows of n / 2 floats.

#if HWY_TARGET == HWY_AVX3
template <typename T>
inline constexpr bool kHasPairs = sizeof(T) == 4;

// sum[i] + the products of both halves of a[i] and b[i]. Highway 1.0 has no function for it.
template <class V>
HWY_INLINE V MulAddPairs(V a, V b, V sum) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(b.raw), "v"(a.raw));
  return sum;
}
#else
template <typename T>
inline constexpr bool kHasPairs = false;

template <class V>
HWY_INLINE V MulAddPairs(V, V, V sum) {
  return sum;
}
#endif

// Whether these operands, of `shape`, can be processed as pairs, in whole vectors.
template <typename T>
bool CanTakePairs(const AttentionShape& shape, std::initializer_list<AttentionOperand> operands) {
  if (!kHasPairs<T> || shape.dtype != DType::kBF16 || shape.dim % 32 != 0) return false;
  for (const AttentionOperand& x : operands) {
    if (x.row_stride % 2 != 0) return false;
  }
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// Pack and PackTransposed for bf16 rows, in pairs; `dim` counts elements.
template <typename T>
void PackPairs(const void* memory, int64_t stride, int64_t rows, int64_t spare, int64_t dim,
               int64_t panel_rows, T* panels) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  for (int64_t c = 0; c < dim / 2; c += L) {
    const T* in = static_cast<const T*>(memory) + c;
    T* panel = panels + c / P * P * panel_rows + c % P;
    for (int64_t r = 0; r < rows; ++r, in += stride / 2, panel += P) {
      hn::Store(hn::LoadU(d, in), d, panel);
    }
    for (int64_t r = 0; r < spare; ++r, panel += P) hn::Store(hn::Zero(d), d, panel);
  }
}
template <typename T>
void PackTransposedPairs(const void* memory, int64_t stride, int64_t rows, int64_t dim, T* staging,
                         T* panels) {
  PackTransposed<T, T>(memory, stride / 2, rows, dim / 2, staging, panels);
}

// out[r * out_stride] = sum of a * b over the elements of row r.
template <typename In, typename T>
void RowProducts(const void* a_memory, int64_t a_stride, const void* b_memory, int64_t b_stride,
                 int64_t rows, int64_t dim, T* out, int64_t out_stride) {
  const hn::ScalableTag<T> d;
  const In* a = static_cast<const In*>(a_memory);
  const In* b = static_cast<const In*>(b_memory);
  for (int64_t r = 0; r < rows; ++r, a += a_stride, b += b_stride) {
    out[r * out_stride] = SumVectors(d, dim, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
      return hn::Mul(Load(d, a + i, lanes), Load(d, b + i, lanes));
    });
  }
}

// Stores rows of T, one after another in memory, as rows of Out.
template <typename Out, typename T>
void StoreRows(const T* in, int64_t rows, int64_t dim, void* memory, int64_t stride) {
  const hn::ScalableTag<T> d;
  Out* out = static_cast<Out*>(memory);
  for (int64_t r = 0; r < rows; ++r, in += dim, out += stride) {
    ForEachVector(d, dim, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
      Store(Load(d, in + i, lanes), d, out + i, lanes);
    });
  }
}

// --- Products of panels.

// An M x N tile of vectors. acc[i][j] += a(i, k) * b(k, j) for n steps k, with a(i, k) at
// a[i * kRow + k * kColumn] and b(k, j) the j-th vector at b + k * kPanel.
template <int M, int N, int64_t kRow, int64_t kColumn, bool kPairs = false, typename T, class V>
HWY_INLINE void Accumulate(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int64_t n,
                           V (&acc)[M][N]) {
  const hn::ScalableTag<T> d;
  for (int64_t k = 0; k < n; ++k) {
    V bv[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) bv[j] = hn::Load(d, b + j * kLanes<T>);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const V av = hn::Set(d, a[i * kRow]);
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) {
        if constexpr (kPairs) {
          acc[i][j] = MulAddPairs(av, bv[j], acc[i][j]);
        } else {
          acc[i][j] = hn::MulAdd(av, bv[j], acc[i][j]);
        }
      }
    }
    a += kColumn;
    b += kPanel<T>;
  }
}

template <int M, int N, class V>
HWY_INLINE void Clear(V (&acc)[M][N]) {
  const hn::DFromV<V> d;
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) acc[i][j] = hn::Zero(d);
  }
}

template <int M, int N, typename T, class V>
HWY_INLINE void ScaleTile(T scale, V (&acc)[M][N]) {
  const auto factor = hn::Set(hn::DFromV<V>(), scale);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) acc[i][j] = hn::Mul(acc[i][j], factor);
  }
}

// acc = A * b. A is the M rows at `a` of a matrix whose panels are `a_panel` elements apart; b is
// one panel of n rows, or of n / 2 rows of pairs.
template <bool kPairs = false, int M, int N, typename T, class V>
HWY_INLINE void MultiplyRows(const T* a, int64_t a_panel, const T* b, int64_t n, V (&acc)[M][N]) {
  constexpr int64_t P = kPanel<T>;
  Clear(acc);
  if (kPairs) n /= 2;
  for (; n > P; n -= P, a += a_panel, b += P * P) Accumulate<M, N, P, 1, kPairs>(a, b, P, acc);
  Accumulate<M, N, P, 1, kPairs>(a, b, n, acc);
}

// c = beta[i] * acc (+ gamma[i] * c), rows `row_stride` apart.
template <int M, int N, typename T, class V>
HWY_INLINE void WriteTile(const V (&acc)[M][N], const T* beta, const T* gamma, T* c,
                          int64_t row_stride) {
  const hn::ScalableTag<T> d;
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      T* p = c + i * row_stride + j * kLanes<T>;
      V v = hn::Mul(acc[i][j], hn::Set(d, beta[i]));
      if (gamma != nullptr) v = hn::MulAdd(hn::LoadU(d, p), hn::Set(d, gamma[i]), v);
      hn::StoreU(v, d, p);
    }
  }
}

// c = beta * A * B (+ gamma * c) for M rows. A is as in MultiplyRows, with n columns; B has panels
// of `b_rows` rows and `dim` columns.
template <int M, typename T>
HWY_INLINE void MultiplyStrip(const T* a, int64_t a_panel, const T* b, int64_t b_rows, int64_t n,
                              int64_t dim, const T* beta, const T* gamma, T* c, int64_t row_stride,
                              int64_t c_panel) {
  constexpr int64_t P = kPanel<T>;
  for (; dim > 0; dim -= P, b += b_rows * P, c += c_panel) {
    if (dim > kLanes<T>) {
      VecOf<T> acc[M][2];
      MultiplyRows(a, a_panel, b, n, acc);
      WriteTile(acc, beta, gamma, c, row_stride);
    } else {
      VecOf<T> acc[M][1];
      MultiplyRows(a, a_panel, b, n, acc);
      WriteTile(acc, beta, gamma, c, row_stride);
    }
  }
}

// c += A^T B for M columns of A, at `a` in a panel, over n rows; B in panels of `b_rows` rows.
template <int M, typename T>
HWY_NOINLINE void MultiplyColumns(const T* a, const T* b, int64_t b_rows, int64_t n, int64_t dim,
                                  T* c, int64_t c_panel) {
  constexpr int64_t P = kPanel<T>;
  T ones[M];
  std::fill_n(ones, M, T{1});
  for (; dim > 0; dim -= P, b += b_rows * P, c += c_panel) {
    if (dim > kLanes<T>) {
      VecOf<T> acc[M][2];
      Clear(acc);
      Accumulate<M, 2, 1, P>(a, b, n, acc);
      WriteTile(acc, ones, ones, c, P);
    } else {
      VecOf<T> acc[M][1];
      Clear(acc);
      Accumulate<M, 1, 1, P>(a, b, n, acc);
      WriteTile(acc, ones, ones, c, P);
    }
  }
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_PANELS_INL_H_
