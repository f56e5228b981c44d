// Error texts about which rank waits for which.
#ifndef DTENSOR_RUNTIME_COMM_WAIT_CHAIN_H_
#define DTENSOR_RUNTIME_COMM_WAIT_CHAIN_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// "op "add" (call 3 of ranks [0, 1])"
std::string CallText(absl::string_view op, uint64_t number, absl::Span<const int> ranks);

struct WaitText {
  int rank = 0, peer = 0;
  std::string call;
};

// Returns what is wrong with a chain of waits, which begins with the rank that asks and in which
// each rank waits for the next. There is a cycle if the last peer is one of the chain's ranks.
// Otherwise, `timed_out` says that its first rank has waited for `seconds`, which is too long. OK
// if neither. Requires: not empty.
absl::Status TroubleOf(absl::Span<const WaitText> chain, bool timed_out, double seconds);
// The error that says that the chain's first rank has waited for `seconds`.
absl::Status SilenceOf(absl::Span<const WaitText> chain, double seconds);

// Why the world fails when a rank has returned `returned` while `rank` waits for it in `call`.
absl::Status ReturnedWhile(const absl::Status& returned, int rank, absl::string_view call);
// "rank 0 waits for it in op "add" (call 3 of ranks [0, 1])"
std::string WaiterText(int rank, absl::string_view call);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_WAIT_CHAIN_H_
