// Generate: continues texts with a model, token by token.
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
  int64_t tokens = 100;  // per row, at most
  SamplingOptions sampling = {};
  // A row ends with the first of these tokens, such as the end of a text or of an answer. It is
  // part of the result.
  std::vector<int64_t> stop = {};
  // Called on every rank for each token as soon as it is known; row by row within a step. If it
  // returns false, generation ends for all rows.
  std::function<bool(int64_t row, int64_t token)> on_token = {};
};

// Appends each prompt to its row of the cache, and then the tokens that follow, until all rows have
// ended. Returns the latter. There must be a prompt of at least one token for each row of the
// cache. The last token of a row is not in the cache. If options.tokens is 0, nothing is added. The
// model must lie on `mesh`; if it is cut into stages, its logits, which are on the last stage's
// part of the mesh, are brought to all of it. Rows that have ended, and rows with shorter prompts,
// cost as much as the others. Collective: every rank must pass the same arguments, and on_token
// must return the same on all ranks, since its result is not exchanged. Errors: before anything
// runs, kInvalidArgument for options, prompts, tokens that do not fit into the cache, and ids that
// the model does not have (KvCache::num_ids); those of KvCache::Append and SampleTokens.
absl::StatusOr<std::vector<std::vector<int64_t>>> Generate(
    KvCache& cache, Context& context, const DeviceMesh& mesh,
    absl::Span<const std::vector<int64_t>> prompts, const GenerateOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_GENERATION_GENERATE_H_
