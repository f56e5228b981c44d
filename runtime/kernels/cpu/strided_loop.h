// The loops over N-dimensional strided operands that all kernels share. Each turns arbitrary
// strides into calls on contiguous memory, so that a kernel is one loop over contiguous elements:
//
//   StridedLoop<N>  visits the offsets of N operands of one shape, row by row, in the fewest rows
//   Pieces          element by element: contiguous pieces of inputs and outputs
//   Rows            along the last dimension: whole contiguous rows of the inputs
//   Packed          one input as a whole, in row-major order
//
// All are plain values that kernels capture: they hold bare pointers, never a Tensor (see
// device.h).
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_LOOP_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_LOOP_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::kernels {

// The dimensions of N operands of one shape, innermost first: sizes of 1 dropped, and neighbours
// that every operand walks with one stride joined.
template <int N>
class StridedLoop {
 public:
  using Offsets = std::array<int64_t, N>;  // in elements, one for each operand

  StridedLoop(absl::Span<const int64_t> shape,
              const std::array<absl::Span<const int64_t>, N>& strides) {
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
      Dim dim{shape[d], {}};
      for (int i = 0; i < N; ++i) dim.stride[i] = strides[i][d];
      Add(dim);
    }
  }

  bool empty() const { return empty_; }
  int64_t inner_size() const { return dims_.empty() ? 1 : dims_[0].size; }
  int64_t inner_stride(int i) const { return dims_.empty() ? 1 : dims_[0].stride[i]; }

  // Calls fn(offsets) at the start of each row of inner_size() elements, in row-major order.
  template <typename Fn>
  void ForEachRow(Fn&& fn) const {
    if (empty_) return;
    Offsets offsets{};
    absl::InlinedVector<int64_t, 4> index(dims_.size(), 0);
    while (true) {
      fn(offsets);
      size_t d = 1;
      for (; d < dims_.size(); ++d) {
        for (int i = 0; i < N; ++i) offsets[i] += dims_[d].stride[i];
        if (++index[d] < dims_[d].size) break;
        for (int i = 0; i < N; ++i) offsets[i] -= dims_[d].stride[i] * dims_[d].size;
        index[d] = 0;
      }
      if (d >= dims_.size()) return;
    }
  }

 private:
  struct Dim {
    int64_t size;
    Offsets stride;
  };

  void Add(const Dim& outer) {
    if (outer.size == 0) empty_ = true;
    if (outer.size == 1) return;
    if (!dims_.empty()) {
      Dim& inner = dims_.back();
      bool joins = true;
      for (int i = 0; i < N; ++i) joins &= outer.stride[i] == inner.stride[i] * inner.size;
      if (joins) {
        inner.size *= outer.size;
        return;
      }
    }
    dims_.push_back(outer);
  }

  absl::InlinedVector<Dim, 4> dims_;
  bool empty_ = false;
};

// dst[i] = src[i * stride], elements of `size` bytes (1, 2, 4 or 8).
void GatherStrided(void* dst, const void* src, int64_t n, int64_t stride, int64_t size);

// Inputs of one shape and row-major outputs of that shape, as contiguous pieces: ForEach calls
// fn(const void* const* in, void* const* out, n). An input whose innermost stride is not 1 (a
// transposed view, a broadcast) is gathered piece by piece into a small buffer.
template <int kIn, int kOut>
class Pieces {
 public:
  Pieces(const std::array<const Tensor*, kIn>& in, const std::array<const Tensor*, kOut>& out)
      : loop_(in[0]->shape(), Strides(in)) {
    for (int i = 0; i < kIn; ++i) {
      in_[i] = static_cast<const std::byte*>(in[i]->raw());
      in_size_[i] = SizeOf(in[i]->dtype());
      gathers_ |= loop_.inner_stride(i) != 1;
    }
    for (int o = 0; o < kOut; ++o) {
      out_[o] = static_cast<std::byte*>(out[o]->raw());
      out_size_[o] = SizeOf(out[o]->dtype());
    }
  }

  template <typename Fn>
  void ForEach(Fn&& fn) const {
    int64_t done = 0;
    loop_.ForEachRow([&](const auto& offsets) {
      Row(offsets, done, fn);
      done += loop_.inner_size();
    });
  }

 private:
  static constexpr int64_t kBuffer = 512;  // elements: stays in the first-level cache

  static std::array<absl::Span<const int64_t>, kIn> Strides(
      const std::array<const Tensor*, kIn>& in) {
    std::array<absl::Span<const int64_t>, kIn> strides;
    for (int i = 0; i < kIn; ++i) strides[i] = in[i]->strides();
    return strides;
  }

  template <typename Fn>
  void Row(const std::array<int64_t, kIn>& offsets, int64_t done, Fn& fn) const {
    const int64_t size = loop_.inner_size();
    const int64_t step = gathers_ ? std::min(size, kBuffer) : size;
    alignas(64) std::byte buffers[kIn][kBuffer * 8];
    for (int64_t begin = 0; begin < size; begin += step) {
      const int64_t n = std::min(step, size - begin);
      const void* in[kIn];
      for (int i = 0; i < kIn; ++i) {
        const int64_t stride = loop_.inner_stride(i);
        in[i] = in_[i] + (offsets[i] + begin * stride) * in_size_[i];
        if (stride == 1) continue;
        // A broadcast value fills its buffer once.
        if (stride != 0 || begin == 0) GatherStrided(buffers[i], in[i], n, stride, in_size_[i]);
        in[i] = buffers[i];
      }
      std::array<void*, kOut> out;
      for (int o = 0; o < kOut; ++o) out[o] = out_[o] + (done + begin) * out_size_[o];
      fn(in, out.data(), n);
    }
  }

  StridedLoop<kIn> loop_;
  std::array<const std::byte*, kIn> in_;
  std::array<int64_t, kIn> in_size_;
  std::array<std::byte*, kOut> out_;
  std::array<int64_t, kOut> out_size_;
  bool gathers_ = false;
};

// Inputs [..., n] of one shape as rows: ForEach calls fn(const void* const* in, const int64_t*
// row_stride, first, count) for groups of `count` rows, contiguous each, `row_stride[i]` elements
// apart; `first` is the row-major number of the first. Rows of no elements are visited too.
// Requires: rank >= 1.
template <int kIn>
class Rows {
 public:
  explicit Rows(const std::array<const Tensor*, kIn>& in)
      : n_(in[0]->shape().back()), loop_(Leading(in[0]->shape()), Strides(in)) {
    for (int i = 0; i < kIn; ++i) {
      data_[i] = static_cast<const std::byte*>(in[i]->raw());
      size_[i] = SizeOf(in[i]->dtype());
      stride_[i] = in[i]->strides().back();
      gathers_ |= stride_[i] != 1 && n_ > 1;
    }
  }

  int64_t row_size() const { return n_; }

  // In groups of at most `most` rows.
  template <typename Fn>
  void ForEach(Fn&& fn, int64_t most = std::numeric_limits<int64_t>::max()) const {
    std::array<std::vector<std::byte>, kIn> buffers;
    int64_t first = 0;
    loop_.ForEachRow([&](const auto& offsets) {
      Group(offsets, first, most, buffers, fn);
      first += loop_.inner_size();
    });
  }

 private:
  static absl::Span<const int64_t> Leading(absl::Span<const int64_t> dims) {
    return dims.first(dims.size() - 1);
  }
  static std::array<absl::Span<const int64_t>, kIn> Strides(
      const std::array<const Tensor*, kIn>& in) {
    std::array<absl::Span<const int64_t>, kIn> strides;
    for (int i = 0; i < kIn; ++i) strides[i] = Leading(in[i]->strides());
    return strides;
  }

  template <typename Fn>
  void Group(const std::array<int64_t, kIn>& offsets, int64_t first, int64_t most,
             std::array<std::vector<std::byte>, kIn>& buffers, Fn& fn) const {
    const int64_t rows = loop_.inner_size();
    const int64_t step = gathers_ ? 1 : most;
    for (int64_t begin = 0; begin < rows;) {
      const int64_t count = std::min(step, rows - begin);
      const void* in[kIn];
      int64_t row_stride[kIn];
      for (int i = 0; i < kIn; ++i) {
        in[i] = nullptr;
        row_stride[i] = loop_.inner_stride(i);
        if (n_ == 0) continue;
        in[i] = data_[i] + (offsets[i] + begin * row_stride[i]) * size_[i];
        if (stride_[i] == 1 || n_ == 1) continue;
        buffers[i].resize(n_ * size_[i]);
        GatherStrided(buffers[i].data(), in[i], n_, stride_[i], size_[i]);
        in[i] = buffers[i].data();
      }
      fn(in, row_stride, first + begin, count);
      begin += count;
    }
  }

  int64_t n_;
  StridedLoop<kIn> loop_;
  std::array<const std::byte*, kIn> data_;
  std::array<int64_t, kIn> size_, stride_;
  bool gathers_ = false;
};

// One input in row-major order: its own memory when it is contiguous, otherwise a copy. For the
// small operands (a weight, ids, one value for each row) beside a large one.
class Packed {
 public:
  explicit Packed(const Tensor& tensor);
  // Inside the kernel; `scratch` holds the copy, if there is one.
  const void* Get(std::vector<std::byte>& scratch) const;

 private:
  StridedLoop<1> loop_;
  const std::byte* data_;
  int64_t bytes_, size_;
  bool contiguous_;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_LOOP_H_
