// The usual plans for a Transformer (dtensor/nn/transformer.h), by the names of its modules.
#ifndef DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_
#define DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_

#include <string>

#include "dtensor/parallel_plans/parallel_plan.h"

namespace dtensor {

// Where keys and values go, if not as queries over all of the axis: their heads are split on one
// part of it, and replicated on the other.
struct KeyValueAxes {
  std::string split, replicated;  // empty: the whole axis splits them
};

// Megatron's tensor parallelism over `axis`; with `sequence_parallel` activations between blocks
// are split along the sequence: forward, a block then has 2 all-gathers and 2 reduce-scatters, else
// 2 all-reduces. The embedding's rows and the head's classes are split, evenly or not; logits stay
// split (CrossEntropy takes them so).
ParallelPlan TensorParallelPlan(std::string axis, bool sequence_parallel,
                                const KeyValueAxes& key_value = {});

// Splits tokens, and so all activations, along the sequence over `axis` by a pattern of
// context_pattern.h, and pins attention to the pattern's plan. Its lines go with those above, on
// another axis.
ParallelPlan ContextParallelPlan(std::string axis, std::string pattern);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_TRANSFORMER_PLAN_H_
