// What a rank lists as its part of a checkpoint. The first byte is the size of the world.
#include "dtensor/checkpoint/rank_content.h"

#include "dtensor/checkpoint/slice_plan.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  if (input.empty()) return;
  const int ranks = static_cast<unsigned char>(input[0]);
  const absl::StatusOr<RankContent> read = ReadRankContent(input.substr(1), ranks);
  if (!IsRead(read)) return;
  const std::string text = Encode(*read);
  const absl::StatusOr<RankContent> again = ReadRankContent(text, ranks);
  Require(again.ok() && Encode(*again) == text, "what was read is written, and read again");
  for (const auto& [name, named] : read->tensors) {
    Require(0 <= named.first && named.first < ranks, "a rank is one of the world's");
    if (!named.described) continue;
    int64_t elements = 0;
    for (const PlannedSlice& slice : PlanSlices({&named.described->tensor, 1}, ranks)) {
      Require(0 <= slice.rank && slice.rank < ranks, "who writes is one of them");
      elements += NumElements(slice.region);
    }
    Require(elements == NumElements(named.described->tensor.shape), "all is written");
  }
}

}  // namespace dtensor::fuzz
