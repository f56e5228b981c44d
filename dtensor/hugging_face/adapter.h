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

// Returns what an adapter_config.json says; no layers if it names none. Errors: kInvalidArgument
// for text that is no such configuration, and for what there is not: another kind of adapter,
// trained biases, DoRA, ranks or scales of single layers, other modules that are saved whole, only
// some of the layers, layers that are named by a regular expression, and adapters that were made
// together with other weights than the model's (PiSSA, OLoRA and their like).
absl::StatusOr<LoraOptions> LoraFromJson(absl::string_view adapter_config_json);
// Returns the same of a folder's file. Errors: also those of reading it, which name it.
absl::StatusOr<LoraOptions> ReadLoraOptions(const std::string& folder);
// Returns the text of an adapter_config.json. `base_model`: the name or folder of the model, for
// PEFT's AutoModel; "": it says none. LoraFromJson(LoraToJson(x)) is x. Requires: names that are
// UTF-8, and options that AddLora takes, of a rank of at most 2^27.
std::string LoraToJson(const LoraOptions& options, absl::string_view base_model = "");

// Loads the adapters' matrices, and nothing else. Returns how many bytes this rank has read. Their
// scale stays that of the model's LoraOptions: take these from ReadLoraOptions. Otherwise as
// LoadHuggingFace, with the same errors; kInvalidArgument also for an adapter of another rank, or
// of other layers. If the model has no adapters, the first tensor of the files is refused.
absl::StatusOr<int64_t> LoadAdapter(Module& model, const std::string& folder);

// Saves the adapters' matrices, and nothing else, as SaveHuggingFace does with a model, but always
// in one file, since PEFT reads no other. `config` is the text of adapter_config.json (LoraToJson).
// Do not save a merged model into the same folder: Hugging Face's loader would add the adapter once
// more. Errors: those of SaveHuggingFace; kInvalidArgument also without a config, which would leave
// an earlier one beside the matrices, and for a model without adapters.
absl::Status SaveAdapter(Module& model, const std::string& folder,
                         const SaveHuggingFaceOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_ADAPTER_H_
