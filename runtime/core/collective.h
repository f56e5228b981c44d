// Plain values that describe a round of communication, shared by plans and communicators.
#ifndef DTENSOR_RUNTIME_CORE_COLLECTIVE_H_
#define DTENSOR_RUNTIME_CORE_COLLECTIVE_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"

namespace DTENSOR_EXPORT dtensor {

// What a round does, for even and uneven sizes alike. `kSlice` moves nothing between ranks.
enum class CollectiveKind : uint8_t {
  kSlice,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kPermute,
  kExchange
};
absl::string_view ToString(CollectiveKind kind);  // "slice", "all-gather", "reduce-scatter", ...

// A box to receive: the product over tensor dimensions of one MatchedRun each (positions in the
// peer's local tensor -> positions in mine). If there are several peers, their boxes, which have
// the same shape and position, are combined in the order listed. A peer may be the rank itself.
struct ReceiveBox {
  absl::InlinedVector<int, 4> peers;  // world ranks
  absl::InlinedVector<MatchedRun, 4> dims;
  int64_t elements() const;  // of the box
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_COLLECTIVE_H_
