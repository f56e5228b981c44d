#include "dtensor/runtime/comm/nccl/native_launch.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

// A collective, or as much of it as fits into staging at once.
struct Piece : CarriedCollective {
  int64_t elements = 0, bytes = 0;  // of each rank
};

std::vector<Piece> Cut(const CarriedCollective& collective, int64_t most) {
  std::vector<Piece> pieces;
  for (const auto& [rank, dims] : collective.boxes) {
    std::vector<BoxDims> cut = CutBox(dims, most);
    pieces.resize(cut.size());
    for (size_t i = 0; i < cut.size(); ++i) {
      pieces[i].part = collective.part;
      pieces[i].element_bytes = collective.element_bytes;
      pieces[i].reduces = collective.reduces;
      pieces[i].gathers_own = collective.gathers_own;
      pieces[i].elements = NumElements(ShapeOf(cut[i]));
      pieces[i].bytes = pieces[i].elements * collective.element_bytes;
      pieces[i].boxes[rank] = std::move(cut[i]);
    }
  }
  return pieces;
}

absl::StatusOr<ncclDataType_t> NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    default:
      return absl::InternalError(absl::StrCat("NCCL is not to add ", ToString(dtype)));
  }
}

// Pieces that are launched as one group.
class GroupLaunch {
 public:
  GroupLaunch(const CarriedCall& call, absl::Span<const Piece> pieces)
      : call_(call), pieces_(pieces) {}

  absl::Status Run(int64_t& bytes) {
    int64_t staged = 0;
    for (const Piece& piece : pieces_) {
      places_.push_back(PlaceOf(piece));
      staged += StagedBytes(piece, places_.back());
    }
    DT_ASSIGN_OR_RETURN(staging_, Staging::Make(call_.queue, staged));
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].reduces) {
        DT_ASSIGN_OR_RETURN(places_[i].type, NcclTypeOf(SentType(PartOf(pieces_[i]))));
      }
      Stage(pieces_[i], places_[i]);
      bytes += (ranks() - 1) * pieces_[i].bytes;
    }
    DT_RETURN_IF_ERROR(kernels::MoveBoxes(call_.queue, "Pack", packs_));
    DT_RETURN_IF_ERROR(
        call_.group.Call([&](ncclComm_t comm) { return CallAll(comm); }, call_.stop));
    return kernels::MoveBoxes(call_.queue, "Unpack", unpacks_);
  }

 private:
  // What NCCL reads and writes; null: staged.
  struct Place {
    std::byte *from = nullptr, *to = nullptr;
    ncclDataType_t type = ncclUint8;  // of a reduction
  };

  int64_t ranks() const { return static_cast<int64_t>(call_.ranks.size()); }
  const ExchangePart& PartOf(const Piece& piece) const { return call_.parts[piece.part]; }

  static std::byte* DataOf(const std::optional<absl::Span<std::byte>>& run) {
    return run ? run->data() : nullptr;
  }

  // The blocks of all ranks, side by side in the ranks' order. `own`: this rank's block, if NCCL
  // finds it in place; null: like the others'.
  std::byte* BlocksOf(const Tensor& tensor, const Piece& piece, BoxSide side,
                      std::byte* own = nullptr) const {
    std::byte* begin = nullptr;
    for (const int rank : call_.ranks) {
      const bool is_own = rank == call_.rank && own != nullptr;
      std::byte* const block = is_own ? own : DataOf(RunOf(tensor, piece.boxes.at(rank), side));
      const int64_t before = call_.NumberOf(rank) * piece.bytes;
      if (block == nullptr || (begin != nullptr && block != begin + before)) return nullptr;
      begin = block - before;
    }
    return begin;
  }

  Place PlaceOf(const Piece& piece) const {
    const ExchangePart& part = PartOf(piece);
    const BoxDims& own = piece.boxes.at(call_.rank);
    Place place;
    if (piece.reduces) {
      place.from = BlocksOf(part.src, piece, BoxSide::kSource);
      if (IsCopy(part, 1)) place.to = DataOf(RunOf(part.dst, own, BoxSide::kResult));
      return place;
    }
    place.from = DataOf(RunOf(part.src, own, BoxSide::kSource));
    // What this rank does not receive from itself is in the result already, or is no part of it.
    if (IsCopy(part, 1) && (piece.gathers_own || place.from != nullptr)) {
      std::byte* const in_place = piece.gathers_own ? nullptr : place.from;
      place.to = BlocksOf(part.dst, piece, BoxSide::kResult, in_place);
    }
    return place;
  }

  int64_t StagedBytes(const Piece& piece, const Place& place) const {
    const bool reduces = piece.reduces;
    const int64_t from = place.from != nullptr ? 0 : (reduces ? ranks() : 1) * piece.bytes;
    const int64_t to = place.to != nullptr ? 0 : (reduces ? 1 : ranks()) * piece.bytes;
    return Staging::Aligned(from) + Staging::Aligned(to);
  }

  void Stage(const Piece& piece, Place& place) {
    const ExchangePart& part = PartOf(piece);
    const int me[] = {call_.rank};
    const absl::Span<const int> all = call_.ranks, one = me;
    const bool reduces = piece.reduces;
    const auto take = [&](int rank) {
      return staging_.Take(SentType(part), ShapeOf(piece.boxes.at(rank)));
    };
    if (place.from == nullptr) {
      place.from = staging_.next();
      for (const int rank : reduces ? all : one) {
        packs_.push_back(PackMove(part.src, piece.boxes.at(rank), take(rank)));
      }
      staging_.Align();
    }
    if (place.to != nullptr) return;
    place.to = staging_.next();
    for (const int rank : reduces ? one : all) {
      const Tensor come = take(rank);
      if (!reduces && rank == call_.rank) continue;
      unpacks_.push_back(CombineMove(part, piece.boxes.at(rank), {&come, 1}));
    }
    staging_.Align();
  }

  ncclResult_t CallAll(ncclComm_t comm) const {
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const auto& [from, to, type] = places_[i];
      const ncclResult_t called =
          piece.reduces
              ? ncclReduceScatter(from, to, piece.elements, type, ncclSum, comm, call_.stream)
              : ncclAllGather(from, to, piece.bytes, ncclUint8, comm, call_.stream);
      if (result == ncclSuccess && called != ncclInProgress) result = called;
    }
    return result;
  }

  const CarriedCall& call_;
  const absl::Span<const Piece> pieces_;
  std::vector<Place> places_;
  Staging staging_;
  std::vector<kernels::BoxMove> packs_, unpacks_;
};

// The most that a rank stages. Depends on boxes alone, so all ranks make the same groups.
int64_t MostStaged(const Piece& piece, int64_t ranks) {
  return Staging::Aligned(ranks * piece.bytes) + Staging::Aligned(piece.bytes);
}

}  // namespace

absl::Status LaunchNative(const CarriedCall& call, absl::Span<const CarriedCollective> collectives,
                          int64_t& bytes) {
  const auto ranks = static_cast<int64_t>(call.ranks.size());
  std::vector<Piece> pieces;
  for (const CarriedCollective& collective : collectives) {
    const int64_t each = (call.staging_bytes - 2 * Staging::kAlignment) / (ranks + 1);
    for (Piece& piece : Cut(collective, std::max<int64_t>(1, each / collective.element_bytes))) {
      pieces.push_back(std::move(piece));
    }
  }
  for (size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    int64_t staged = 0;
    for (; end < pieces.size(); ++end) {
      staged += MostStaged(pieces[end], ranks);
      if (end > begin && staged > call.staging_bytes) break;
    }
    const auto group = absl::MakeConstSpan(pieces).subspan(begin, end - begin);
    DT_RETURN_IF_ERROR(GroupLaunch(call, group).Run(bytes));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
