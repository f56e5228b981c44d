#include "dtensor/tools/cli/plan_command.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/redistribution/visualize.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/svg_file.h"

namespace dtensor::cli {
namespace {

std::vector<std::string> AxisNames(const RedistributionPlan& plan,
                                   const RedistributionRound& round) {
  std::vector<std::string> names;
  for (int axis : round.axes) names.push_back(plan.to().mesh().axis_name(axis));
  return names;
}

// Most of these go through all ranks, so each is computed once.
struct Costs {
  Costs(const RedistributionPlan& plan, const CostModel& links)
      : bytes(plan.Bytes()),
        bound(plan.Bound()),
        extra(plan.ExtraBytes()),
        peak(plan.PeakBytes()),
        seconds(plan.PredictedSeconds(links)) {
    for (size_t s = 0; s < plan.rounds().size(); ++s) {
      rounds.push_back(plan.Bytes(static_cast<int>(s)));
    }
  }
  RedistributionBytes bytes, bound;
  std::vector<RedistributionBytes> rounds;
  int64_t extra, peak;
  double seconds;
};

std::string Digest(const RedistributionPlan& plan) {
  return absl::StrFormat("%016x", plan.digest());
}

nlohmann::ordered_json PlanJson(const RedistributionPlan& plan, RedistributionObjective objective,
                                const Costs& costs) {
  nlohmann::ordered_json json = RequestJson(plan, objective);
  nlohmann::ordered_json rounds = nlohmann::ordered_json::array();
  for (size_t s = 0; s < costs.rounds.size(); ++s) {
    nlohmann::ordered_json& round = rounds.emplace_back(
        nlohmann::ordered_json{{"kind", std::string(ToString(plan.rounds()[s].kind))},
                               {"axes", AxisNames(plan, plan.rounds()[s])},
                               {"bytes", costs.rounds[s].total},
                               {"max_bytes_per_rank", costs.rounds[s].busiest}});
    if (plan.rounds()[s].across) round["between_meshes"] = true;
  }
  json["rounds"] = std::move(rounds);
  json["total_bytes"] = costs.bytes.total;
  json["max_bytes_per_rank"] = costs.bytes.busiest;
  json["bound_total_bytes"] = costs.bound.total;
  json["bound_max_bytes_per_rank"] = costs.bound.busiest;
  json["extra_bytes_per_rank"] = costs.extra;
  json["peak_bytes_per_rank"] = costs.peak;
  json["predicted_seconds"] = costs.seconds;
  json["digest"] = Digest(plan);
  return json;
}

// What a plan without rounds does instead.
absl::string_view LocalWork(const RedistributionPlan& plan) {
  if (plan.is_view()) return "none: the result is a view of the source";
  return plan.fills_identity() ? "none: each rank copies its own elements and fills the rest"
                               : "none: each rank copies its own elements";
}

std::string PlanText(const RedistributionPlan& plan, RedistributionObjective objective,
                     const Costs& costs) {
  std::string text = RequestText(plan, objective);
  if (costs.rounds.empty()) absl::StrAppend(&text, "rounds     ", LocalWork(plan), "\n");
  for (size_t s = 0; s < costs.rounds.size(); ++s) {
    absl::StrAppendFormat(&text, "%-10s %s: %d B, busiest rank %d B\n", s == 0 ? "rounds" : "",
                          RoundText(plan, static_cast<int>(s)), costs.rounds[s].total,
                          costs.rounds[s].busiest);
  }
  absl::StrAppendFormat(&text, "received   %d B (bound %d), busiest rank %d B (bound %d)\n",
                        costs.bytes.total, costs.bound.total, costs.bytes.busiest,
                        costs.bound.busiest);
  absl::StrAppendFormat(&text, "memory     %d B more on a rank, %d B at the peak\n", costs.extra,
                        costs.peak);
  absl::StrAppendFormat(&text, "predicted  %.3g us\n", costs.seconds * 1e6);
  absl::StrAppend(&text, "digest     ", Digest(plan), "\n");
  return text;
}

// Each mesh with the number of its ranks: two meshes may share some.
std::string MeshText(const DeviceMesh& mesh) {
  return absl::StrCat(mesh.ToString(), ", ", mesh.size(), mesh.size() == 1 ? " rank" : " ranks");
}

}  // namespace

nlohmann::ordered_json RequestJson(const RedistributionPlan& plan,
                                   RedistributionObjective objective) {
  const DeviceMesh &source = plan.from().mesh(), &target = plan.to().mesh();
  nlohmann::ordered_json json;
  if (source == target) {
    json["mesh"] = source.ToString();
  } else {
    json["from_mesh"] = source.ToString();
    json["to_mesh"] = target.ToString();
  }
  json["shape"] = std::vector<int64_t>(plan.shape().begin(), plan.shape().end());
  json["dtype"] = std::string(ToString(plan.dtype()));
  json["from"] = plan.from().ToString();
  json["to"] = plan.to().ToString();
  json["objective"] = std::string(ToString(objective));
  return json;
}

std::string RequestText(const RedistributionPlan& plan, RedistributionObjective objective) {
  const DeviceMesh &source = plan.from().mesh(), &target = plan.to().mesh();
  const std::string mesh = source == target
                               ? MeshText(source)
                               : absl::StrCat(MeshText(source), " -> ", MeshText(target));
  return absl::StrFormat(
      "mesh       %s\n"
      "tensor     %s %s, %d B\n"
      "move       %s -> %s\n"
      "objective  %s\n",
      mesh, DimsToString(plan.shape()), std::string(ToString(plan.dtype())),
      NumElements(plan.shape()) * SizeOf(plan.dtype()), plan.from().ToString(),
      plan.to().ToString(), std::string(ToString(objective)));
}

absl::StatusOr<RedistributionPlan> MakePlan(const Move& move) {
  absl::StatusOr<RedistributionPlan> plan =
      RedistributionPlan::Create(move.from, move.to, move.shape, move.dtype, move.options);
  if (plan.status().code() != absl::StatusCode::kResourceExhausted) return plan;
  return absl::ResourceExhaustedError(absl::StrCat("--max-extra-bytes: ", plan.status().message()));
}

absl::StatusOr<Outcome> RunPlan(const MoveFlags& flags, bool json, bool colour) {
  DT_RETURN_IF_ERROR(CheckPicture(flags.picture, json));
  DT_ASSIGN_OR_RETURN(const Move move, ParseMove(flags));
  DT_ASSIGN_OR_RETURN(const RedistributionPlan plan, MakePlan(move));
  const Costs costs(plan, move.options.links);
  std::string text = json ? JsonText(PlanJson(plan, move.options.objective, costs))
                          : PlanText(plan, move.options.objective, costs);
  if (flags.picture) {
    const auto picture = VisualizeRedistribution(plan, colour);
    DT_RETURN_IF_ERROR(AboutFlag("--picture", picture.status()));
    text += *picture;
  }
  // Written last, so that a refused request leaves no file.
  if (!flags.svg.empty()) {
    DT_RETURN_IF_ERROR(WriteSvg(flags.svg, VisualizeRedistributionSvg(plan)));
  }
  return Outcome{std::move(text)};
}

}  // namespace dtensor::cli
