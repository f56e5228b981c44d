// Adapters of LoRA (nn/lora.h) in the folders of Hugging Face's PEFT: adapter_model.safetensors and
// adapter_config.json.
//
//   DT_ASSIGN_OR_RETURN(const LoraOptions lora, ReadLoraOptions("my-adapter"));
//   DT_RETURN_IF_ERROR(AddLora(*model, lora));
//   DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {}));
//   DT_RETURN_IF_ERROR(LoadHuggingFace(*model, "the-model").status());
//   DT_RETURN_IF_ERROR(LoadAdapter(*model, "my-adapter").status());  // or train a new one
//   ...
//   DT_RETURN_IF_ERROR(SaveAdapter(*model, "my-adapter", {.config = LoraToJson(lora)}));
#ifndef DTENSOR_HUGGING_FACE_ADAPTER_H_
#define DTENSOR_HUGGING_FACE_ADAPTER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/lora.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// What an adapter_config.json says. Errors: kInvalidArgument for text that is no such
// configuration, and for what there is not: another kind of adapter, trained biases, DoRA, ranks or
// scales of single layers, other modules that are saved whole, only some of the layers, and layers
// that are named by a regular expression.
absl::StatusOr<LoraOptions> LoraFromJson(absl::string_view adapter_config_json);
// The same of a folder's file. Errors: also those of reading it, which name it.
absl::StatusOr<LoraOptions> ReadLoraOptions(const std::string& folder);
// An adapter_config.json. `base_model`: the name or folder of the model, for PEFT's AutoModel; "":
// it says none. LoraFromJson(LoraToJson(x)) is x. Requires: names that are UTF-8.
std::string LoraToJson(const LoraOptions& options, absl::string_view base_model = "");

// Loads the adapters' matrices, and nothing else. Returns how many bytes this rank has read. As
// LoadHuggingFace, with the same errors; kInvalidArgument also for an adapter of another rank, or
// of other layers. Without an adapter in the model it is the files' first tensor that is refused.
absl::StatusOr<int64_t> LoadAdapter(Module& model, const std::string& folder);

// Saves the adapters' matrices, and nothing else, as SaveHuggingFace does with a model, with the
// same errors; `config` is the text of adapter_config.json. kInvalidArgument also for a model
// without adapters.
absl::Status SaveAdapter(Module& model, const std::string& folder,
                         const SaveHuggingFaceOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_ADAPTER_H_
