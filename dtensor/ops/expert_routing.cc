#include "dtensor/ops/expert_routing.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/index_error.h"

namespace dtensor::internal {
namespace {

// The values of integers of either type.
absl::StatusOr<std::vector<int64_t>> IdsOnHost(const Tensor& ids) {
  if (ids.dtype() == DType::kI64) return ToHost<int64_t>(ids);
  DT_ASSIGN_OR_RETURN(const std::vector<int32_t> narrow, ToHost<int32_t>(ids));
  return std::vector<int64_t>(narrow.begin(), narrow.end());
}

// The local position of each expert, -1: another rank has it.
std::vector<int64_t> PositionsOf(const IndexSet& mine, int64_t num_experts) {
  std::vector<int64_t> positions(num_experts, -1);
  for (int64_t i = 0; i < mine.size(); ++i) positions[mine.At(i)] = i;
  return positions;
}

absl::Status CheckIds(absl::Span<const int64_t> chosen, int64_t num_experts) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] >= 0 && chosen[i] < num_experts) continue;
    return ToStatus(
        IndexError{"ExpertMlp: expert", chosen[i], static_cast<int64_t>(i), num_experts});
  }
  return absl::OkStatus();
}

// A counting sort: the indices of those that choose an expert with a position, by position. Sets
// `begin` (ExpertRouting).
std::vector<int64_t> SortByExpert(absl::Span<const int64_t> chosen,
                                  absl::Span<const int64_t> position, int64_t experts,
                                  std::vector<int64_t>& begin) {
  begin.assign(experts + 1, 0);
  for (const int64_t id : chosen) {
    if (position[id] >= 0) ++begin[position[id] + 1];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int64_t> next(begin.begin(), begin.end() - 1), sorted(begin.back());
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (const int64_t at = position[chosen[i]]; at >= 0) {
      sorted[next[at]++] = static_cast<int64_t>(i);
    }
  }
  return sorted;
}

// On meta: as many picks as a rank has on average, rounded up.
std::vector<int64_t> EvenPicks(int64_t choices, int64_t mine, int64_t num_experts) {
  std::vector<int64_t> begin(mine + 1, 0);
  const int64_t picks = mine == 0 ? 0 : (choices * mine + num_experts - 1) / num_experts;
  for (int64_t i = 1; i <= mine; ++i) begin[i] = picks * i / mine;
  return begin;
}

}  // namespace

absl::StatusOr<ExpertRouting> RouteToExperts(Device& device, const Tensor& ids,
                                             const IndexSet& mine, int64_t num_experts) {
  ExpertRouting routing;
  std::vector<int64_t> choices;
  if (device.is_meta()) {
    routing.begin = EvenPicks(ids.numel(), mine.size(), num_experts);
    choices.resize(routing.picks());
  } else {
    DT_ASSIGN_OR_RETURN(const std::vector<int64_t> chosen, IdsOnHost(ids));
    DT_RETURN_IF_ERROR(CheckIds(chosen, num_experts));
    choices = SortByExpert(chosen, PositionsOf(mine, num_experts), mine.size(), routing.begin);
  }
  std::vector<int64_t> tokens = choices;
  for (int64_t& token : tokens) token /= ids.shape().back();
  const int64_t shape[] = {routing.picks()};
  DT_ASSIGN_OR_RETURN(routing.tokens, FromHost<int64_t>(device, tokens, shape));
  DT_ASSIGN_OR_RETURN(routing.choices, FromHost<int64_t>(device, choices, shape));
  return routing;
}

}  // namespace dtensor::internal
