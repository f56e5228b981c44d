// How rotary embedding is changed for models that were extended to more positions than they were
// first trained on.
#ifndef DTENSOR_RUNTIME_CORE_ROPE_SCALING_H_
#define DTENSOR_RUNTIME_CORE_ROPE_SCALING_H_

#include <cstdint>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// How frequencies that are divided go over into those that are not.
enum class RopeTransition : uint8_t {
  kByTurns,  // linearly in the number of turns: Hugging Face's rule "llama3"
  // Linearly in the number of the pair of elements, so in the logarithm of turns: "yarn" (Peng et
  // al., "YaRN", 2023), whose transition begins and ends at whole pairs, or, with its member
  // "truncate" false, between them.
  kByWholePairs,
  kByPairs,
};

// The frequencies of a head of d elements are theta^(-2 i / d) for pairs i < d / 2. A frequency
// makes so many turns in `trained` positions; with fewer than `low` it is divided by `factor`, and
// with more than `high` it is unchanged. With trained 0, all are divided: Hugging Face's rule
// "linear". The names there are, with those of this struct in front,
//
//   trained          original_max_position_embeddings
//   low, high        low_freq_factor, high_freq_factor of llama3; beta_slow, beta_fast of yarn
//   amplitude        attention_factor of yarn: what is rotated is multiplied by it
struct RopeScaling {
  double factor = 1;         // above 0; 1: none
  double low = 1, high = 4;  // low < high; by pairs, low > 0 and theta > 1
  double trained = 0;        // 0 or more
  RopeTransition transition = RopeTransition::kByTurns;
  double amplitude = 1;  // above 0
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_ROPE_SCALING_H_
