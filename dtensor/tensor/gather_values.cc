#include "dtensor/tensor/gather_values.h"

#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {
namespace {

using Word = int32_t;  // bytes are sent as words, as there is no tensor type for bytes

// Every rank receives all elements of each peer, concatenated in the order of ranks.
class AllGatherBoxes final : public ExchangeBoxes {
 public:
  explicit AllGatherBoxes(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {
    for (const int64_t size : sizes_) digest_.Add(size);
  }

  std::vector<ReceiveBox> Receives(size_t, int) const override {
    std::vector<ReceiveBox> boxes;
    int64_t at = 0;
    for (size_t peer = 0; peer < sizes_.size(); at += sizes_[peer++]) {
      if (sizes_[peer] == 0) continue;
      ReceiveBox& box = boxes.emplace_back();
      box.peers.push_back(static_cast<int>(peer));
      box.dims.push_back({0, at, sizes_[peer]});
    }
    return boxes;
  }
  uint64_t digest() const override { return digest_.value(); }
  int64_t total() const { return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}); }

 private:
  const std::vector<int64_t> sizes_;
  Digest digest_;
};

// `sizes` are by rank, the same on all ranks; this rank's is the size of `mine`.
template <typename T>
absl::StatusOr<std::vector<T>> AllGather(Context& context, absl::Span<const T> mine,
                                         std::vector<int64_t> sizes, absl::string_view op) {
  const AllGatherBoxes boxes(std::move(sizes));
  const std::vector<ReceiveBox> receives = boxes.Receives(0, context.rank());
  std::vector<int> everyone(context.world_size());
  std::iota(everyone.begin(), everyone.end(), 0);
  DT_ASSIGN_OR_RETURN(const Tensor source,
                      FromHost<T>(context.device(), mine, {static_cast<int64_t>(mine.size())}));
  DT_ASSIGN_OR_RETURN(const Tensor result,
                      Tensor::Empty(context.device(), source.dtype(), {boxes.total()}));
  const ExchangePart part{source, result, receives};
  const Collective collective = {.kind = CollectiveKind::kAllGather,
                                 .axes = "world",
                                 .op = op,
                                 .group = everyone,
                                 .digest = boxes.digest(),
                                 .boxes = &boxes};
  DT_RETURN_IF_ERROR(context.communicator().Exchange(collective, {&part, 1}));
  return ToHost<T>(result);
}

int64_t WordsOf(int64_t bytes) {
  return (bytes + static_cast<int64_t>(sizeof(Word)) - 1) / static_cast<int64_t>(sizeof(Word));
}

// Appends each rank's bytes to `out`. May fail or throw on this rank alone.
absl::Status Gather(Context& context, absl::string_view bytes, absl::string_view op,
                    std::vector<std::string>& out) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  DT_ASSIGN_OR_RETURN(
      const std::vector<int64_t> sizes,
      AllGather<int64_t>(context, {&size, 1}, std::vector<int64_t>(context.world_size(), 1), op));
  std::vector<int64_t> words;
  for (const int64_t of_rank : sizes) words.push_back(WordsOf(of_rank));
  std::vector<Word> mine(WordsOf(size));
  if (size > 0) std::memcpy(mine.data(), bytes.data(), bytes.size());
  DT_ASSIGN_OR_RETURN(const std::vector<Word> all, AllGather<Word>(context, mine, words, op));
  const Word* at = all.data();
  for (size_t rank = 0; rank < sizes.size(); at += words[rank++]) {
    out.emplace_back(reinterpret_cast<const char*>(at), sizes[rank]);
  }
  return absl::OkStatus();
}

// Converts an error to text, and back.
std::string Encode(const absl::Status& status) {
  return status.ok()
             ? ""
             : absl::StrCat(std::string(1, static_cast<char>(status.code())), status.message());
}
absl::Status Decode(absl::string_view text, absl::string_view prefix) {
  return absl::Status(static_cast<absl::StatusCode>(text[0]), absl::StrCat(prefix, text.substr(1)));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GatherBytes(Context& context, absl::string_view bytes,
                                                     absl::string_view op) {
  if (context.device().is_meta()) {
    return absl::FailedPreconditionError(
        absl::StrCat(op, ": ranks on the meta device have no bytes to tell"));
  }
  std::vector<std::string> all;
  const absl::Status status = NoThrow([&] { return Gather(context, bytes, op, all); });
  if (status.ok()) return all;
  return context.communicator().Fail(
      absl::Status(status.code(), absl::StrCat(op, ": ", status.message())));
}

absl::Status UnlikeValues(int rank, size_t sent, size_t size) {
  return InvalidArgument({"GatherValues: rank ", absl::StrCat(rank), " sent ", absl::StrCat(sent),
                          " bytes where this rank has values of ", absl::StrCat(size),
                          "; all ranks gather values of one type"});
}

absl::StatusOr<int> FirstUnlikeRank0(Context& context, uint64_t value) {
  DT_ASSIGN_OR_RETURN(const std::vector<uint64_t> values, GatherValues(context, value));
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values[0]) return static_cast<int>(rank);
  }
  return 0;
}

absl::Status AgreeOn(Context& context, const absl::Status& mine) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      GatherBytes(context, Encode(mine), "AgreeOn"));
  std::vector<int> failed;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) failed.push_back(static_cast<int>(rank));
  }
  if (failed.empty()) return absl::OkStatus();
  if (failed.size() == all.size()) return Decode(all[0], "");
  return Decode(all[failed[0]], absl::StrCat(failed.size() == 1 ? "rank " : "ranks ",
                                             absl::StrJoin(failed, ", "), ": "));
}

}  // namespace dtensor
