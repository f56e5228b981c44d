#include "dtensor/generation/generate.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {
namespace {

absl::Status Check(const KvCache& cache, absl::Span<const std::vector<int64_t>> prompts,
                   const GenerateOptions& options) {
  DT_RETURN_IF_ERROR(options.sampling.Validate());
  if (options.tokens < 0 || prompts.size() != cache.lengths().size()) {
    return InvalidArgument({"Generate: ", absl::StrCat(options.tokens), " tokens of ",
                            absl::StrCat(prompts.size()), " prompts, and the cache has ",
                            absl::StrCat(cache.lengths().size()), " rows; give a prompt for each"});
  }
  const int64_t end = cache.num_ids() > 0 ? cache.num_ids() : std::numeric_limits<int64_t>::max();
  for (size_t r = 0; r < prompts.size(); ++r) {
    for (const int64_t id : prompts[r]) {
      if (id >= 0 && id < end) continue;
      return InvalidArgument({"Generate: prompt ", absl::StrCat(r), " has the id ",
                              absl::StrCat(id), ", and the model has words for [0, ",
                              absl::StrCat(end), ")"});
    }
    const int64_t size = static_cast<int64_t>(prompts[r].size());
    // The last token is not stored. If no tokens are generated, the prompt must fit all the same.
    const int64_t room = cache.capacity() - cache.lengths()[r] - size;
    if (size > 0 && std::max<int64_t>(options.tokens, 1) <= room + 1) continue;
    return InvalidArgument(
        {"Generate: prompt ", absl::StrCat(r), " has ", absl::StrCat(size), " tokens, and ",
         absl::StrCat(options.tokens),
         " more are to follow; a prompt has one at least, and the cache room for ",
         absl::StrCat(cache.capacity()), " a row"});
  }
  return absl::OkStatus();
}

// The ids of one call of Append. The first counts[r] of row r are real; the others are 0.
struct Step {
  int64_t length = 0;
  std::vector<int64_t> ids, counts;
};

Step StepOf(absl::Span<const std::vector<int64_t>> rows) {
  Step step;
  for (const auto& row : rows) {
    step.counts.push_back(static_cast<int64_t>(row.size()));
    step.length = std::max(step.length, step.counts.back());
  }
  for (const auto& row : rows) {
    step.ids.insert(step.ids.end(), row.begin(), row.end());
    step.ids.resize(step.ids.size() + step.length - row.size());
  }
  return step;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int64_t>>> Generate(
    KvCache& cache, Context& context, const DeviceMesh& mesh,
    absl::Span<const std::vector<int64_t>> prompts, const GenerateOptions& options) {
  DT_RETURN_IF_ERROR(Check(cache, prompts, options));
  const int64_t batch = static_cast<int64_t>(prompts.size());
  std::vector<std::vector<int64_t>> texts(batch), next(prompts.begin(), prompts.end());
  for (int64_t n = 0; n < options.tokens; ++n) {
    const Step step = StepOf(next);
    if (step.length == 0) break;  // all have ended
    DT_ASSIGN_OR_RETURN(
        const DistributedTensor ids,
        Distribute<int64_t>(context, Layout::Replicated(mesh, 2), {batch, step.length}, step.ids));
    DT_ASSIGN_OR_RETURN(DistributedTensor logits, cache.Append(ids, step.counts));
    if (logits.mesh() != mesh) {  // of a pipeline's last stage; all ranks choose the tokens
      DT_ASSIGN_OR_RETURN(const Layout everywhere, logits.layout().OnMesh(mesh));
      DT_ASSIGN_OR_RETURN(logits, logits.Redistribute(everywhere));
    }
    DT_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                        SampleTokens(logits, options.sampling, cache.lengths()));
    for (int64_t r = 0; r < batch; ++r) {
      if (next[r].empty()) continue;
      texts[r].push_back(tokens[r]);
      const bool ends = absl::c_linear_search(options.stop, tokens[r]);
      next[r] = ends ? std::vector<int64_t>() : std::vector<int64_t>{tokens[r]};
      if (options.on_token && !options.on_token(r, tokens[r])) return texts;
    }
  }
  return texts;
}

}  // namespace dtensor
