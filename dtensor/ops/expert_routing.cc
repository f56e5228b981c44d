#include "dtensor/ops/expert_routing.h"

#include <numeric>

#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::internal {
namespace {

// A counting sort of the choices of this rank's experts, by expert. Sets `begin` (ExpertRouting).
std::vector<int64_t> SortByExpert(absl::Span<const int64_t> ids, const IndexSet& mine,
                                  int64_t num_experts, std::vector<int64_t>& begin) {
  std::vector<int64_t> position(num_experts, -1);  // of each expert here; -1: another rank has it
  for (int64_t i = 0; i < mine.size(); ++i) position[mine.At(i)] = i;
  begin.assign(mine.size() + 1, 0);
  for (const int64_t id : ids) {
    if (position[id] >= 0) ++begin[position[id] + 1];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int64_t> next(begin.begin(), begin.end() - 1), sorted(begin.back());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (const int64_t at = position[ids[i]]; at >= 0) {
      sorted[next[at]++] = static_cast<int64_t>(i);
    }
  }
  return sorted;
}

// On meta: as many picks as a rank has on average, rounded up.
absl::StatusOr<ExpertRouting> EvenRouting(Device& device, int64_t choices, int64_t mine,
                                          int64_t num_experts) {
  ExpertRouting routing;
  routing.begin.assign(mine + 1, 0);
  const int64_t picks = mine == 0 ? 0 : (choices * mine + num_experts - 1) / num_experts;
  for (int64_t i = 1; i <= mine; ++i) routing.begin[i] = picks * i / mine;
  DT_ASSIGN_OR_RETURN(routing.tokens, Tensor::Empty(device, DType::kI64, {picks}));
  DT_ASSIGN_OR_RETURN(routing.choices, Tensor::Empty(device, DType::kI64, {picks}));
  return routing;
}

}  // namespace

absl::StatusOr<ExpertRouting> RouteToExperts(Device& device, const PickedExperts& picked,
                                             const IndexSet& mine, int64_t num_experts) {
  if (device.is_meta()) {
    return EvenRouting(device, picked.spread_over, mine.size(), num_experts);
  }
  ExpertRouting routing;
  const std::vector<int64_t> choices = SortByExpert(picked.ids, mine, num_experts, routing.begin);
  std::vector<int64_t> tokens = choices;
  for (int64_t& token : tokens) token /= picked.choices;
  const int64_t shape[] = {routing.picks()};
  DT_ASSIGN_OR_RETURN(routing.tokens, FromHost<int64_t>(device, tokens, shape));
  DT_ASSIGN_OR_RETURN(routing.choices, FromHost<int64_t>(device, choices, shape));
  return routing;
}

}  // namespace dtensor::internal
