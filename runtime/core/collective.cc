#include "dtensor/runtime/core/collective.h"

namespace dtensor {

absl::string_view ToString(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kSlice:
      return "slice";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kPermute:
      return "permute";
    case CollectiveKind::kExchange:
      return "exchange";
  }
  return "unknown";
}

int64_t ReceiveBox::elements() const {
  int64_t n = 1;
  for (const MatchedRun& piece : dims) n *= piece.size();
  return n;
}

}  // namespace dtensor
