#include "dtensor/tools/cli/explain/explain_request.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {
namespace {

// Bytes of tensors are counted in int64, and a step has many tensors.
constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr int kMostRanks = 1 << 20;

absl::Status Of(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::StatusOr<std::string> ReadModel(const std::string& path) {
  constexpr int64_t kMost = 1 << 20;
  absl::StatusOr<std::string> text = ReadFile(path, kMost);
  return text.ok() ? text : Of("--model", text.status());
}

absl::Status CheckSize(absl::string_view flag, int64_t size) {
  if (size >= 1 && size <= kMostTokens) return absl::OkStatus();
  return InvalidArgument(
      {flag, ": ", absl::StrCat(size), " is out of range; take 1 to ", absl::StrCat(kMostTokens)});
}

absl::Status CheckSizes(const ExplainFlags& flags, const DeviceMesh& mesh) {
  DT_RETURN_IF_ERROR(CheckSize("--batch", flags.batch));
  DT_RETURN_IF_ERROR(CheckSize("--seq", flags.sequence));
  if (flags.batch > kMostTokens / flags.sequence) {
    return InvalidArgument({"--batch: ", absl::StrCat(flags.batch), " sequences of ",
                            absl::StrCat(flags.sequence), " are more tokens than can be counted (",
                            absl::StrCat(kMostTokens), "); take a smaller --batch or --seq"});
  }
  if (mesh.size() <= kMostRanks) return absl::OkStatus();
  return InvalidArgument({"--mesh: ", absl::StrCat(mesh.size()), " ranks are too many; take ",
                          absl::StrCat(kMostRanks), " or fewer"});
}

absl::StatusOr<StepOptimizer> ParseOptimizer(absl::string_view name) {
  if (name == "adamw") return StepOptimizer::kAdamW;
  if (name == "sgd") return StepOptimizer::kSgd;
  if (name == "none") return StepOptimizer::kNone;
  return InvalidArgument({"--optimizer: there is no '", name, "'; take adamw, sgd or none"});
}

absl::StatusOr<DType> ParseFloat(const std::string& name) {
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && IsFloat(*dtype)) return dtype;
  return InvalidArgument(
      {"--dtype: '", name, "' is no type of a model; take f32, f64, bf16 or f16"});
}

// A step is one of tokens to logits.
absl::Status CheckModel(const std::string& config) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
  if (model->operand_names().size() == 1 && model->result_names().size() == 1) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      {"explain takes models of token ids that make logits; take a gpt2 or a llama"});
}

absl::StatusOr<ParallelPlan> ParsePlan(absl::string_view flag, const std::string& text,
                                       const DeviceMesh& mesh, const PresetOptions& options) {
  absl::StatusOr<ParallelPlan> plan = NamedPlan(text, mesh, options);
  return plan.ok() ? plan : Of(flag, plan.status());
}

}  // namespace

absl::StatusOr<ExplainRequest> ParseExplain(const ExplainFlags& flags) {
  ExplainRequest request;
  TrainingStep& step = request.step;
  DT_ASSIGN_OR_RETURN(const std::string config, ReadModel(flags.model));
  const absl::Status usable = CheckModel(config);
  if (!usable.ok()) return Of(absl::StrCat("--model: ", flags.model), usable);
  step.model = [config] { return ModelFromJson(config); };
  absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(flags.mesh);
  if (!mesh.ok()) return Of("--mesh", mesh.status());
  step.mesh = *std::move(mesh);
  DT_RETURN_IF_ERROR(CheckSizes(flags, step.mesh));
  step.batch = flags.batch;
  step.sequence = flags.sequence;
  DT_ASSIGN_OR_RETURN(step.dtype, ParseFloat(flags.dtype));
  DT_ASSIGN_OR_RETURN(step.optimizer, ParseOptimizer(flags.optimizer));
  DT_ASSIGN_OR_RETURN(step.cost, ReadLinks(flags.links));
  step.recompute = flags.recompute;
  step.allow_uneven = flags.allow_uneven;
  DT_ASSIGN_OR_RETURN(std::string type, ModelTypeOf(config));
  const PresetOptions options = {flags.pattern, flags.allow_uneven, std::move(type)};
  request.plan = flags.plan.empty() ? DefaultPreset(step.mesh) : flags.plan;
  DT_ASSIGN_OR_RETURN(step.plan, ParsePlan("--plan", request.plan, step.mesh, options));
  if (flags.compare.empty()) return request;
  request.other = step;
  DT_ASSIGN_OR_RETURN(request.other->plan,
                      ParsePlan("--compare", flags.compare, step.mesh, options));
  return request;
}

}  // namespace dtensor::cli
