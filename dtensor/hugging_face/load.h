// Weights of Hugging Face's folders into a model that lies on any mesh, by any plan.
//
//   DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
//   model->SkipFirstValues();
//   DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {}));
//   DT_RETURN_IF_ERROR(LoadHuggingFace(*model, "SmolLM2-135M").status());
//
// Each rank reads, of each tensor, the elements that it holds and no others, in pieces of a few
// MiB.
#ifndef DTENSOR_HUGGING_FACE_LOAD_H_
#define DTENSOR_HUGGING_FACE_LOAD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct LoadHuggingFaceOptions {
  // Tensors that the model lacks are passed over: a head that is not wanted, say.
  bool allow_others = false;
};

// Loads every parameter and buffer of the model from the folder's model.safetensors, or the files
// of its index (runtime/io/safetensors/safetensors_folder.h), and returns how many bytes this rank
// has read.
//
// Names are the model's (transformer.h, gpt2.h, bert.h). What has several paths needs one of them:
// a head that is tied to the embedding need not be in the files. Parts of fused projections are
// read where they go. The name of the base model ("model.", "transformer.", "bert.") may be missing
// in the files, or be there alone. What Hugging Face's older files have beside parameters is passed
// over: rotary_emb.inv_freq, attn.bias and attn.masked_bias of GPT-2, position_ids.
//
// Types: floats of f32, f64, bf16 and f16 become those of the parameter; others must be its own. An
// optimizer with master weights is made afterwards, or its next step undoes the load.
//
// Collective over the world; every rank sees the folder. On meta only names and shapes are looked
// at. Errors, the same on all ranks: kInvalidArgument, naming file and tensor, before anything is
// written, for a tensor that the model has and the files lack, one that the model lacks, another
// shape, a type that cannot be converted, and files that are none; kNotFound for a folder without
// weights; kFailedPrecondition for a parameter that has no memory yet, or that BeforeWrite
// refuses, and where a rank's files have other weights than rank 0's; kUnavailable for files that
// are replaced while ranks open them, and, the model then has some of it, for a file that changes
// while it is read. Failures.
absl::StatusOr<int64_t> LoadHuggingFace(Module& model, const std::string& folder,
                                        const LoadHuggingFaceOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_LOAD_H_
