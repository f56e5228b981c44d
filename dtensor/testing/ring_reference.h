// What the reference attention is asked for a ring's problem: all positions, at once.
#ifndef DTENSOR_TESTING_RING_REFERENCE_H_
#define DTENSOR_TESTING_RING_REFERENCE_H_

#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/testing/reference_attention.h"

namespace dtensor {

// Without dropout.
inline ReferenceProblem ReferenceOf(const RingProblem& problem, long double scale) {
  return {.batch = problem.batch,
          .heads = problem.heads,
          .kv_heads = problem.kv_heads,
          .head_dim = problem.head_dim,
          .q_positions = IndexSet::Interval(0, problem.q_length),
          .k_positions = IndexSet::Interval(0, problem.kv_length),
          .mask = problem.mask,
          .scale = scale,
          .dropout = {}};
}

}  // namespace dtensor

#endif  // DTENSOR_TESTING_RING_REFERENCE_H_
