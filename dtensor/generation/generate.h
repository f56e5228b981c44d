// Generate: a model goes on with texts, token by token.
//
//   DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(model, {.batch = 2, .capacity = 512}));
//   DT_ASSIGN_OR_RETURN(auto texts,
//                       Generate(*cache, context, mesh, {{1, 2, 3}, {4}}, {.tokens = 100}));
#ifndef DTENSOR_GENERATION_GENERATE_H_
#define DTENSOR_GENERATION_GENERATE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/generation/sampling.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

struct GenerateOptions {
  int64_t tokens = 100;  // of each row, at most
  SamplingOptions sampling = {};
  // A row ends with the first of these: the end of a text, of an answer. It is part of the result.
  std::vector<int64_t> stop = {};
  // Called for each token as it is known, on every rank; row by row within a step. False ends all.
  std::function<bool(int64_t row, int64_t token)> on_token = {};
};

// Adds each prompt to its row of the cache, as many as the cache has rows, one token at least each,
// and then the tokens that follow, until all rows have ended: these are returned. The last token is
// not in the cache. With options.tokens of 0 nothing is added. The model lies on `mesh`. Rows that
// have ended, and those of shorter prompts, cost what the others do. Collective; every rank passes
// the same, and on_token answers the same on all: its answer is not asked of the others. Errors:
// kInvalidArgument for options, prompts, and tokens that do not fit into the cache, before anything
// runs, ids among them that the model has no word for (KvCache::num_ids); those of KvCache::Append
// and SampleTokens.
absl::StatusOr<std::vector<std::vector<int64_t>>> Generate(
    KvCache& cache, Context& context, const DeviceMesh& mesh,
    absl::Span<const std::vector<int64_t>> prompts, const GenerateOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_GENERATION_GENERATE_H_
