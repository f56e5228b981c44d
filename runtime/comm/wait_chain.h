// Who waits for whom, in words.
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

// What is wrong with a chain, each of whose ranks waits for the next one's, from the rank that
// asks: its last peer is one of its ranks (a cycle), or the first of them has waited for `seconds`,
// which is too long. OK if neither. Requires: not empty.
absl::Status TroubleOf(absl::Span<const WaitText> chain, bool timed_out, double seconds);
// That it has waited for so long.
absl::Status SilenceOf(absl::Span<const WaitText> chain, double seconds);

// Why a rank that returned `returned` fails the world, for which `rank` waits in `call`.
absl::Status ReturnedWhile(const absl::Status& returned, int rank, absl::string_view call);
// "rank 0 waits for it in op "add" (call 3 of ranks [0, 1])"
std::string WaiterText(int rank, absl::string_view call);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_WAIT_CHAIN_H_
