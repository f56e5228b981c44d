// CallSummary: describes the exchange that a rank asks for, for the error message when two ranks
// disagree.
#ifndef DTENSOR_RUNTIME_COMM_CALL_SUMMARY_H_
#define DTENSOR_RUNTIME_COMM_CALL_SUMMARY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct CallSummary {
  std::string op;
  std::string kind;  // "all-gather"
  std::string what;  // the collective's description, else the number of tensors and the digest
  bool described = false;
};
CallSummary SummaryOf(absl::string_view op, CollectiveKind kind, uint64_t digest,
                      const CallDescription* description, size_t parts);

// "ranks disagree about call 3 of ranks [0, 1]: rank 0 makes ... where rank 1 makes ..."
absl::Status Disagreement(uint64_t number, absl::Span<const int> group, int rank,
                          const CallSummary& mine, int other_rank, const CallSummary& other);

// Returns the world's failure. If its message names no operator, adds the one in which this rank
// received it.
absl::Status InOp(const absl::Status& failure, int rank, const Collective& collective);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_CALL_SUMMARY_H_
