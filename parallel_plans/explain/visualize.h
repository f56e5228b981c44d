// A plan on a model, drawn: module by module, with the layers that are alike folded into one, where
// activations are brought before and after, and who holds what of each parameter.
//
//   layers.0..31.mlp.up_proj x32
//     in      R on tp
//     weight  [11008, 4096] as S(0)
//   layers.0..31.mlp.down_proj x32
//     weight  [4096, 11008] as S(1)
//     out     S(1) on tp
//
// What a plan costs: explain.h.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_VISUALIZE_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_VISUALIZE_H_

#include <string>

#include "absl/status/statusor.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Of a model that a plan was applied to, or that was materialized, on a rank or simulated
// (Simulate): no memory is read. Errors of both: kFailedPrecondition where a parameter has no place
// yet, naming its path and the remedy.
absl::StatusOr<std::string> VisualizePlan(Module& model);
// An SVG document: a row for each module; parameters as squares, coloured by who holds what.
absl::StatusOr<std::string> VisualizePlanSvg(Module& model);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_VISUALIZE_H_
