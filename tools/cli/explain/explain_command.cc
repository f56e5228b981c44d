#include "dtensor/tools/cli/explain/explain_command.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/explain/explain.h"
#include "dtensor/parallel_plans/explain/visualize.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/explain/explain_json.h"
#include "dtensor/tools/cli/explain/explain_picture.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/svg_file.h"
#include "dtensor/tools/program/output.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

Json RequestJson(const ExplainFlags& flags, const ExplainRequest& request) {
  const TrainingStep& step = request.step;
  Json json = {{"model", flags.model},
               {"plan", request.plan},
               {"mesh", step.mesh.ToString()},
               {"batch", step.batch},
               {"seq", step.sequence},
               {"dtype", std::string(ToString(step.dtype))},
               {"optimizer", flags.optimizer},
               {"recompute", step.recompute},
               {"micro_batches", step.micro_batches}};
  if (flags.lora.rank == 0) return json;
  json["lora"] = {{"rank", flags.lora.rank}, {"layers", flags.lora.layers}};
  return json;
}

std::string RequestText(const ExplainFlags& flags, const ExplainRequest& request) {
  const TrainingStep& step = request.step;
  std::string text = absl::StrCat("model      ", flags.model, ", ", ToString(step.dtype), "\n");
  if (flags.lora.rank != 0) {
    absl::StrAppend(&text, "adapters   rank ", flags.lora.rank, " of ",
                    absl::StrJoin(flags.lora.layers, ", "), "\n");
  }
  absl::StrAppend(&text, "plan       ", request.plan, "\n");
  absl::StrAppend(&text, "mesh       ", step.mesh.ToString(), ", ", step.mesh.size(),
                  step.mesh.size() == 1 ? " rank\n" : " ranks\n");
  absl::StrAppend(&text, "step       batch ", step.batch, ", seq ", step.sequence, ", optimizer ",
                  flags.optimizer);
  if (step.micro_batches > 1) absl::StrAppend(&text, ", ", step.micro_batches, " micro-batches");
  if (!step.recompute.empty()) {
    const auto quoted = [](std::string* out, const std::string& pattern) {
      absl::StrAppend(out, "\"", pattern, "\"");
    };
    absl::StrAppend(&text, ", recomputing ", absl::StrJoin(step.recompute, ", ", quoted));
  }
  return text + "\n";
}

// Checks that the step can be made with nothing split. If that is refused, the plan is not the
// reason.
absl::Status CheckUnsplit(TrainingStep step) {
  step.plan = ParallelPlan();
  step.recompute.clear();
  step.micro_batches = 1;
  step.mesh = DeviceMesh();
  return Simulate(0, 1, [&](Context& context) { return CountStep(context, step).status(); });
}

// The flag that is to blame for a refused step: that of its plan, or another one.
std::string FlagOf(absl::string_view plan_flag, const ExplainFlags& flags, const TrainingStep& step,
                   const absl::Status& refused) {
  if (absl::StartsWith(refused.message(), "recompute ")) return "--";
  return absl::StrCat(CheckUnsplit(step).ok() ? plan_flag : flags.model_flag, ": ");
}

absl::StatusOr<Explanation> ExplainFor(absl::string_view flag, const ExplainFlags& flags,
                                       const TrainingStep& step) {
  absl::StatusOr<Explanation> explanation = ExplainStep(step);
  if (explanation.ok()) return explanation;
  const absl::Status& refused = explanation.status();
  return absl::Status(refused.code(),
                      absl::StrCat(FlagOf(flag, flags, step, refused), refused.message()));
}

std::string TitleOf(const ExplainFlags& flags, const ExplainRequest& request) {
  return absl::StrCat(flags.model, ", plan ", request.plan, " on ", request.step.mesh.ToString());
}

absl::Status CheckSvg(const ExplainFlags& flags) {
  if (flags.svg.empty()) return absl::OkStatus();
  if (flags.compare.empty()) return CheckOutputFile("--svg", flags.svg);
  return InvalidArgument({"--svg: a picture shows one plan; leave --compare out"});
}

absl::Status CheckMemory(const ExplainFlags& flags) {
  if (!flags.memory || flags.compare.empty()) return absl::OkStatus();
  return InvalidArgument({"--memory: it is of one plan; leave --compare out"});
}

// What is printed about one plan, and whether the plan fits.
Outcome Report(const ExplainFlags& flags, const Explanation& explanation, bool json, Json report,
               std::string text) {
  const int64_t peak = explanation.rank.memory.peak;
  const bool fits = !flags.memory || peak <= *flags.memory;
  if (flags.memory) {
    report["fits"] = fits;
    report["memory_bytes"] = *flags.memory;
    absl::StrAppend(&text, fits ? "fits       " : "TOO LARGE  ", BytesText(peak), " of ",
                    BytesText(*flags.memory), "\n");
  }
  return {json ? JsonText(report) : std::move(text), fits};
}

using Draw = absl::StatusOr<std::string> (*)(Module& model);

// Draws the step's plan on its model. Errors begin with the flag that asked for it.
absl::StatusOr<std::string> DrawPlan(absl::string_view flag, Draw draw, const TrainingStep& step) {
  std::string picture;
  const absl::Status drawn =
      Simulate(step.mesh.RankOf(0), static_cast<int>(step.mesh.size()),
               [&](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, step.model());
                 DT_RETURN_IF_ERROR(step.plan.Apply(
                     *model, context, step.mesh,
                     {.allow_uneven = step.allow_uneven, .recompute = step.recompute}));
                 DT_ASSIGN_OR_RETURN(picture, draw(*model));
                 return absl::OkStatus();
               });
  DT_RETURN_IF_ERROR(AboutFlag(flag, drawn));
  return picture;
}

absl::Status CheckModelPictures(const ExplainFlags& flags, bool json) {
  DT_RETURN_IF_ERROR(CheckPicture(flags.picture, json));
  return flags.svg.empty() ? absl::OkStatus() : CheckOutputFile("--svg", flags.svg);
}

}  // namespace

absl::StatusOr<Outcome> RunModel(const ExplainFlags& flags, bool json) {
  DT_RETURN_IF_ERROR(CheckModelPictures(flags, json));
  DT_ASSIGN_OR_RETURN(const ExplainRequest request, ParseModel(flags));
  DT_ASSIGN_OR_RETURN(const Explanation explanation,
                      ExplainFor(request.plan_flag, flags, request.step));
  Json report = RequestJson(flags, request);
  report.update(PlacedJson(explanation));
  std::string text = RequestText(flags, request) + explanation.PlacedText();
  if (flags.picture) {
    DT_ASSIGN_OR_RETURN(const std::string picture,
                        DrawPlan("--picture", VisualizePlan, request.step));
    text += picture;
  }
  if (!flags.svg.empty()) {
    DT_RETURN_IF_ERROR(WriteSvg(flags.svg, DrawPlan("--svg", VisualizePlanSvg, request.step)));
  }
  return Report(flags, explanation, json, std::move(report), std::move(text));
}

absl::StatusOr<Outcome> RunExplain(const ExplainFlags& flags, bool json) {
  DT_RETURN_IF_ERROR(CheckSvg(flags));
  DT_RETURN_IF_ERROR(CheckMemory(flags));
  DT_ASSIGN_OR_RETURN(const ExplainRequest request, ParseExplain(flags));
  DT_ASSIGN_OR_RETURN(const Explanation explanation,
                      ExplainFor(request.plan_flag, flags, request.step));
  DT_RETURN_IF_ERROR(WriteSvg(flags.svg, DrawExplanation(explanation, TitleOf(flags, request))));
  const std::string text = RequestText(flags, request);
  Json report = RequestJson(flags, request);
  if (!request.other) {
    report.update(ExplanationJson(explanation));
    return Report(flags, explanation, json, std::move(report), text + explanation.ToString());
  }
  DT_ASSIGN_OR_RETURN(const Explanation other, ExplainFor("--compare", flags, *request.other));
  const std::vector<ComparedFigure> figures = Compare(explanation, other);
  report["compare"] = flags.compare;
  report["figures"] = ComparisonJson(figures);
  if (json) return Outcome{JsonText(report)};
  return Outcome{absl::StrCat(text, "compare    ", flags.compare, "\n", ComparisonText(figures))};
}

}  // namespace dtensor::cli
