// Options of which a user sets only the first few, compiled as strictly as a user may (USER_COPTS):
// members that are left out must not cause warnings.
#include "dtensor/attention/attention.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/dtensor.h"
#include "dtensor/generation/generate.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_linear.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tensor/op.h"

int main() {
  const dtensor::AttentionOptions attention = {.scale = 2};
  const dtensor::GenerateOptions generate = {.tokens = 2};
  const dtensor::JoinOptions join = {.rank = 1};
  const dtensor::KvCacheOptions cache = {.capacity = 4};
  const dtensor::OpDef op = {.name = "Double"};
  const dtensor::ParallelLinearOptions linear = {.return_bias = true};
  const dtensor::RedistributeOptions redistribute = {.async = true};
  const dtensor::RedistributionOptions plan = {.in_place = true};
  const dtensor::RopeOptions rope = {.theta = 1e4};
  const dtensor::RunOptions run = {.timeout_seconds = 3};
  const dtensor::SaveHuggingFaceOptions save = {.max_file_bytes = 1};
  const dtensor::TrainingState state = {.step = 1};
  const dtensor::TransformerConfig transformer = {.dim = 8};
  const bool is_said = attention.scale == 2 && generate.tokens == 2 && join.rank == 1 &&
                       cache.capacity == 4 && op.rule == nullptr && linear.return_bias &&
                       redistribute.async && plan.in_place && rope.theta > 1 &&
                       run.timeout_seconds == 3 && save.max_file_bytes == 1 && state.step == 1 &&
                       transformer.dim == 8;
  return is_said ? 0 : 1;
}
