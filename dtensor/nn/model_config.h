// Models from Hugging Face's configurations, the config.json beside a checkpoint.
//
//   DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(text));
//
// TransformerConfig::FromJson and its kin (transformer.h, gpt2.h, bert.h) read the configuration
// alone; what they read, refuse and pass over is said there. What is missing has the value that
// Hugging Face's class gives it.
#ifndef DTENSOR_NN_MODEL_CONFIG_H_
#define DTENSOR_NN_MODEL_CONFIG_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The model that "model_type" says, without memory:
//
//   bert                    BertModel: ids and token types [batch, sequence] -> hidden states and
//                           the pooled one
//   gpt2                    Gpt2: ids [batch, sequence] -> logits [batch, sequence, vocab]
//   llama, mistral, qwen2,  Transformer: the same
//   qwen3
//
// Errors: kInvalidArgument for text that is no JSON object, a model_type that is missing or
// unknown, listing those that there are, and what FromJson of the model's configuration refuses.
absl::StatusOr<std::unique_ptr<Module>> ModelFromJson(absl::string_view hugging_face_config_json);

// All of these, in this order.
std::vector<std::string> ModelTypes();

// Which of these it is: "gpt2". Errors: as above, of the text and model_type.
absl::StatusOr<std::string> ModelTypeOf(absl::string_view hugging_face_config_json);

}  // namespace dtensor

#endif  // DTENSOR_NN_MODEL_CONFIG_H_
