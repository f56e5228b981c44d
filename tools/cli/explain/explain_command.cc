#include "dtensor/tools/cli/explain/explain_command.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/explain/explain.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/tools/cli/explain/explain_json.h"
#include "dtensor/tools/cli/explain/explain_picture.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/program/output.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

Json RequestJson(const ExplainFlags& flags, const ExplainRequest& request) {
  const TrainingStep& step = request.step;
  return {{"model", flags.model},         {"plan", request.plan},
          {"mesh", step.mesh.ToString()}, {"batch", step.batch},
          {"seq", step.sequence},         {"dtype", std::string(ToString(step.dtype))},
          {"optimizer", flags.optimizer}, {"recompute", step.recompute}};
}

std::string RequestText(const ExplainFlags& flags, const ExplainRequest& request) {
  const TrainingStep& step = request.step;
  std::string text = absl::StrCat("model      ", flags.model, ", ", ToString(step.dtype), "\n");
  absl::StrAppend(&text, "plan       ", request.plan, "\n");
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

// Whether the step can be made where nothing is split: what is refused then is no matter of a plan.
absl::Status CheckUnsplit(TrainingStep step) {
  step.plan = ParallelPlan();
  step.recompute.clear();
  step.mesh = DeviceMesh();
  return Simulate(0, 1, [&](Context& context) { return CountStep(context, step).status(); });
}

// What a refused step is about: the flag of its plan, or another one.
std::string FlagOf(absl::string_view plan_flag, const TrainingStep& step,
                   const absl::Status& refused) {
  if (absl::StartsWith(refused.message(), "recompute ")) return "--";
  return absl::StrCat(CheckUnsplit(step).ok() ? plan_flag : "--model", ": ");
}

absl::StatusOr<Explanation> ExplainFor(absl::string_view flag, const TrainingStep& step) {
  absl::StatusOr<Explanation> explanation = ExplainStep(step);
  if (explanation.ok()) return explanation;
  const absl::Status& refused = explanation.status();
  return absl::Status(refused.code(), absl::StrCat(FlagOf(flag, step, refused), refused.message()));
}

absl::Status WriteSvg(const ExplainFlags& flags, const ExplainRequest& request,
                      const Explanation& explanation) {
  const std::string title =
      absl::StrCat(flags.model, ", plan ", request.plan, " on ", request.step.mesh.ToString());
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
  if (!flags.svg.empty()) DT_RETURN_IF_ERROR(WriteSvg(flags, request, explanation));
  const std::string text = RequestText(flags, request);
  Json report = RequestJson(flags, request);
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
