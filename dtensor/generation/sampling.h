// Which token comes next, by a model's logits.
#ifndef DTENSOR_GENERATION_SAMPLING_H_
#define DTENSOR_GENERATION_SAMPLING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct SamplingOptions {
  double temperature = 0;  // logits are divided by it; 0: the likeliest token, and nothing is drawn
  int64_t top_k = 0;       // of the k likeliest alone, and those that tie with the last; 0: of all
  // Of the fewest likeliest tokens whose probabilities, after top_k, add up to this, at least one,
  // and those that tie with the last.
  double top_p = 1;
  uint64_t seed = 0;
  // Errors: kInvalidArgument, naming the option, for what is below 0, or no number, and a top_p
  // that is not in (0, 1].
  absl::Status Validate() const;
};

// One of the tokens, by its number in `logits`. Among those that top_k and top_p leave, token i
// with the largest logits[i] / temperature + g(i) is taken, g being -log(-log(u)) of a uniform u:
// so each has its probability (Gumbel). u depends on the seed, the row, the position and i alone,
// by Philox:
//
//   key       the seed, low word first
//   counter   (i / 4, 0, position, row)
//   u         the upper 24 bits of word i % 4, and a half, over 2^24
//
// so every mesh, and every division of a batch, draws the same token, where logits do not differ by
// more than rounding does. NaN counts as -inf. Among equals, the first. Requires: valid options,
// and a logit.
int64_t SampleToken(absl::Span<const float> logits, const SamplingOptions& options, uint32_t row,
                    uint32_t position);

// The next token of each row of logits [batch, 1, vocab] (f32, bf16 or f16), the same on all ranks.
// positions[r] is where it will stand: KvCache::lengths(). Where nothing is drawn each rank looks
// at its own logits, and one number a row and rank is gathered; else the logits are. Collective,
// waits. Errors: kInvalidArgument for other shapes, options, positions that are not one for each
// row from 0 to 2^32; kFailedPrecondition on meta; failures.
absl::StatusOr<std::vector<int64_t>> SampleTokens(const DistributedTensor& logits,
                                                  const SamplingOptions& options,
                                                  absl::Span<const int64_t> positions);

}  // namespace dtensor

#endif  // DTENSOR_GENERATION_SAMPLING_H_
