// Loads weights from Hugging Face's folders into a model on any mesh, by any plan.
//
//   DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
//   model->SkipFirstValues();
//   DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {}));
//   DT_RETURN_IF_ERROR(LoadHuggingFace(*model, "SmolLM2-135M").status());
//
// Each rank reads only the elements of each tensor that it holds, in pieces of a few MiB.
#ifndef DTENSOR_HUGGING_FACE_LOAD_H_
#define DTENSOR_HUGGING_FACE_LOAD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct LoadHuggingFaceOptions {
  // If set, tensors in the files that the model lacks are ignored, such as a head that is not
  // wanted.
  bool allow_others = false;
};

// Loads every parameter and buffer of the model, but adapters' (adapter.h), from the folder's
// model.safetensors, or from the files of its index (runtime/io/safetensors/safetensors_folder.h).
// Returns how many bytes this rank has read.
//
// Names are the model's (transformer.h, gpt2.h, bert.h). If a parameter has several paths, one of
// them is enough: a head that is tied to the embedding need not be in the files. Parts of fused
// projections are read directly into their places. The prefix of the base model ("model.",
// "transformer.", "bert.") may be missing in the files, or be only there. What Hugging Face's older
// files contain besides parameters is ignored: rotary_emb.inv_freq, attn.bias and attn.masked_bias
// of GPT-2, position_ids, num_batches_tracked; and so are layers that predict a second token, which
// have an eh_proj.
//
// Types: f32, f64, bf16 and f16 are converted to the parameter's float type, and so are matrices in
// FP8 with a scale for each block of the size that config.json says, as DeepSeek-V3 and Qwen3-FP8
// have them (value = e4m3 * scale, in f32), and experts in MXFP4, as OpenAI's GPT-OSS has them.
// Other types must be the parameter's own. If an optimizer keeps master weights, create it
// afterwards; otherwise its next step undoes the load.
//
// Collective over the world; every rank must see the folder. On meta only names and shapes are
// checked. Errors, the same on all ranks: before anything is written, kInvalidArgument, naming file
// and tensor, for a tensor that the model has and the files lack, one that the model lacks, another
// shape, a type that cannot be converted, FP8 or MXFP4 whose scales or blocks are missing or do not
// fit, and files that are not safetensors; kNotFound for a folder without weights;
// kFailedPrecondition for a parameter that has no memory yet or that BeforeWrite refuses, and if a
// rank's files have other weights than rank 0's; kUnavailable for files that are replaced while
// ranks open them, and for a file that changes while it is read: in that last case the model has
// been partly loaded. Failures.
absl::StatusOr<int64_t> LoadHuggingFace(Module& model, const std::string& folder,
                                        const LoadHuggingFaceOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_LOAD_H_
