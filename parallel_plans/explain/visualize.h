// Draws a plan on a model, module by module, with layers that are alike folded into one: where
// activations are brought before and after the module, and which rank holds what of each parameter.
//
//   layers.0..31.mlp.up_proj x32
//     in      R on tp
//     weight  [11008, 4096] as S(0)
//   layers.0..31.mlp.down_proj x32
//     weight  [4096, 11008] as S(1)
//     out     S(1) on tp
//
// For what a plan costs, see explain.h.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_VISUALIZE_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_VISUALIZE_H_

#include <string>

#include "absl/status/statusor.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Requires that a plan was applied to the model, or that it was materialized, on a rank or
// simulated (Simulate). No memory is read. Errors of both: kFailedPrecondition if a parameter has
// no layout yet, naming its path and the remedy.
absl::StatusOr<std::string> VisualizePlan(Module& model);
// An SVG document: one row per module; parameters are squares, coloured by which rank holds what.
absl::StatusOr<std::string> VisualizePlanSvg(Module& model);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_VISUALIZE_H_
