// Boxes as messages: cut into pieces that fit the staging, alike on both sides, and packed.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_BOX_PIECES_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_BOX_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/box.h"

namespace DTENSOR_EXPORT dtensor {

using BoxDims = absl::InlinedVector<MatchedRun, 4>;

// The type in which a part's elements are sent.
inline DType SentType(const ExchangePart& part) {
  return (part.src.defined() ? part.src : part.dst).dtype();
}

Dims ShapeOf(const BoxDims& box);

// The box in pieces of at most `most` elements (1 or more), which together are all of it: by the
// box's runs alone, so that sender and receiver cut alike. None of a box without elements.
std::vector<BoxDims> CutBox(const BoxDims& box, int64_t most);

// Where the piece lies in `tensor`, if it is one run of bytes in row-major order. `side` says which
// positions are the tensor's.
enum class BoxSide { kSource, kResult };
std::optional<absl::Span<std::byte>> RunOf(const Tensor& tensor, const BoxDims& piece,
                                           BoxSide side);

// packed = the piece of `source`, row-major. Requires: packed is contiguous, of ShapeOf(piece) and
// the source's type.
kernels::BoxMove PackMove(const Tensor& source, const BoxDims& piece, const Tensor& packed);
// Combines packed terms, in the order of the box's peers, into the part's result.
kernels::BoxMove CombineMove(const ExchangePart& part, const BoxDims& piece,
                             absl::Span<const Tensor> packed);

// Launch the one and the other.
absl::Status PackPiece(const Tensor& source, const BoxDims& piece, const Tensor& packed);
absl::Status CombinePiece(const ExchangePart& part, const BoxDims& piece,
                          absl::Span<const Tensor> packed);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_BOX_PIECES_H_
