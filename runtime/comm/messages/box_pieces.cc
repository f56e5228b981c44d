#include "dtensor/runtime/comm/messages/box_pieces.h"

#include <algorithm>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

void Cut(const BoxDims& box, int64_t most, std::vector<BoxDims>& pieces) {
  const int64_t elements = NumElements(ShapeOf(box));
  if (elements <= most) {
    if (elements > 0) pieces.push_back(box);
    return;
  }
  size_t d = 0;
  while (box[d].size() == 1) ++d;
  const int64_t each = std::max<int64_t>(1, most / (elements / box[d].size()));
  // Whole runs, or parts of one.
  const int64_t runs = std::max<int64_t>(1, each / box[d].length);
  for (int64_t run = 0; run < box[d].count; run += runs) {
    for (int64_t begin = 0; begin < box[d].length; begin += each) {
      BoxDims piece = box;
      MatchedRun& cut = piece[d];
      cut.src += run * cut.src_stride + begin;
      cut.dst += run * cut.dst_stride + begin;
      cut.length = std::min(each, cut.length - begin);
      cut.count = std::min(runs, cut.count - run);
      if (cut.count == 1) cut.src_stride = cut.dst_stride = 0;
      Cut(piece, most, pieces);
    }
  }
}

}  // namespace

Dims ShapeOf(const BoxDims& box) {
  Dims shape;
  for (const MatchedRun& run : box) shape.push_back(run.size());
  return shape;
}

std::vector<BoxDims> CutBox(const BoxDims& box, int64_t most) {
  std::vector<BoxDims> pieces;
  Cut(box, most, pieces);
  return pieces;
}

std::optional<absl::Span<std::byte>> RunOf(const Tensor& tensor, const BoxDims& piece,
                                           BoxSide side) {
  int64_t elements = 1, offset = 0;
  for (int d = static_cast<int>(piece.size()) - 1; d >= 0; --d) {
    const MatchedRun& run = piece[d];
    offset += (side == BoxSide::kSource ? run.src : run.dst) * tensor.strides()[d];
    if (run.size() == 1) continue;
    if (run.count != 1 || tensor.strides()[d] != elements) return std::nullopt;
    elements *= run.length;
  }
  const int64_t size = SizeOf(tensor.dtype());
  auto* const begin = static_cast<std::byte*>(tensor.raw()) + offset * size;
  return absl::MakeSpan(begin, static_cast<size_t>(elements * size));
}

kernels::BoxMove PackMove(const Tensor& source, const BoxDims& piece, const Tensor& packed) {
  ReceiveBox copy{.peers = {0}, .dims = piece};
  for (MatchedRun& run : copy.dims) {
    run.dst = 0;
    run.dst_stride = run.length;
  }
  const Tensor* const sources[] = {&source};
  return kernels::BoxMove(copy, packed, sources);
}

kernels::BoxMove CombineMove(const ExchangePart& part, const BoxDims& piece,
                             absl::Span<const Tensor> packed) {
  ReceiveBox box{.dims = piece};
  absl::InlinedVector<const Tensor*, 8> sources;
  for (const Tensor& term : packed) {
    box.peers.push_back(static_cast<int>(sources.size()));
    sources.push_back(&term);
  }
  for (MatchedRun& run : box.dims) {
    run.src = 0;
    run.src_stride = run.length;
  }
  return kernels::BoxMove(box, part.dst, sources, part.op, part.scale);
}

absl::Status PackPiece(const Tensor& source, const BoxDims& piece, const Tensor& packed) {
  const kernels::BoxMove pack = PackMove(source, piece, packed);
  return kernels::MoveBoxes(source.device(), "Pack", {&pack, 1});
}

absl::Status CombinePiece(const ExchangePart& part, const BoxDims& piece,
                          absl::Span<const Tensor> packed) {
  const kernels::BoxMove combine = CombineMove(part, piece, packed);
  return kernels::MoveBoxes(part.dst.device(), "Unpack", {&combine, 1});
}

}  // namespace dtensor
