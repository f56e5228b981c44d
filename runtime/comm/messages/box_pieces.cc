#include "dtensor/runtime/comm/messages/box_pieces.h"

#include <algorithm>
#include <limits>
#include <utility>

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

// The part of a piece that is consecutive in memory: all dimensions from `end` on.
struct BoxRows {
  int64_t elements = 1, rows = 1;
  int end = 0;
  bool cuts_runs = false;  // the rows also include each run of the dimension before `end`
};

BoxRows LongestRows(const Tensor& tensor, const BoxDims& piece) {
  BoxRows shape = {.end = static_cast<int>(piece.size())};
  for (int d = shape.end - 1; d >= 0 && !shape.cuts_runs; --d) {
    const MatchedRun& run = piece[d];
    if (run.size() > 1) {
      if (tensor.strides()[d] != shape.elements) break;
      shape.cuts_runs = run.count > 1;
      shape.elements *= run.length;
    }
    if (!shape.cuts_runs) shape.end = d;
  }
  for (int d = 0; d < shape.end; ++d) shape.rows *= piece[d].size();
  if (shape.cuts_runs) shape.rows /= piece[shape.end - 1].length;
  return shape;
}

using RowFirsts = absl::InlinedVector<int64_t, 8>;

// The first element of each of these rows, relative to the tensor's first.
RowFirsts FirstOfRows(const Tensor& tensor, const BoxDims& piece, BoxSide side,
                      const BoxRows& shape) {
  RowFirsts firsts = {0};
  for (int d = 0; d < static_cast<int>(piece.size()); ++d) {
    const MatchedRun& run = piece[d];
    const bool is_source = side == BoxSide::kSource;
    const int64_t begin = is_source ? run.src : run.dst;
    const int64_t between = is_source ? run.src_stride : run.dst_stride;
    const bool is_loop = d < shape.end;
    const int64_t count = is_loop ? run.count : 1;
    const int64_t length = is_loop && !(shape.cuts_runs && d == shape.end - 1) ? run.length : 1;
    RowFirsts more;
    more.reserve(firsts.size() * count * length);
    for (const int64_t first : firsts) {
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t i = 0; i < length; ++i) {
          more.push_back(first + (begin + j * between + i) * tensor.strides()[d]);
        }
      }
    }
    firsts = std::move(more);
  }
  return firsts;
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

std::optional<TakenRows> RowsOf(const Tensor& tensor, const BoxDims& piece, BoxSide side,
                                size_t least) {
  const int64_t size = SizeOf(tensor.dtype());
  const BoxRows shape = LongestRows(tensor, piece);
  const int64_t bytes = shape.elements * size;
  if (shape.rows > 1 && static_cast<size_t>(bytes) < least) return std::nullopt;
  TakenRows::Rows rows;
  rows.reserve(shape.rows);
  auto* const memory = static_cast<std::byte*>(tensor.raw());
  for (const int64_t first : FirstOfRows(tensor, piece, side, shape)) {
    rows.push_back(absl::MakeSpan(memory + first * size, static_cast<size_t>(bytes)));
  }
  return TakenRows(std::move(rows));
}

std::optional<absl::Span<std::byte>> RunOf(const Tensor& tensor, const BoxDims& piece,
                                           BoxSide side) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  const std::optional<TakenRows> rows = RowsOf(tensor, piece, side, kNone);
  return rows ? std::optional(rows->only()) : std::nullopt;
}

std::optional<Tensor> ViewOf(const Tensor& source, const BoxDims& piece) {
  int64_t first = 0;
  for (size_t d = 0; d < piece.size(); ++d) {
    if (piece[d].count != 1) return std::nullopt;
    first += piece[d].src * source.strides()[d];
  }
  return source.View(ShapeOf(piece), source.strides(), first);
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
                             absl::Span<const Tensor> terms) {
  ReceiveBox box{.dims = piece};
  absl::InlinedVector<const Tensor*, 8> sources;
  for (const Tensor& term : terms) {
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
                          absl::Span<const Tensor> terms) {
  const kernels::BoxMove combine = CombineMove(part, piece, terms);
  return kernels::MoveBoxes(part.dst.device(), "Unpack", {&combine, 1});
}

}  // namespace dtensor
