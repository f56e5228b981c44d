#include "dtensor/ops/dim_runs.h"

#include <utility>

#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::internal {

std::vector<DimRun> RunsOf(const IndexSet& held) {
  std::vector<DimRun> runs;
  int64_t position = 0;
  for (const IndexRun& run : held.runs()) {
    for (int64_t i = 0; i < run.count; ++i, position += run.length) {
      runs.push_back({position, run.length, run.begin + i * run.stride});
    }
  }
  return runs;
}

absl::StatusOr<LayoutChoice> InFewRuns(const LayoutChoiceRequest& request, int dim, int64_t unit) {
  constexpr int64_t kFew = 8;
  const Layout& layout = request.assignment.operands[0];
  const std::vector<int> first(layout.mesh().num_axes(), 0);  // others may have twice as many runs
  const IndexSet held = DimRegion(layout, dim, request.operands[0]->shape[dim], first);
  int64_t count = 0;
  for (const IndexRun& run : held.runs()) count += run.count;
  if (count <= kFew) return LayoutChoice();
  LayoutFactor whole;
  for (const int axis : AxesOf(layout.dim(dim))) whole.splits.push_back({axis, false});
  DimLayout contiguous = {whole};
  if (unit > 1) contiguous.push_back({unit, {}});
  LayoutChoice choice;
  DT_ASSIGN_OR_RETURN(Layout chosen, layout.WithDim(dim, contiguous));
  choice.operands.push_back(std::move(chosen));
  return choice;
}

}  // namespace dtensor::internal
