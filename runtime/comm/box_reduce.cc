#include "dtensor/runtime/comm/box_reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/fixed_array.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/box_copy.h"
#include "dtensor/runtime/comm/reduce_row.h"

namespace dtensor {
namespace {

constexpr int64_t kLine = 64;              // bytes of a cache line
constexpr int64_t kBufferBytes = 8 << 10;  // of one row's chunk: stays in the first-level cache

// Reduces the rows of a box. A row with gaps, or one to be streamed, goes through buffers, chunk by
// chunk; all others are reduced where they are.
class RowReducer {
 public:
  RowReducer(const BoxLoop& loop, DType dtype, ReduceOp op, double scale, bool stream)
      : loop_(loop),
        last_(loop.depth() - 1),
        n_(last_ < 0 ? 1 : loop.size(last_)),
        element_bytes_(loop.element_bytes()),
        dtype_(dtype),
        op_(op),
        scale_(scale),
        stream_(stream && loop.contiguous(0) && n_ * element_bytes_ >= kStreamRunBytes) {
    for (int i = 1; i < loop.operands(); ++i) gathers_ |= !loop.contiguous(i);
  }

  void Run() const {
    loop_.ForEach(1, [this](std::byte* const* at) { Row(at); });
    if (stream_) EndStream();
  }

 private:
  int rows() const { return loop_.operands() - 1; }
  int64_t Stride(int operand) const { return last_ < 0 ? 0 : loop_.stride(last_, operand); }

  void Row(std::byte* const* at) const {
    if (!gathers_ && !stream_ && loop_.contiguous(0)) {
      ReduceRow(dtype_, op_, scale_, absl::MakeConstSpan(at + 1, rows()), at[0], n_);
      return;
    }
    const int64_t step = ChunkElements();
    std::byte result[kBufferBytes];
    absl::FixedArray<std::byte, kBufferBytes> gathered(gathers_ ? step * element_bytes_ * rows()
                                                                : 0);
    int64_t n = std::min(n_, FirstChunkElements(at[0], step));
    for (int64_t i = 0; i < n_; i += n, n = std::min(step, n_ - i)) {
      Chunk(at, i, n, gathered.data(), result);
    }
  }

  // Whole cache lines; for all rows together, about as many as a buffer holds.
  int64_t ChunkElements() const {
    const int64_t share = gathers_ ? kBufferBytes / rows() : kBufferBytes;
    return std::max<int64_t>(share / kLine, 1) * kLine / element_bytes_;
  }

  // What follows the first chunk begins at a cache line, so that streaming stores fill whole lines.
  int64_t FirstChunkElements(const std::byte* dst, int64_t step) const {
    const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % kLine);
    return stream_ ? step - misaligned / element_bytes_ : step;
  }

  void Chunk(std::byte* const* at, int64_t i, int64_t n, std::byte* gathered,
             std::byte* result) const {
    absl::InlinedVector<const std::byte*, 8> rows;
    for (int operand = 1; operand < loop_.operands(); ++operand) {
      const std::byte* row = at[operand] + i * Stride(operand);
      if (!loop_.contiguous(operand)) {
        CopyStrided(gathered, element_bytes_, row, Stride(operand), n, element_bytes_);
        row = gathered;
        gathered += n * element_bytes_;
      }
      rows.push_back(row);
    }
    ReduceRow(dtype_, op_, scale_, rows, result, n);
    std::byte* dst = at[0] + i * Stride(0);
    if (stream_) {
      StreamCopy(dst, result, n * element_bytes_);
    } else {
      CopyStrided(dst, Stride(0), result, element_bytes_, n, element_bytes_);
    }
  }

  const BoxLoop& loop_;
  const int last_;  // the loop that walks a row; -1 for a scalar
  const int64_t n_, element_bytes_;
  const DType dtype_;
  const ReduceOp op_;
  const double scale_;
  const bool stream_;
  bool gathers_ = false;
};

}  // namespace

void ReduceBox(const BoxLoop& loop, DType dtype, ReduceOp op, double scale, bool stream) {
  if (loop.bytes() > 0) RowReducer(loop, dtype, op, scale, stream).Run();
}

}  // namespace dtensor
