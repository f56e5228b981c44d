// RankContent: what one rank names of a checkpoint. It is sent to the other ranks if not all ranks
// name the same (world_content.h).
#ifndef DTENSOR_CHECKPOINT_RANK_CONTENT_H_
#define DTENSOR_CHECKPOINT_RANK_CONTENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/slice_plan.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The description of a tensor, which only the first rank of its mesh sends.
struct DescribedTensor {
  std::string text;  // for messages
  PlannedTensor tensor;
};

struct NamedTensor {
  uint64_t digest = 0;  // of its text: if it is equal on two ranks, they mean the same tensor
  int first = 0;        // the first rank of its mesh
  std::optional<DescribedTensor> described;
};

struct RankContent {
  std::string folder;
  int64_t step = 0;
  std::map<std::string, std::string> entries;
  std::map<std::string, std::string> aliases;
  std::map<std::string, NamedTensor> tensors;
};
std::string Encode(const RankContent& content);
// Errors: kInvalidArgument for bytes that are not a RankContent, or that name a rank outside of the
// world's `ranks`, or a tensor which no rank could hold.
absl::StatusOr<RankContent> ReadRankContent(absl::string_view bytes, int ranks);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_RANK_CONTENT_H_
