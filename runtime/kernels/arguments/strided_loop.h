// N-dimensional strided operands, as arguments of kernels:
//
//   StridedLoop<N>           the offsets of N operands of one shape
//   StridedOperands<In, Out> element by element: inputs of one shape, row-major outputs
//   RowOperands<In>          along the last dimension: inputs [..., n] of one shape
//   StridedInput             a single input
//
// All are flat values: bare pointers and arrays of fixed size, which a launch may copy as bytes.
// They are made from tensors; each device visits the elements in its own way.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_STRIDED_LOOP_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_STRIDED_LOOP_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// The dimensions of N operands of one shape, innermost first. Dimensions of size 1 are dropped, and
// neighbouring dimensions that every operand traverses with one stride are joined.
template <int N>
class StridedLoop {
 public:
  // The most that a DistributedTensor has (Layout::kMaxDims). Requires: no more remain.
  static constexpr int kMaxDims = 32;
  using Offsets = std::array<int64_t, N>;  // in elements, one for each operand

  StridedLoop(absl::Span<const int64_t> shape,
              const std::array<absl::Span<const int64_t>, N>& strides) {
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
      Dim dim{shape[d], {}};
      for (int i = 0; i < N; ++i) dim.stride[i] = strides[i][d];
      Add(dim);
    }
  }

  constexpr bool empty() const { return empty_; }
  constexpr int ndim() const { return ndim_; }
  constexpr int64_t size(int d) const { return dims_[d].size; }
  constexpr int64_t stride(int d, int i) const { return dims_[d].stride[i]; }
  constexpr int64_t inner_size() const { return ndim_ == 0 ? 1 : size(0); }
  constexpr int64_t inner_stride(int i) const { return ndim_ == 0 ? 1 : stride(0, i); }

  // Calls fn(offsets) at the start of each row of inner_size() elements, in row-major order.
  template <typename Fn>
  void ForEachRow(Fn&& fn) const {
    ForEachBlock(1, fn);
  }

  // As ForEachRow, for the first element of each block that consists of the innermost `dims`
  // dimensions.
  template <typename Fn>
  void ForEachBlock(int dims, Fn&& fn) const {
    if (empty_) return;
    Offsets offsets{};
    std::array<int64_t, kMaxDims> index;
    for (int d = dims; d < ndim_; ++d) index[d] = 0;
    while (true) {
      fn(offsets);
      int d = dims;
      for (; d < ndim_; ++d) {
        for (int i = 0; i < N; ++i) offsets[i] += stride(d, i);
        if (++index[d] < size(d)) break;
        for (int i = 0; i < N; ++i) offsets[i] -= stride(d, i) * size(d);
        index[d] = 0;
      }
      if (d >= ndim_) return;
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
    if (ndim_ > 0) {
      Dim& inner = dims_[ndim_ - 1];
      bool joins = true;
      for (int i = 0; i < N; ++i) joins &= outer.stride[i] == inner.stride[i] * inner.size;
      if (joins) {
        inner.size *= outer.size;
        return;
      }
    }
    DT_CHECK(ndim_ < kMaxDims);
    dims_[ndim_++] = outer;
  }

  std::array<Dim, kMaxDims> dims_;  // the first ndim_ are used; the others are uninitialized
  int ndim_ = 0;
  bool empty_ = false;
};

// Inputs of one shape, and outputs of that shape, which are row-major. Each operand has its own
// type.
template <int kIn, int kOut>
struct StridedOperands {
  StridedOperands(const std::array<const Tensor*, kIn>& inputs,
                  const std::array<const Tensor*, kOut>& outputs)
      : loop(inputs[0]->shape(), StridesOf(inputs)) {
    for (int i = 0; i < kIn; ++i) {
      in[i] = static_cast<const std::byte*>(inputs[i]->raw());
      in_size[i] = SizeOf(inputs[i]->dtype());
    }
    for (int o = 0; o < kOut; ++o) {
      out[o] = static_cast<std::byte*>(outputs[o]->raw());
      out_size[o] = SizeOf(outputs[o]->dtype());
      for (const Tensor* input : inputs) in_place |= input->SharesStorageWith(*outputs[o]);
    }
    if constexpr (kOut > 0) out_bytes = outputs[0]->bytes();
  }

  static std::array<absl::Span<const int64_t>, kIn> StridesOf(
      const std::array<const Tensor*, kIn>& tensors) {
    std::array<absl::Span<const int64_t>, kIn> strides;
    for (int i = 0; i < kIn; ++i) strides[i] = tensors[i]->strides();
    return strides;
  }

  StridedLoop<kIn> loop;  // over the inputs
  std::array<const std::byte*, kIn> in;
  std::array<int64_t, kIn> in_size;  // of an element, in bytes
  std::array<std::byte*, kOut> out;
  std::array<int64_t, kOut> out_size;
  int64_t out_bytes = 0;  // of the first output
  bool in_place = false;  // an output's memory is also an input's
};

// Inputs [..., n] of one shape. Requires: rank >= 1.
template <int kIn>
struct RowOperands {
  explicit RowOperands(const std::array<const Tensor*, kIn>& inputs)
      : n(inputs[0]->shape().back()), loop(Leading(inputs[0]->shape()), StridesOf(inputs)) {
    for (int i = 0; i < kIn; ++i) {
      in[i] = static_cast<const std::byte*>(inputs[i]->raw());
      in_size[i] = SizeOf(inputs[i]->dtype());
      stride[i] = inputs[i]->strides().back();
    }
  }

  static absl::Span<const int64_t> Leading(absl::Span<const int64_t> dims) {
    return dims.first(dims.size() - 1);
  }
  static std::array<absl::Span<const int64_t>, kIn> StridesOf(
      const std::array<const Tensor*, kIn>& tensors) {
    std::array<absl::Span<const int64_t>, kIn> strides;
    for (int i = 0; i < kIn; ++i) strides[i] = Leading(tensors[i]->strides());
    return strides;
  }

  int64_t n;              // elements of a row
  StridedLoop<kIn> loop;  // over the rows
  std::array<const std::byte*, kIn> in;
  std::array<int64_t, kIn> in_size;  // of an element, in bytes
  std::array<int64_t, kIn> stride;   // within a row
};

// One input of any strides: a small operand (a weight, ids, one value for each row) next to a large
// one, which kernels read in row-major order.
struct StridedInput {
  explicit StridedInput(const Tensor& tensor)
      : loop(tensor.shape(), {tensor.strides()}),
        data(static_cast<const std::byte*>(tensor.raw())),
        bytes(tensor.bytes()),
        size(SizeOf(tensor.dtype())),
        contiguous(tensor.is_contiguous()) {}

  StridedLoop<1> loop;
  const std::byte* data;
  int64_t bytes, size;  // in total, and of one element
  bool contiguous;
};

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_STRIDED_LOOP_H_
