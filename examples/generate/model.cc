#include "dtensor/examples/generate/model.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "nlohmann/json.hpp"

namespace dtensor::generate {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTextBytes = int64_t{100} << 20;

absl::Status OfFile(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("'", path, "': ", status.message()));
}

// The default model was not fetched yet: says how to get it.
absl::Status WithRemedy(const std::string& folder, const absl::Status& status) {
  if (!absl::IsNotFound(status) || folder != DefaultModelFolder()) return status;
  return absl::NotFoundError(absl::StrCat(status.message(), "; examples/generate/fetch_smollm2 ",
                                          "makes this folder; or name another"));
}

// Reads one number or a list of numbers.
std::vector<int64_t> IdsAt(const json& config, const char* name) {
  std::vector<int64_t> ids;
  const auto found = config.find(name);
  if (found == config.end()) return ids;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace

absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder) {
  ModelFiles files{.folder = folder, .tokenizer = {}};
  const std::string config = absl::StrCat(folder, "/config.json");
  absl::StatusOr<std::string> read = ReadFile(config, kMaxTextBytes);
  if (!read.ok()) return WithRemedy(folder, read.status());
  files.config = *std::move(read);
  DT_RETURN_IF_ERROR(OfFile(config, ModelTypeOf(files.config).status()));
  const std::string tokens = absl::StrCat(folder, "/tokenizer.json");
  DT_ASSIGN_OR_RETURN(files.tokens, ReadFile(tokens, kMaxTextBytes));
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Parse(files.tokens);
  if (!tokenizer.ok()) return OfFile(tokens, tokenizer.status());
  files.tokenizer = *std::move(tokenizer);
  const json parsed = json::parse(files.config, nullptr, /*allow_exceptions=*/false);
  files.ends = IdsAt(parsed, "eos_token_id");
  for (const char* const name : {"max_position_embeddings", "n_positions"}) {
    const std::vector<int64_t> positions = IdsAt(parsed, name);
    if (!positions.empty() && positions[0] > 0) files.positions = positions[0];
  }
  const std::vector<int64_t> vocabulary = IdsAt(parsed, "vocab_size");
  if (!vocabulary.empty()) files.vocabulary = vocabulary[0];
  return files;
}

absl::StatusOr<LoadedModel> LoadModel(Context& context, const ModelFiles& files,
                                      const DeviceMesh& mesh, DType dtype) {
  LoadedModel out;
  DT_ASSIGN_OR_RETURN(out.model, ModelFromJson(files.config));
  TensorParallelOptions options;
  options.sequence_parallel = false;  // a step has one token
  DT_ASSIGN_OR_RETURN(const TensorParallelism planned,
                      PlanTensorParallel(files.config, mesh, options));
  out.mesh = planned.mesh;
  out.model->SetDType(dtype);
  out.model->SkipFirstValues();
  out.model->SetTraining(false);
  DT_RETURN_IF_ERROR(planned.plan.Apply(*out.model, context, out.mesh, {.allow_uneven = true}));
  DT_RETURN_IF_ERROR(LoadHuggingFace(*out.model, files.folder).status());
  return out;
}

std::string DefaultModelFolder() {
  for (const auto& [variable, rest] :
       {std::pair("DTENSOR_SMOLLM2", ""), std::pair("XDG_CACHE_HOME", "/dtensor/smollm2"),
        std::pair("HOME", "/.cache/dtensor/smollm2")}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return absl::StrCat(value, rest);
  }
  return "smollm2";
}

}  // namespace dtensor::generate
