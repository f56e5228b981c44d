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

// The parts that need no ranks. Errors: kNotFound, kInvalidArgument, naming the file.
struct ModelFiles {
  std::string folder, config, tokens;  // tokens: the text of tokenizer.json
  Tokenizer tokenizer;
  std::vector<int64_t> ends;  // eos_token_id
  int64_t positions = 0;      // max_position_embeddings, n_positions; 0: not given
  int64_t vocabulary = 0;     // vocab_size; 0: not given
};
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& folder);

// The model with its weights; each rank has read its own part. The mesh's axis tp shards the model
// by tensor parallelism, dp shards batches. Collective. Errors: those of the plan and of loading
// the weights.
struct LoadedModel {
  std::unique_ptr<Module> model;
  DeviceMesh mesh;  // the mesh that it lies on
};
absl::StatusOr<LoadedModel> LoadModel(Context& context, const ModelFiles& files,
                                      const DeviceMesh& mesh, DType dtype);

// $DTENSOR_SMOLLM2, or where fetch_smollm2 puts it.
std::string DefaultModelFolder();

}  // namespace dtensor::generate

#endif  // DTENSOR_EXAMPLES_GENERATE_MODEL_H_
