// Which tokens a rank's experts work on, known on the host: products of matrices need their sizes
// before they are launched. For the sources of this folder.
#ifndef DTENSOR_OPS_EXPERT_ROUTING_H_
#define DTENSOR_OPS_EXPERT_ROUTING_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::internal {

// The experts that each of some tokens picks. On meta, which has no ids, each expert is picked as
// often as any other.
struct PickedExperts {
  int64_t choices = 0;       // of each token
  std::vector<int64_t> ids;  // [tokens, choices]; empty on meta
  // On meta: the choices of all tokens of which this rank's experts have their share.
  int64_t spread_over = 0;
};

// The picks, pairs of a token and an expert of this rank, by expert; an expert's are in the order
// of the tokens. Pick p is choice j of token t.
struct ExpertRouting {
  Tensor tokens;   // [picks] i64: t
  Tensor choices;  // [picks] i64: t times the number of choices, plus j
  // Picks [begin[i], begin[i + 1]) are those of the i-th of this rank's experts.
  std::vector<int64_t> begin;
  int64_t picks() const { return begin.back(); }
  int64_t experts() const { return static_cast<int64_t>(begin.size()) - 1; }
};

// `mine`: the experts that this rank has, of `num_experts`. Errors: failures.
absl::StatusOr<ExpertRouting> RouteToExperts(Device& device, const PickedExperts& picked,
                                             const IndexSet& mine, int64_t num_experts);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_EXPERT_ROUTING_H_
