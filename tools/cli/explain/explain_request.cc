#include "dtensor/tools/cli/explain/explain_request.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/tools/cli/request.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {
namespace {

// Bytes of tensors and pairs of positions are counted in int64, and a step has many tensors.
constexpr int64_t kMostTokens = int64_t{1} << 32, kMostPositions = int64_t{1} << 31;
constexpr int kMostRanks = 1 << 20;

absl::StatusOr<std::string> ReadModel(const ExplainFlags& flags) {
  constexpr int64_t kMost = 1 << 20;
  absl::StatusOr<std::string> text = ReadFile(flags.model, kMost);
  return text.ok() ? text : AboutFlag(flags.model_flag, text.status());
}

// The number of positions of the model; 0 if its configuration does not give it, and need not.
int64_t PositionsOf(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  for (const char* member : {"max_position_embeddings", "n_positions"}) {
    const auto found = json.find(member);
    if (found != json.end() && found->is_number_integer()) return found->get<int64_t>();
  }
  // The defaults of Hugging Face's classes.
  const std::string type = ModelTypeOf(config).value_or("");
  return type == "bert" ? BertConfig().positions : type == "gpt2" ? Gpt2Config().positions : 0;
}

int64_t SizeOfGroup(const DeviceMesh& mesh, absl::string_view name) {
  const absl::StatusOr<AxisList> axes = mesh.Find(name);
  int64_t size = 1;
  if (axes.ok()) {
    for (const int axis : *axes) size *= mesh.axis_size(axis);
  }
  return size;
}

absl::StatusOr<int64_t> ReadSize(absl::string_view flag, std::optional<int64_t> size,
                                 int64_t most) {
  if (!size) return InvalidArgument({flag, " is required"});
  if (*size >= 1 && *size <= most) return *size;
  return InvalidArgument(
      {flag, ": ", absl::StrCat(*size), " is out of range; take 1 to ", absl::StrCat(most)});
}

absl::Status ReadSizes(const ExplainFlags& flags, const DeviceMesh& mesh, TrainingStep& step) {
  DT_ASSIGN_OR_RETURN(step.batch, ReadSize("--batch", flags.batch, kMostTokens));
  DT_ASSIGN_OR_RETURN(step.sequence, ReadSize("--seq", flags.sequence, kMostPositions));
  if (step.batch > kMostTokens / step.sequence) {
    return InvalidArgument({"--batch: ", absl::StrCat(step.batch), " sequences of ",
                            absl::StrCat(step.sequence), " are more tokens than can be counted (",
                            absl::StrCat(kMostTokens), "); take a smaller --batch or --seq"});
  }
  DT_ASSIGN_OR_RETURN(step.micro_batches,
                      ReadSize("--micro-batches", flags.micro_batches, step.batch));
  if (step.batch % step.micro_batches != 0) {
    return InvalidArgument({"--micro-batches: ", absl::StrCat(step.micro_batches),
                            " do not divide the ", absl::StrCat(step.batch),
                            " sequences of --batch; take a divisor of it"});
  }
  if (mesh.size() <= kMostRanks) return absl::OkStatus();
  return InvalidArgument({"--mesh: ", absl::StrCat(mesh.size()), " ranks are too many; take ",
                          absl::StrCat(kMostRanks), " or fewer"});
}

absl::StatusOr<StepOptimizer> ParseOptimizer(absl::string_view name) {
  if (name == "adamw") return StepOptimizer::kAdamW;
  if (name == "muon") return StepOptimizer::kMuon;
  if (name == "sgd") return StepOptimizer::kSgd;
  if (name == "none") return StepOptimizer::kNone;
  return InvalidArgument({"--optimizer: there is no '", name, "'; take adamw, muon, sgd or none"});
}

absl::StatusOr<DType> ParseFloat(const std::string& name) {
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && IsFloat(*dtype)) return dtype;
  return InvalidArgument(
      {"--dtype: '", name, "' is no type of a model; take f32, f64, bf16 or f16"});
}

// With adapters, if they have a rank.
absl::StatusOr<std::unique_ptr<Module>> ModelFor(const std::string& config,
                                                 const LoraOptions& lora) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Module> model, ModelFromJson(config));
  if (lora.rank != 0) DT_RETURN_IF_ERROR(AddLora(*model, lora));
  return model;
}

// A model whose output is not logits of tokens has no loss of its own.
absl::StatusOr<StepLoss> LossFor(const std::string& config) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
  const bool simple = model->operand_names().size() == 1 && model->result_names().size() == 1;
  return simple ? NextTokenLoss : MeanOfResults;
}

absl::StatusOr<ParallelPlan> ParsePlan(absl::string_view flag, const std::string& text,
                                       const DeviceMesh& mesh, const PresetOptions& options) {
  absl::StatusOr<ParallelPlan> plan = NamedPlan(text, mesh, options);
  return plan.ok() ? plan : AboutFlag(flag, plan.status());
}

// A plan without stages has no use for another schedule than the usual one.
absl::Status CheckSchedule(const TrainingStep& step, absl::string_view plan_flag) {
  const absl::StatusOr<std::string> axis = StageAxisOf(step.plan);
  if (!axis.ok()) return AboutFlag(plan_flag, axis.status());
  if (!axis->empty() || step.schedule == PipelineSchedule::k1F1B) return absl::OkStatus();
  return InvalidArgument(
      {"--schedule: the plan has no stages; give --mesh an axis pp, or the plan "
       "lines of Stage, or leave --schedule out"});
}

ExplainFlags WithUsualSizes(ExplainFlags flags, const DeviceMesh& mesh, const std::string& config) {
  constexpr int64_t kUsual = 4096;
  const int64_t parts = std::clamp<int64_t>(flags.micro_batches, 1, kMostTokens / kMostRanks);
  if (!flags.batch) flags.batch = SizeOfGroup(mesh, "dp") * SizeOfGroup(mesh, "ep") * parts;
  const int64_t positions = PositionsOf(config);
  if (!flags.sequence) flags.sequence = positions > 0 ? std::min(positions, kUsual) : kUsual;
  return flags;
}

absl::StatusOr<ExplainRequest> Parse(const ExplainFlags& flags, bool usual_sizes) {
  ExplainRequest request;
  TrainingStep& step = request.step;
  DT_ASSIGN_OR_RETURN(const std::string config, ReadModel(flags));
  const absl::StatusOr<StepLoss> loss = LossFor(config);
  if (!loss.ok())
    return AboutFlag(absl::StrCat(flags.model_flag, ": ", flags.model), loss.status());
  step.loss = *loss;
  step.model = [config, lora = flags.lora] { return ModelFor(config, lora); };
  if (flags.lora.rank != 0) DT_RETURN_IF_ERROR(AboutFlag("--lora-layers", step.model().status()));
  absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(flags.mesh);
  if (!mesh.ok()) return AboutFlag("--mesh", mesh.status());
  step.mesh = *std::move(mesh);
  DT_RETURN_IF_ERROR(
      ReadSizes(usual_sizes ? WithUsualSizes(flags, step.mesh, config) : flags, step.mesh, step));
  const absl::StatusOr<PipelineSchedule> schedule = ParsePipelineSchedule(flags.schedule);
  if (!schedule.ok()) return AboutFlag("--schedule", schedule.status());
  step.schedule = *schedule;
  DT_ASSIGN_OR_RETURN(step.dtype, ParseFloat(flags.dtype));
  DT_ASSIGN_OR_RETURN(step.optimizer, ParseOptimizer(flags.optimizer));
  DT_ASSIGN_OR_RETURN(step.cost, ReadLinks(flags.links, {step.mesh}));
  step.recompute = flags.recompute;
  step.allow_uneven = flags.allow_uneven;
  DT_ASSIGN_OR_RETURN(PresetOptions options, PresetOptionsFor(config));
  options.context_pattern = flags.pattern;
  options.allow_uneven = flags.allow_uneven;
  request.plan = flags.plan.empty() ? DefaultPreset(step.mesh) : flags.plan;
  request.plan_flag = flags.plan.empty() ? "--mesh" : "--plan";
  DT_ASSIGN_OR_RETURN(step.plan, ParsePlan(request.plan_flag, request.plan, step.mesh, options));
  DT_RETURN_IF_ERROR(CheckSchedule(step, request.plan_flag));
  if (flags.compare.empty()) return request;
  request.other = step;
  DT_ASSIGN_OR_RETURN(request.other->plan,
                      ParsePlan("--compare", flags.compare, step.mesh, options));
  return request;
}

}  // namespace

absl::StatusOr<ExplainRequest> ParseExplain(const ExplainFlags& flags) {
  return Parse(flags, /*usual_sizes=*/false);
}

absl::StatusOr<ExplainRequest> ParseModel(const ExplainFlags& flags) {
  return Parse(flags, /*usual_sizes=*/true);
}

}  // namespace dtensor::cli
