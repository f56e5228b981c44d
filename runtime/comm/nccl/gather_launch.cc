#include "dtensor/runtime/comm/nccl/gather_launch.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

// A piece of the gather: what this rank gives, and where what others give goes.
struct GatherPiece {
  BoxDims source;
  std::map<int, BoxDims> from;
};

std::vector<GatherPiece> Cut(const CarriedGather& gather, int64_t most) {
  std::vector<GatherPiece> pieces;
  for (BoxDims& source : CutBox(gather.source, most)) pieces.push_back({std::move(source), {}});
  for (const auto& [peer, dims] : gather.from) {
    std::vector<BoxDims> cut = CutBox(dims, most);
    for (size_t i = 0; i < cut.size(); ++i) pieces[i].from[peer] = std::move(cut[i]);
  }
  return pieces;
}

// Where all ranks' parts come to lie one behind the other, in their order, and this rank's lies
// there already.
std::optional<std::byte*> WholeResult(const CarriedCall& call, const ExchangePart& part,
                                      const GatherPiece& piece, int64_t bytes) {
  const auto own = RunOf(part.src, piece.source, BoxSide::kSource);
  if (!own || !IsCopy(part, 1)) return std::nullopt;
  std::byte* const begin = own->data() - call.NumberOf(call.rank) * bytes;
  for (const auto& [peer, dims] : piece.from) {
    const auto run = RunOf(part.dst, dims, BoxSide::kResult);
    if (!run || run->data() != begin + call.NumberOf(peer) * bytes) return std::nullopt;
  }
  return begin;
}

absl::Status LaunchPiece(const CarriedCall& call, size_t number, const GatherPiece& piece,
                         int64_t& bytes) {
  const ExchangePart& part = call.parts[number];
  const DType dtype = SentType(part);
  const Dims shape = ShapeOf(piece.source);
  const int64_t each = NumElements(shape) * SizeOf(dtype);
  const auto ranks = static_cast<int64_t>(call.ranks.size());
  const auto run = RunOf(part.src, piece.source, BoxSide::kSource);
  const std::optional<std::byte*> whole = WholeResult(call, part, piece, each);
  DT_ASSIGN_OR_RETURN(Staging sent, Staging::Make(call.queue, run ? 0 : each));
  DT_ASSIGN_OR_RETURN(Staging got, Staging::Make(call.queue, whole ? 0 : ranks * each));
  const std::byte* from = run ? run->data() : sent.next();
  std::byte* const to = whole ? *whole : got.next();
  if (!run) {
    const kernels::BoxMove pack = PackMove(part.src, piece.source, sent.Take(dtype, shape));
    DT_RETURN_IF_ERROR(kernels::MoveBoxes(call.queue, "Pack", {&pack, 1}));
  }
  DT_RETURN_IF_ERROR(call.group.Call(
      [&](ncclComm_t comm) { return ncclAllGather(from, to, each, ncclUint8, comm, call.stream); },
      call.stop));
  bytes += (ranks - 1) * each;
  if (whole) return absl::OkStatus();
  std::vector<kernels::BoxMove> moves;
  for (const int peer : call.ranks) {
    const Tensor packed = got.Take(dtype, shape);
    if (peer != call.rank) moves.push_back(CombineMove(part, piece.from.at(peer), {&packed, 1}));
  }
  return kernels::MoveBoxes(call.queue, "Unpack", moves);
}

}  // namespace

absl::Status LaunchGather(const CarriedCall& call, const CarriedGather& gather, int64_t& bytes) {
  for (const GatherPiece& piece : Cut(gather, call.MostOfEach(gather.element_bytes))) {
    DT_RETURN_IF_ERROR(LaunchPiece(call, gather.part, piece, bytes));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
