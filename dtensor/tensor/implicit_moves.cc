#include "dtensor/tensor/implicit_moves.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

struct ImplicitMove {
  std::string what;  // "operand 1"
  std::shared_ptr<const RankRedistributionPlan> plan;
};

// The implicit redistributions that move something between ranks.
absl::StatusOr<std::vector<ImplicitMove>> MovesOf(Context& context, const Decision& decision) {
  std::vector<ImplicitMove> moves;
  if (decision.moves_asked_for) return moves;
  const auto add = [&](absl::string_view what, size_t i, const Spec* from,
                       const Spec* to) -> absl::Status {
    if (from == to) return absl::OkStatus();
    DT_ASSIGN_OR_RETURN(auto plan, context.Plan(from, to));
    if (plan->plan().moves_nothing()) return absl::OkStatus();
    moves.push_back({absl::StrCat(what, " ", i), std::move(plan)});
    return absl::OkStatus();
  };
  for (size_t i = 0; i < decision.given.size(); ++i) {
    DT_RETURN_IF_ERROR(add("operand", i, decision.given[i], decision.operands[i]));
  }
  for (size_t r = 0; r < decision.results.size(); ++r) {
    DT_RETURN_IF_ERROR(add("result", r, decision.results[r], decision.returned[r]));
  }
  return moves;
}

// "operand 1, on ["tp"=2], goes by itself: [tp] [] -> [] [], [8, 4] f32: all-gather(tp) 64 B"
std::string Describe(const ImplicitMove& move) {
  const RedistributionPlan& plan = move.plan->plan();
  return absl::StrCat(move.what, ", on ", plan.from().mesh().ToString(),
                      ", goes by itself: ", plan.ToString());
}

constexpr absl::string_view kRemedy =
    "Redistribute() it there, or let a plan's edge do so, where you want that; else give the "
    "operands layouts that the operator takes as they are";

bool SpeaksFor(const Context& context, const DeviceMesh& mesh) {
  const int first = mesh.listed_ranks().empty() ? 0 : mesh.listed_ranks()[0];
  return context.rank() == first;
}

}  // namespace

absl::Status CheckImplicit(Context& context, const Decision& decision) {
  const int64_t most = context.max_implicit_bytes();
  if (most < 0) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const std::vector<ImplicitMove> moves, MovesOf(context, decision));
  int64_t bytes = 0;
  for (const ImplicitMove& move : moves) bytes += move.plan->plan().Bytes().busiest;
  if (bytes <= most) return absl::OkStatus();
  std::string all;
  for (const ImplicitMove& move : moves) absl::StrAppend(&all, Describe(move), "; ");
  return InvalidArgument({decision.op->name, ": ", all, "a rank receives ",
                          moves.size() > 1 ? "up to " : "", absl::StrCat(bytes),
                          " bytes, and max_implicit_bytes is ", absl::StrCat(most), "; ", kRemedy});
}

void NoticeImplicit(Context& context, const Decision& decision) {
  if (context.notice() == nullptr) return;
  if (!SpeaksFor(context, decision.given[0]->mesh())) return;
  const auto moves = MovesOf(context, decision);
  if (!moves.ok()) return;  // dispatch will return the error
  const absl::string_view path = context.scope_path();
  for (const ImplicitMove& move : *moves) {
    context.notice()(absl::StrCat(decision.op->name, path.empty() ? "" : " at ", path, ": ",
                                  Describe(move), "; ", kRemedy));
  }
}

}  // namespace dtensor
