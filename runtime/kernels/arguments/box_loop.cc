#include "dtensor/runtime/kernels/arguments/box_loop.h"

#include <utility>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor {

BoxLoop::BoxLoop(const ReceiveBox& box, const Tensor& dst, absl::Span<const Tensor* const> sources)
    : element_bytes_(SizeOf(dst.dtype())),
      source_bytes_(SizeOf(sources[0]->dtype())),
      bytes_(box.elements() * element_bytes_) {
  base_.push_back(static_cast<std::byte*>(dst.raw()));
  for (const Tensor* source : sources) base_.push_back(static_cast<std::byte*>(source->raw()));
  if (bytes_ == 0) return;
  absl::InlinedVector<int64_t, 4> steps(operands());  // between neighbours along d
  for (size_t d = 0; d < box.dims.size(); ++d) {
    const MatchedRun& piece = box.dims[d];
    for (int i = 0; i < operands(); ++i) {
      const Tensor& tensor = i == 0 ? dst : *sources[i - 1];
      steps[i] = tensor.strides()[d] * element_bytes(i);
      if (base_[i] != nullptr) base_[i] += steps[i] * (i == 0 ? piece.dst : piece.src);
    }
    if (piece.count != 1) Add(piece.count, steps, piece.dst_stride, piece.src_stride);
    if (piece.length != 1) Add(piece.length, steps, 1, 1);
  }
  if (depth() < 2) return;
  SortByDst();
  JoinNeighbours();
}

bool BoxLoop::in_place() const {
  if (operands() != 2 || base_[0] != base_[1] || element_bytes_ != source_bytes_) return false;
  if (base_[0] == nullptr) return false;  // on meta: no addresses to compare
  for (int loop = 0; loop < depth(); ++loop) {
    if (stride(loop, 0) != stride(loop, 1)) return false;
  }
  return true;
}

void BoxLoop::MoveBesideLast(int loop) {
  for (; loop < depth() - 2; ++loop) Swap(loop, loop + 1);
}

// Joins the new loop to the last one if possible: most boxes are then one loop, with no need to
// sort.
void BoxLoop::Add(int64_t size, absl::Span<const int64_t> steps, int64_t dst_factor,
                  int64_t src_factor) {
  const auto step = [&](int i) { return steps[i] * (i == 0 ? dst_factor : src_factor); };
  const int last = depth() - 1;
  bool joins = last >= 0;
  for (int i = 0; joins && i < operands(); ++i) joins = stride(last, i) == step(i) * size;
  if (joins) {
    sizes_[last] *= size;
    for (int i = 0; i < operands(); ++i) strides_[last * operands() + i] = step(i);
    return;
  }
  sizes_.push_back(size);
  for (int i = 0; i < operands(); ++i) strides_.push_back(step(i));
}

// Insertion sort: there are few loops, and nearly always they are in order.
void BoxLoop::SortByDst() {
  for (int end = 1; end < depth(); ++end) {
    for (int i = end; i > 0 && stride(i - 1, 0) < stride(i, 0); --i) Swap(i - 1, i);
  }
}

void BoxLoop::JoinNeighbours() {
  int last = 0;  // index of the last loop that is kept
  for (int loop = 1; loop < depth(); ++loop) {
    if (Joins(last, loop)) {
      sizes_[loop] *= sizes_[last];
    } else {
      ++last;
    }
    if (last != loop) {
      // The joined loop steps as the inner one; a kept loop moves down.
      sizes_[last] = sizes_[loop];
      for (int i = 0; i < operands(); ++i) strides_[last * operands() + i] = stride(loop, i);
    }
  }
  sizes_.resize(last + 1);
  strides_.resize((last + 1) * base_.size());
}

bool BoxLoop::Joins(int outer, int inner) const {
  for (int i = 0; i < operands(); ++i) {
    if (stride(outer, i) != stride(inner, i) * size(inner)) return false;
  }
  return true;
}

void BoxLoop::Swap(int a, int b) {
  std::swap(sizes_[a], sizes_[b]);
  for (int i = 0; i < operands(); ++i) {
    std::swap(strides_[a * operands() + i], strides_[b * operands() + i]);
  }
}

}  // namespace dtensor
