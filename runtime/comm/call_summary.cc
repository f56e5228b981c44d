#include "dtensor/runtime/comm/call_summary.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor {
namespace {

std::string Describe(int rank, const CallSummary& call) {
  return absl::StrCat("rank ", rank, " makes op \"", call.op, "\" (", call.kind, ", ", call.what,
                      ")");
}

// What to add if the two descriptions are equal.
absl::string_view Hint(const CallSummary& a, const CallSummary& b) {
  const bool alike =
      a.described && b.described && a.op == b.op && a.kind == b.kind && a.what == b.what;
  return alike ? "; these look alike, but come from other operands, arguments or options" : "";
}

}  // namespace

CallSummary SummaryOf(absl::string_view op, CollectiveKind kind, uint64_t digest,
                      const CallDescription* description, size_t parts) {
  const bool described = description != nullptr;
  return {std::string(op), std::string(ToString(kind)),
          described ? description->ToString()
                    : absl::StrCat(parts, " tensors, digest ", absl::Hex(digest)),
          described};
}

absl::Status Disagreement(uint64_t number, absl::Span<const int> group, int rank,
                          const CallSummary& mine, int other_rank, const CallSummary& other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks disagree about call ", number, " of ranks [", absl::StrJoin(group, ", "),
      "]: ", Describe(rank, mine), " where ", Describe(other_rank, other), Hint(mine, other),
      "; all ranks of a group must make the same calls in the same order"));
}

absl::Status InOp(const absl::Status& failure, int rank, const Collective& collective) {
  if (absl::StrContains(failure.message(), "op \"")) return failure;
  return absl::Status(
      failure.code(),
      absl::StrCat(failure.message(), " (rank ", rank, " met it in op \"", collective.op,
                   "\" of ranks [", absl::StrJoin(collective.group, ", "), "])"));
}

}  // namespace dtensor
