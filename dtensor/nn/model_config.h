// Models from Hugging Face's config.json, the file beside a checkpoint.
//
//   DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(text));
//
// TransformerConfig::FromJson and its siblings (transformer.h, gpt2.h, bert.h) read only the
// configuration; see there for what they read, refuse and ignore. A missing member has the default
// of Hugging Face's class.
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

// Creates the model that "model_type" names, without memory:
//
//   bert                      BertModel: ids and token types [batch, sequence] -> hidden states
//                             and the pooled one
//   gpt2                      Gpt2: ids [batch, sequence] -> logits [batch, sequence, vocab]
//   deepseek_v3, gemma,       Transformer: the same
//   gemma3_text, glm4_moe,
//   gpt_oss, llama, mistral,
//   mixtral, qwen2, qwen2_moe,
//   qwen3, qwen3_moe
//
// (Models of images, resnet.h and vit.h, are called otherwise and made by themselves.) Errors:
// kInvalidArgument for text that is not a JSON object, for a model_type that is missing or unknown,
// listing the known ones, and for what FromJson of the model's configuration refuses.
absl::StatusOr<std::unique_ptr<Module>> ModelFromJson(absl::string_view hugging_face_config_json);

// All these model types, in this order.
std::vector<std::string> ModelTypes();

// The model type of this configuration, such as "gpt2". Errors: as above, for the text and
// model_type.
absl::StatusOr<std::string> ModelTypeOf(absl::string_view hugging_face_config_json);

}  // namespace dtensor

#endif  // DTENSOR_NN_MODEL_CONFIG_H_
