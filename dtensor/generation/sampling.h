// Chooses the next token from a model's logits.
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
  int64_t top_k = 0;       // draw from the k likeliest and those that tie with the last; 0: all
  // Draws only from the smallest set of likeliest tokens whose probabilities, after top_k, add up
  // to this; at least one, and also those that tie with the last of the set.
  double top_p = 1;
  uint64_t seed = 0;
  // Errors: kInvalidArgument, naming the option, for a negative value or NaN, and a top_p that is
  // not in (0, 1].
  absl::Status Validate() const;
};

// Returns one of the tokens, by its index in `logits`. Among the tokens that top_k and top_p leave,
// it is the token i with the largest logits[i] / temperature + g(i), where g is -log(-log(u)) of a
// uniform u; so each token is drawn with its probability (Gumbel). u depends only on the seed, the
// row, the position and i, by Philox:
//
//   key       the seed, low word first
//   counter   (i / 4, 0, position, row)
//   u         the upper 24 bits of word i % 4, and a half, over 2^24
//
// so every mesh, and every division of a batch over ranks, draws the same token, as long as logits
// differ by no more than rounding. NaN counts as -inf. Of equal values, the first token is taken.
// Requires: valid options, and at least one logit.
int64_t SampleToken(absl::Span<const float> logits, const SamplingOptions& options, uint32_t row,
                    uint32_t position);

// The next token of each row of logits [batch, 1, vocab] (f32, bf16 or f16), the same on all ranks.
// positions[r] is the position that the token will have: KvCache::lengths(). If nothing is drawn,
// each rank examines its own logits, and one number per row and rank is gathered; otherwise the
// logits are gathered. Collective; blocks. Errors: kInvalidArgument for other shapes or options,
// and for positions that are not one per row from 0 to 2^32; kFailedPrecondition on meta; failures.
absl::StatusOr<std::vector<int64_t>> SampleTokens(const DistributedTensor& logits,
                                                  const SamplingOptions& options,
                                                  absl::Span<const int64_t> positions);

}  // namespace dtensor

#endif  // DTENSOR_GENERATION_SAMPLING_H_
