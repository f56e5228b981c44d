#include "dtensor/runtime/kernels/cpu/box_reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/fixed_array.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/reduce_row.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"

namespace dtensor {
namespace {

constexpr int64_t kLine = 64;              // bytes of a cache line
constexpr int64_t kBufferBytes = 8 << 10;  // of all chunks: they stay in the first-level cache

// Reduces the rows of a box: in place, or chunk by chunk through buffers if one has gaps.
class RowReducer {
 public:
  RowReducer(const BoxLoop& loop, DType in, DType out, ReduceOp op, double scale, bool stream)
      : loop_(loop),
        last_(loop.depth() - 1),
        n_(last_ < 0 ? 1 : loop.size(last_)),
        element_bytes_(loop.element_bytes()),
        source_bytes_(loop.element_bytes(1)),
        in_(in),
        out_(out),
        op_(op),
        scale_(scale),
        stream_(stream && n_ * element_bytes_ >= kStreamRunBytes) {
    for (int i = 0; i < loop.operands(); ++i) gaps_ |= !loop.contiguous(i);
    for (int i = 1; stream_ && last_ > 0 && i < loop.operands(); ++i) {
      rows_apart_ |= loop.stride(last_ - 1, i) != n_ * source_bytes_;
    }
  }

  void Run() const {
    loop_.ForEach(1, [this](std::byte* const* at) { Row(at); });
    kernels::FinishStores(stream_ && !gaps_);
  }

 private:
  int rows() const { return loop_.operands() - 1; }
  int64_t Stride(int operand) const { return last_ < 0 ? 0 : loop_.stride(last_, operand); }

  void Row(std::byte* const* at) const {
    if (!gaps_) return WithoutGaps(at);
    // The chunks of all rows together have about as many elements as a buffer holds.
    const int64_t step =
        std::max<int64_t>(kBufferBytes / rows() / std::max(element_bytes_, source_bytes_), 1);
    alignas(kLine) std::byte result[kBufferBytes];
    absl::FixedArray<std::byte, kBufferBytes> gathered(step * source_bytes_ * rows());
    for (int64_t i = 0; i < n_; i += step) {
      Chunk(at, i, std::min(step, n_ - i), gathered.data(), result);
    }
  }

  void WithoutGaps(std::byte* const* at) const {
    absl::InlinedVector<const std::byte*, 8> next;
    for (int operand = 1; rows_apart_ && operand < loop_.operands(); ++operand) {
      next.push_back(at[operand] + loop_.stride(last_ - 1, operand));
    }
    ReduceRow(in_, out_, op_, scale_, absl::MakeConstSpan(at + 1, rows()), at[0], n_, stream_,
              rows_apart_ ? next.data() : nullptr);
  }

  void Chunk(std::byte* const* at, int64_t i, int64_t n, std::byte* gathered,
             std::byte* result) const {
    absl::InlinedVector<const std::byte*, 8> rows;
    for (int operand = 1; operand < loop_.operands(); ++operand) {
      const std::byte* row = at[operand] + i * Stride(operand);
      if (!loop_.contiguous(operand)) {
        CopyStrided(gathered, source_bytes_, row, Stride(operand), n, source_bytes_);
        row = gathered;
        gathered += n * source_bytes_;
      }
      rows.push_back(row);
    }
    ReduceRow(in_, out_, op_, scale_, rows, result, n);
    CopyStrided(at[0] + i * Stride(0), Stride(0), result, element_bytes_, n, element_bytes_);
  }

  const BoxLoop& loop_;
  const int last_;  // the loop that walks a row; -1 for a scalar
  const int64_t n_, element_bytes_, source_bytes_;
  const DType in_, out_;
  const ReduceOp op_;
  const double scale_;
  const bool stream_;
  bool gaps_ = false;        // within a row
  bool rows_apart_ = false;  // of a source: its rows do not follow each other
};

}  // namespace

void ReduceBox(const BoxLoop& loop, DType in, DType out, ReduceOp op, double scale, bool stream) {
  if (loop.bytes() > 0) RowReducer(loop, in, out, op, scale, stream).Run();
}

}  // namespace dtensor
