// Boxes as messages: cut into pieces that fit the staging buffer, the same on both sides, and
// packed.
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
#include "dtensor/runtime/comm/messages/byte_rows.h"
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

// Cuts the box into pieces of at most `most` elements (1 or more), which together cover it. Depends
// on the box's runs alone, so sender and receiver get the same pieces. A box without elements has
// none.
std::vector<BoxDims> CutBox(const BoxDims& box, int64_t most);

// The memory of the piece in `tensor`, in row-major order: as rows of consecutive bytes that are as
// long as possible. Only if that is one row, or if each row has at least `least` bytes. `side` says
// which of the piece's positions are the tensor's. Requires: the piece has elements.
enum class BoxSide { kSource, kResult };
std::optional<TakenRows> RowsOf(const Tensor& tensor, const BoxDims& piece, BoxSide side,
                                size_t least);
// As RowsOf, but only if it is one row.
std::optional<absl::Span<std::byte>> RunOf(const Tensor& tensor, const BoxDims& piece,
                                           BoxSide side);

// The piece of `source` as a view of shape ShapeOf(piece), if no dimension has gaps between its
// runs.
std::optional<Tensor> ViewOf(const Tensor& source, const BoxDims& piece);

// packed = the piece of `source`, row-major. Requires: `packed` is contiguous, of shape
// ShapeOf(piece) and of the source's type.
kernels::BoxMove PackMove(const Tensor& source, const BoxDims& piece, const Tensor& packed);
// Combines terms of shape ShapeOf(piece), which are usually packed, into the part's result, in the
// order of the box's peers.
kernels::BoxMove CombineMove(const ExchangePart& part, const BoxDims& piece,
                             absl::Span<const Tensor> terms);

// These launch PackMove and CombineMove.
absl::Status PackPiece(const Tensor& source, const BoxDims& piece, const Tensor& packed);
absl::Status CombinePiece(const ExchangePart& part, const BoxDims& piece,
                          absl::Span<const Tensor> terms);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_BOX_PIECES_H_
