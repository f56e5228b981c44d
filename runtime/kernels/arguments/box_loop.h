// BoxLoop: one box of elements in the memories of several tensors, as a nest of loops.
//
// A plain value of bare pointers, so that a launch can capture it and run later (device.h).
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_LOOP_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_LOOP_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Operand 0 is written, operands 1.. are read. Loops are ordered by dst's strides, so that the last
// one traverses dst contiguously if any does. Loops of one iteration are removed, and neighbours
// are joined if every operand allows it. A scalar box has no loops.
class BoxLoop {
 public:
  // `box`, from the tensors of its peers (one each, in that order) to `dst`. Requires: the box lies
  // inside all of them; all have box.dims.size() dimensions, and the sources have one type.
  BoxLoop(const ReceiveBox& box, const Tensor& dst, absl::Span<const Tensor* const> sources);

  int64_t element_bytes(int operand = 0) const {
    return operand == 0 ? element_bytes_ : source_bytes_;
  }
  int64_t bytes() const { return bytes_; }  // of the box in dst; 0 if it is empty
  int operands() const { return static_cast<int>(base_.size()); }
  std::byte* base(int operand) const { return base_[operand]; }

  int depth() const { return static_cast<int>(sizes_.size()); }
  int64_t size(int loop) const { return sizes_[loop]; }
  int64_t stride(int loop, int operand) const {  // in bytes
    return strides_[loop * base_.size() + operand];
  }
  // Whether the last loop traverses `operand` without gaps.
  bool contiguous(int operand) const {
    return depth() == 0 || stride(depth() - 1, operand) == element_bytes(operand);
  }
  // Whether there is one source, and the box is already in its place.
  bool in_place() const;

  // Moves `loop` next to the last one. Requires: loop < depth() - 1.
  void MoveBesideLast(int loop);

  // Calls fn(pointers) for each iteration of all loops but the last `inner`; pointers[i] is where
  // operand i begins there. Requires: bytes() > 0.
  template <typename Fn>
  void ForEach(int inner, Fn&& fn) const;

 private:
  void Add(int64_t size, absl::Span<const int64_t> steps, int64_t dst_factor, int64_t src_factor);
  void SortByDst();
  void JoinNeighbours();
  bool Joins(int outer, int inner) const;
  void Swap(int a, int b);

  int64_t element_bytes_, source_bytes_, bytes_;
  absl::InlinedVector<std::byte*, 4> base_;
  absl::InlinedVector<int64_t, 6> sizes_;
  absl::InlinedVector<int64_t, 18> strides_;  // [loop][operand]
};

template <typename Fn>
void BoxLoop::ForEach(int inner, Fn&& fn) const {
  const int outer = depth() > inner ? depth() - inner : 0;
  absl::InlinedVector<std::byte*, 4> at = base_;
  absl::InlinedVector<int64_t, 6> index(outer, 0);
  while (true) {
    fn(static_cast<std::byte* const*>(at.data()));
    int loop = outer - 1;
    for (; loop >= 0; --loop) {
      const bool more = ++index[loop] < sizes_[loop];
      const int64_t steps = more ? 1 : 1 - sizes_[loop];
      for (int i = 0; i < operands(); ++i) at[i] += steps * stride(loop, i);
      if (more) break;
      index[loop] = 0;
    }
    if (loop < 0) return;
  }
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_LOOP_H_
