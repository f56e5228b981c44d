// A transformer that trains in milliseconds, and the usual plan for the axes that a mesh has.
#ifndef DTENSOR_PARALLEL_PLANS_TESTING_SMALL_TRANSFORMER_H_
#define DTENSOR_PARALLEL_PLANS_TESTING_SMALL_TRANSFORMER_H_

#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"

namespace dtensor {

inline constexpr int64_t kSmallVocab = 12;

inline TransformerConfig SmallTransformer() {
  TransformerConfig config;
  config.vocab = kSmallVocab;
  config.dim = 16;
  config.layers = 2;
  config.heads = 8;
  config.kv_heads = 4;
  config.hidden = 24;
  config.init_stddev = 0.3;
  return config;
}

// "tp" shards the layers, "dp" the batch, "cp" the sequence in zigzag order; other axes are not
// used.
inline ParallelPlan PlanFor(const DeviceMesh& mesh, bool sequence_parallel) {
  ParallelPlan plan;
  if (mesh.Find("tp").ok()) plan = TensorParallelPlan("tp", sequence_parallel);
  if (mesh.Find("dp").ok()) plan.Add({"", DataParallel("dp")});
  if (mesh.Find("cp").ok()) plan.Add(ContextParallelPlan("cp", "zigzag"));
  return plan;
}

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_TESTING_SMALL_TRANSFORMER_H_
