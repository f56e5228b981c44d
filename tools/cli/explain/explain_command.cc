#include "dtensor/tools/cli/explain/explain_command.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/explain/explain.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/tools/cli/explain/explain_json.h"
#include "dtensor/tools/cli/explain/explain_picture.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/program/output.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string PlanName(const ExplainFlags& flags, const TrainingStep& step) {
  return flags.plan.empty() ? DefaultPreset(step.mesh) : flags.plan;
}

Json RequestJson(const ExplainFlags& flags, const TrainingStep& step) {
  return {{"model", flags.model},         {"plan", PlanName(flags, step)},
          {"mesh", step.mesh.ToString()}, {"batch", step.batch},
          {"seq", step.sequence},         {"dtype", std::string(ToString(step.dtype))},
          {"optimizer", flags.optimizer}, {"recompute", step.recompute}};
}

std::string RequestText(const ExplainFlags& flags, const TrainingStep& step) {
  std::string text = absl::StrCat("model      ", flags.model, ", ", ToString(step.dtype), "\n");
  absl::StrAppend(&text, "plan       ", PlanName(flags, step), "\n");
  absl::StrAppend(&text, "mesh       ", step.mesh.ToString(), ", ", step.mesh.size(),
                  step.mesh.size() == 1 ? " rank\n" : " ranks\n");
  absl::StrAppend(&text, "step       batch ", step.batch, ", seq ", step.sequence, ", optimizer ",
                  flags.optimizer);
  if (!step.recompute.empty()) {
    const auto quoted = [](std::string* out, const std::string& pattern) {
      absl::StrAppend(out, "\"", pattern, "\"");
    };
    absl::StrAppend(&text, ", recomputing ", absl::StrJoin(step.recompute, ", ", quoted));
  }
  return text + "\n";
}

// The flag that a refused step is about.
absl::Status WithFlag(absl::string_view flag, const absl::Status& status) {
  const bool recompute = absl::StartsWith(status.message(), "recompute ");
  return absl::Status(status.code(), recompute ? absl::StrCat("--", status.message())
                                               : absl::StrCat(flag, ": ", status.message()));
}

absl::StatusOr<Explanation> ExplainFor(absl::string_view flag, const TrainingStep& step) {
  absl::StatusOr<Explanation> explanation = ExplainStep(step);
  return explanation.ok() ? explanation : WithFlag(flag, explanation.status());
}

absl::Status WriteSvg(const ExplainFlags& flags, const TrainingStep& step,
                      const Explanation& explanation) {
  const std::string title =
      absl::StrCat(flags.model, ", plan ", PlanName(flags, step), " on ", step.mesh.ToString());
  const absl::Status written = WriteFileAtomically(flags.svg, DrawExplanation(explanation, title));
  if (written.ok()) return written;
  return absl::InternalError(absl::StrCat("--svg: ", written.message()));
}

absl::Status CheckSvg(const ExplainFlags& flags) {
  if (flags.svg.empty()) return absl::OkStatus();
  if (flags.compare.empty()) return CheckOutputFile("--svg", flags.svg);
  return InvalidArgument({"--svg: a picture shows one plan; leave --compare out"});
}

}  // namespace

absl::StatusOr<Outcome> RunExplain(const ExplainFlags& flags, bool json) {
  DT_RETURN_IF_ERROR(CheckSvg(flags));
  DT_ASSIGN_OR_RETURN(const ExplainRequest request, ParseExplain(flags));
  DT_ASSIGN_OR_RETURN(const Explanation explanation, ExplainFor("--plan", request.step));
  if (!flags.svg.empty()) DT_RETURN_IF_ERROR(WriteSvg(flags, request.step, explanation));
  const std::string text = RequestText(flags, request.step);
  Json report = RequestJson(flags, request.step);
  if (!request.other) {
    report.update(ExplanationJson(explanation));
    return Outcome{json ? JsonText(report) : text + explanation.ToString()};
  }
  DT_ASSIGN_OR_RETURN(const Explanation other, ExplainFor("--compare", *request.other));
  const std::vector<ComparedFigure> figures = Compare(explanation, other);
  report["compare"] = flags.compare;
  report["figures"] = ComparisonJson(figures);
  if (json) return Outcome{JsonText(report)};
  return Outcome{absl::StrCat(text, "compare    ", flags.compare, "\n", ComparisonText(figures))};
}

}  // namespace dtensor::cli
