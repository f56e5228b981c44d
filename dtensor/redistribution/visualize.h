// Draws a redistribution: which ranks hold what before, how much each rank receives from each other
// rank in each round, and which ranks hold what afterwards.
//
//   [tp] [] -> [] [tp], [4, 4] f32: all-to-all(tp) 16 B
//   before:    all-to-all(tp), bytes:    after:
//   0 0 0 0    to \ from  0  1           0 0 1 1
//   0 0 0 0            0  . 16           0 0 1 1
//   1 1 1 1            1 16  .           0 0 1 1
//   1 1 1 1                              0 0 1 1
//
// (As text, these are printed one below the other.)
#ifndef DTENSOR_REDISTRIBUTION_VISUALIZE_H_
#define DTENSOR_REDISTRIBUTION_VISUALIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// "reduce-scatter(dp)"; for a round between two meshes "exchange(across)".
std::string RoundText(const RedistributionPlan& plan, int round);

// The bytes that each rank receives from each other rank in a round: [receiver][sender], both by
// their index in plan.Ranks(); 0 on the diagonal.
std::vector<std::vector<int64_t>> BytesBetweenRanks(const RedistributionPlan& plan, int round);

// Errors of both: kInvalidArgument for more than 64 ranks, and for what picture.h and CheckRegions
// refuse.
absl::StatusOr<std::string> VisualizeRedistribution(const RedistributionPlan& plan,
                                                    bool colour = false);
// An SVG document: the darker a square, the more bytes.
absl::StatusOr<std::string> VisualizeRedistributionSvg(const RedistributionPlan& plan);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_VISUALIZE_H_
