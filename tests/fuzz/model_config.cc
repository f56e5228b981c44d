// A model's configuration, read as every model reads it, and by ModelFromJson. Each configuration
// that is accepted makes a model, without memory, whose tensors have valid sizes.
#include "dtensor/nn/model_config.h"

#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

template <typename Config>
void TryConfig(absl::string_view input) {
  const absl::StatusOr<Config> config = Config::FromJson(input);
  if (IsRead(config)) Require(config->Validate().ok(), "what is read is valid");
}

}  // namespace

void Try(absl::string_view input) {
  TryConfig<BertConfig>(input);
  TryConfig<Gpt2Config>(input);
  TryConfig<TransformerConfig>(input);
  const absl::StatusOr<std::unique_ptr<Module>> model = ModelFromJson(input);
  if (!IsRead(model)) return;
  (*model)->VisitParameters([](const std::string& path, Parameter& parameter) {
    Require(CheckedNumElements("parameter", parameter.shape).ok(), path);
  });
}

}  // namespace dtensor::fuzz
