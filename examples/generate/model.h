// A model of a Hugging Face folder, on a mesh.
#ifndef DTENSOR_EXAMPLES_GENERATE_MODEL_H_
#define DTENSOR_EXAMPLES_GENERATE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/examples/generate/tokenizer.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/tensor/context.h"

namespace dtensor::generate {

// What needs no ranks. Errors: kNotFound, kInvalidArgument, naming the file.
struct ModelFiles {
  std::string folder, config, tokens;  // tokens: the text of tokenizer.json
  Tokenizer tokenizer;
  std::vector<int64_t> ends;  // eos_token_id
  int64_t positions = 0;      // max_position_embeddings, n_positions; 0: it says none
  int64_t vocabulary = 0;     // vocab_size; 0: it says none
};
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder);

// The model with its weights, of which each rank has read its own, split by tensor parallelism over
// the mesh's axis tp, batches by dp. Collective. Errors: what plan and weights are refused for.
struct LoadedModel {
  std::unique_ptr<Module> model;
  DeviceMesh mesh;  // on which it lies
};
absl::StatusOr<LoadedModel> LoadModel(Context& context, const ModelFiles& files,
                                      const DeviceMesh& mesh, DType dtype);

// $DTENSOR_SMOLLM2, or where fetch_smollm2 puts it.
std::string DefaultModelFolder();

}  // namespace dtensor::generate

#endif  // DTENSOR_EXAMPLES_GENERATE_MODEL_H_
