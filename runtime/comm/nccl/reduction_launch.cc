#include "dtensor/runtime/comm/nccl/reduction_launch.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

// By receiver, as in CarriedReduction.
using ReductionPiece = std::map<int, BoxDims>;

std::vector<ReductionPiece> Cut(const CarriedReduction& reduction, int64_t most) {
  std::vector<ReductionPiece> pieces;
  for (const auto& [receiver, dims] : reduction.to) {
    std::vector<BoxDims> cut = CutBox(dims, most);
    pieces.resize(cut.size());
    for (size_t i = 0; i < cut.size(); ++i) pieces[i][receiver] = std::move(cut[i]);
  }
  return pieces;
}

// Where what all ranks receive of this one lies side by side, in their order.
std::optional<std::byte*> WholeSource(const Tensor& source, const ReductionPiece& piece,
                                      int64_t bytes) {
  std::optional<std::byte*> begin;
  std::byte* next = nullptr;
  for (const auto& [receiver, dims] : piece) {
    const auto run = RunOf(source, dims, BoxSide::kSource);
    if (!run || (begin && run->data() != next)) return std::nullopt;
    if (!begin) begin = run->data();
    next = run->data() + bytes;
  }
  return begin;
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

absl::Status LaunchPiece(const CarriedCall& call, const ExchangePart& part,
                         const ReductionPiece& piece, int64_t& bytes) {
  const DType dtype = SentType(part);
  DT_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclTypeOf(dtype));
  const BoxDims& own = piece.at(call.rank);
  const Dims shape = ShapeOf(own);
  const int64_t count = NumElements(shape), each = count * SizeOf(dtype);
  const auto ranks = static_cast<int64_t>(call.ranks.size());
  const std::optional<std::byte*> whole = WholeSource(part.src, piece, each);
  const auto run = IsCopy(part, 1) ? RunOf(part.dst, own, BoxSide::kResult) : std::nullopt;
  DT_ASSIGN_OR_RETURN(Staging sent, Staging::Make(call.queue, whole ? 0 : ranks * each));
  DT_ASSIGN_OR_RETURN(Staging got, Staging::Make(call.queue, run ? 0 : each));
  const std::byte* const from = whole ? *whole : sent.next();
  std::byte* const to = run ? run->data() : got.next();
  if (!whole) {
    std::vector<kernels::BoxMove> packs;
    for (const auto& [receiver, dims] : piece) {
      packs.push_back(PackMove(part.src, dims, sent.Take(dtype, shape)));
    }
    DT_RETURN_IF_ERROR(kernels::MoveBoxes(call.queue, "Pack", packs));
  }
  DT_RETURN_IF_ERROR(call.group.Call(
      [&](ncclComm_t comm) {
        return ncclReduceScatter(from, to, count, type, ncclSum, comm, call.stream);
      },
      call.stop));
  bytes += (ranks - 1) * each;
  if (run) return absl::OkStatus();
  const Tensor sum = got.Take(dtype, shape);
  const kernels::BoxMove unpack = CombineMove(part, own, {&sum, 1});
  return kernels::MoveBoxes(call.queue, "Unpack", {&unpack, 1});
}

}  // namespace

absl::Status LaunchReduction(const CarriedCall& call, const CarriedReduction& reduction,
                             int64_t& bytes) {
  const ExchangePart& part = call.parts[reduction.part];
  for (const ReductionPiece& piece : Cut(reduction, call.MostOfEach(reduction.element_bytes))) {
    DT_RETURN_IF_ERROR(LaunchPiece(call, part, piece, bytes));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
