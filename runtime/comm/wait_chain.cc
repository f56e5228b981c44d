#include "dtensor/runtime/comm/wait_chain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor {
namespace {

// "rank 0 waits in op "a" (call 3 of ranks [0, 1]) for rank 1, which waits in ... for rank 0"
std::string ToString(absl::Span<const WaitText> chain) {
  std::string text = absl::StrCat("rank ", chain.front().rank);
  const char* separator = " waits in ";
  for (const WaitText& wait : chain) {
    absl::StrAppend(&text, separator, wait.call, " for rank ", wait.peer);
    separator = ", which waits in ";
  }
  return text;
}

}  // namespace

std::string CallText(absl::string_view op, uint64_t number, absl::Span<const int> ranks) {
  return absl::StrCat("op \"", op, "\" (call ", number, " of ranks [", absl::StrJoin(ranks, ", "),
                      "])");
}

std::string WaiterText(int rank, absl::string_view call) {
  return absl::StrCat("rank ", rank, " waits for it in ", call);
}

absl::Status ReturnedWhile(const absl::Status& returned, int rank, absl::string_view call) {
  const std::string waiter = WaiterText(rank, call);
  return returned.ok()
             ? absl::AbortedError(absl::StrCat("returned while ", waiter))
             : absl::Status(returned.code(), absl::StrCat(returned.message(), " (", waiter, ")"));
}

absl::Status TroubleOf(absl::Span<const WaitText> chain, bool timed_out, double seconds) {
  const auto cycle = std::find_if(chain.begin(), chain.end(), [&](const WaitText& wait) {
    return wait.rank == chain.back().peer;
  });
  if (cycle != chain.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks wait for each other in a cycle: ", ToString(chain.subspan(cycle - chain.begin())),
        "; all ranks must make the calls of their groups in one common order"));
  }
  return timed_out ? SilenceOf(chain, seconds) : absl::OkStatus();
}

absl::Status SilenceOf(absl::Span<const WaitText> chain, double seconds) {
  return absl::DeadlineExceededError(
      absl::StrCat("silent for ", seconds, " s while ", ToString(chain)));
}

}  // namespace dtensor
