#include "dtensor/runtime/comm/exchange_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status Refuse(const Collective& collective, absl::string_view what) {
  return InvalidArgument({ExchangeLabel(collective), what});
}

absl::Status CheckGroup(const Collective& collective, int rank, int size) {
  const absl::Span<const int> group = collective.group;
  const bool ascending = std::adjacent_find(group.begin(), group.end(),
                                            [](int a, int b) { return a >= b; }) == group.end();
  if (ascending && std::binary_search(group.begin(), group.end(), rank) && group.front() >= 0 &&
      group.back() < size) {
    return absl::OkStatus();
  }
  return Refuse(collective, absl::StrCat("the group [", absl::StrJoin(group, ", "),
                                         "] must be ascending ranks of the ", size,
                                         " there are, with rank ", rank, " among them"));
}

// Whether positions begin + j * stride + i (j < count, i < length) are in [0, size).
bool Inside(const MatchedRun& piece, int64_t begin, int64_t stride, int64_t size) {
  if (piece.length < 0 || piece.count < 0 || begin < 0 || stride < 0) return false;
  return piece.size() == 0 || begin + (piece.count - 1) * stride + piece.length <= size;
}

bool SourceInside(const ReceiveBox& box, const Dims& shape) {
  for (size_t d = 0; d < shape.size(); ++d) {
    const MatchedRun& piece = box.dims[d];
    if (!Inside(piece, piece.src, piece.src_stride, shape[d])) return false;
  }
  return true;
}

// With a dst stride of 0, one element would be written many times.
bool DstInside(const ReceiveBox& box, const Tensor& dst) {
  for (int d = 0; d < dst.ndim(); ++d) {
    const MatchedRun& piece = box.dims[d];
    if (!Inside(piece, piece.dst, piece.dst_stride, dst.size(d))) return false;
    if (piece.size() > 1 && dst.strides()[d] == 0) return false;
  }
  return true;
}

absl::Status CheckOperation(const Collective& collective, const ExchangePart& part,
                            const ReceiveBox& box) {
  const DType dtype = part.dst.dtype();
  const bool floats = IsFloat(dtype);
  const bool orders = part.op == ReduceOp::kMax || part.op == ReduceOp::kMin;
  const bool exists = floats || (dtype == DType::kBool ? orders : part.op != ReduceOp::kAvg);
  if (box.peers.size() > 1 && !exists) {
    return Refuse(collective,
                  absl::StrCat("there is no ", ToString(part.op), " of ", ToString(dtype)));
  }
  const bool adds = part.op == ReduceOp::kSum || part.op == ReduceOp::kAvg;
  if (box.peers.size() > 1 && collective.sums_in_any_order && !(floats && adds)) {
    return Refuse(collective, absl::StrCat("sums_in_any_order is of sums of floats, not of ",
                                           ToString(part.op), " of ", ToString(dtype)));
  }
  if (part.scale != 1 && !floats) {
    return Refuse(collective, absl::StrCat("only floats can be scaled, not ", ToString(dtype)));
  }
  return absl::OkStatus();
}

// Whether a rank is in the group. `at` is where the previous rank was found: boxes mostly go
// through a group in its order, and there may be thousands of both.
bool IsInGroup(absl::Span<const int> group, int rank, size_t& at) {
  if (at + 1 < group.size() && group[at + 1] == rank) {
    ++at;
    return true;
  }
  const auto found = std::lower_bound(group.begin(), group.end(), rank);
  at = static_cast<size_t>(found - group.begin());
  return found != group.end() && *found == rank;
}

absl::Status CheckBox(const Collective& collective, const ExchangePart& part, const ReceiveBox& box,
                      int rank, size_t& at) {
  if (box.peers.empty()) return Refuse(collective, "a box comes from no rank");
  for (int peer : box.peers) {
    if (IsInGroup(collective.group, peer, at)) continue;
    return Refuse(collective, absl::StrCat("rank ", rank, " receives from rank ", peer,
                                           ", which is not in the group [",
                                           absl::StrJoin(collective.group, ", "), "]"));
  }
  const Tensor& dst = part.dst;
  if (!dst.defined()) return Refuse(collective, absl::StrCat("rank ", rank, " has no result"));
  if (static_cast<int>(box.dims.size()) != dst.ndim() || !DstInside(box, dst)) {
    return Refuse(collective,
                  absl::StrCat("a box lies outside of rank ", rank, "'s result ",
                               DimsToString(dst.shape()), ", or writes to strides of 0"));
  }
  DT_RETURN_IF_ERROR(CheckOperation(collective, part, box));
  const bool reads_itself = std::find(box.peers.begin(), box.peers.end(), rank) != box.peers.end();
  return reads_itself ? CheckSource(collective, box, dst, part.src, rank) : absl::OkStatus();
}

}  // namespace

std::string ExchangeLabel(const Collective& collective) {
  return absl::StrCat(collective.op, " over axis \"", collective.axes, "\": ");
}

absl::Status CheckExchange(const Collective& collective, absl::Span<const ExchangePart> parts,
                           int rank, int size, const Device* device) {
  DT_RETURN_IF_ERROR(CheckGroup(collective, rank, size));
  size_t at = 0;
  for (const ExchangePart& part : parts) {
    for (const Tensor* tensor : {&part.src, &part.dst}) {
      if (device == nullptr || !tensor->defined() || &tensor->device() == device) continue;
      return Refuse(collective, absl::StrCat("a tensor is not on the device of rank ", rank));
    }
    for (const ReceiveBox& box : part.receives) {
      DT_RETURN_IF_ERROR(CheckBox(collective, part, box, rank, at));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSource(const Collective& collective, const ReceiveBox& box, const Tensor& dst,
                         const Tensor& source, int peer) {
  if (!source.defined()) {
    return Refuse(collective, absl::StrCat("rank ", peer, " has no tensor to receive from"));
  }
  if (!ConvertsOnTheWay(source.dtype(), dst.dtype())) {
    return Refuse(collective,
                  absl::StrCat("rank ", peer, " has ", ToString(source.dtype()),
                               " where the result is ", ToString(dst.dtype()),
                               "; only f32, bf16 and f16 become each other on the way"));
  }
  if (source.ndim() != dst.ndim() || !SourceInside(box, source.shape())) {
    return Refuse(collective, absl::StrCat("a box lies outside of the tensor ",
                                           DimsToString(source.shape()), " of rank ", peer));
  }
  return absl::OkStatus();
}

bool ReceivesNothing(absl::Span<const ExchangePart> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const ExchangePart& part) { return part.receives.empty(); });
}

int64_t WrittenBytes(absl::Span<const ExchangePart> parts) {
  int64_t bytes = 0;
  for (const ExchangePart& part : parts) {
    for (const ReceiveBox& box : part.receives) bytes += box.elements() * SizeOf(part.dst.dtype());
  }
  return bytes;
}

}  // namespace dtensor
