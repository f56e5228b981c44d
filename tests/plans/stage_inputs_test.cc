// What modules of a pipeline are called with. The input of the first one may come in any layout of
// the whole mesh that is the same in all stages: the ranks of the first stage move it among
// themselves, while others have other work. Activations go from each stage to the next one.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

constexpr char kStages[] = R"({"0", Stage("pp", 0)}
{"1", Stage("pp", 1)}
)";

struct Case {
  std::string mesh, plan;  // beside the stages
  Placements x;
};

const Case kCases[] = {
    {"pp=2,tp=2", "{\"0\", Colwise(\"tp\")}\n{\"1\", Rowwise(\"tp\")}", {Replicate(), Shard(1)}},
    {"pp=2,dp=2",
     "{\"\", DataParallel(\"dp\")}\n{\"0\", Replicated(\"dp\")}",
     {Replicate(), Replicate()}},
    {"pp=2,cp=2",
     "{\"\", Edges(\"cp\", in S(1))}\n{\"0\", Edges(\"cp\", in S(1,zigzag))}",
     {Replicate(), Replicate()}},
};

// Gradients by schedule; without one, those of one Backward of the sum of all losses.
absl::StatusOr<Values> Train(Context& context, const Case& c, int64_t micro_batches,
                             std::optional<PipelineSchedule> schedule) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(kStages + c.plan));
  Sequential model;
  model.Append(std::make_unique<LinearLayer>(4, 4, 0.5));
  model.Append(std::make_unique<LinearLayer>(4, 4, 0.5));
  model.SetDType(DType::kF64);
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
  const auto loss = [&](int64_t i) -> TensorOr {
    const TensorOr x = RandomNormal(context, mesh, c.x, {2, 4, 4},
                                    {.seed = static_cast<uint64_t>(i), .dtype = DType::kF64});
    const TensorOr y = model(x);
    return Sum(Mul(y, y), {0, 1, 2});
  };
  if (schedule) {
    DT_RETURN_IF_ERROR(
        RunPipeline(context, mesh, "pp", micro_batches, loss, {.schedule = *schedule}).status());
  } else {
    TensorOr sum = loss(0);
    for (int64_t i = 1; i < micro_batches; ++i) sum = Add(sum, loss(i));
    DT_RETURN_IF_ERROR(Backward(sum));
  }
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  Values gradients;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    const DistributedTensor& gradient = parameter.tensor.grad();
    const TensorOr whole = gradient.Redistribute(Layout::Replicated(mesh, gradient.ndim()));
    const auto values = whole.ok() ? ToGlobal<double>(*whole) : whole.status();
    status.Update(values.status());
    if (values.ok()) gradients[path] = *values;
  });
  DT_RETURN_IF_ERROR(status);
  return gradients;
}

TEST(StageInputs, MoveInTheFirstStageAlone) {
  for (const Case& c : kCases) {
    for (const int64_t micro_batches : {1, 2, 3}) {
      SCOPED_TRACE(c.mesh + " " + std::to_string(micro_batches));
      DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const Values want, Train(context, c, micro_batches, std::nullopt));
        EXPECT_EQ(want.size(), 2u);
        for (const PipelineSchedule schedule :
             {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
          DT_ASSIGN_OR_RETURN(const Values got, Train(context, c, micro_batches, schedule));
          for (const auto& [path, values] : want) {
            EXPECT_LE(RelativeRms(got.at(path), values), 1e-13) << path;
          }
        }
        return absl::OkStatus();
      }));
    }
  }
}

// One stage has all of it.
TEST(StageInputs, MayBeShardedOverAnAxisOfOneStage) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("pp=1,tp=2"));
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse("{\"\", Stage(\"pp\", 0)}"));
    LinearLayer model(4, 4, 0.5);
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
    const auto loss = [&](int64_t) -> TensorOr {
      return Sum(model(RandomNormal(context, mesh, {Shard(0), Replicate()}, {2, 4}, {})), {0, 1});
    };
    return RunPipeline(context, mesh, "pp", 3, loss).status();
  }));
}

// Each stage would have to send its part of the input. All ranks refuse it alike, and may go on.
TEST(StageInputs, AreNotInPartsOfTheStages) {
  const Placements parts[] = {{Shard(0), Replicate()}, {Shard(1), Shard(1)}};
  for (const Placements& x : parts) {
    for (const int64_t micro_batches : {1, 3}) {
      DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
        Case c = {"pp=2,tp=2", "", x};
        for (const PipelineSchedule schedule :
             {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
          EXPECT_THAT(Train(context, c, micro_batches, schedule).status(),
                      Refuses(HasSubstr("in parts on pp, the axis of the pipeline's stages")));
        }
        DT_RETURN_IF_ERROR(Train(context, c, micro_batches, std::nullopt).status());
        c.x = {Replicate(), Shard(1)};
        return Train(context, c, micro_batches, PipelineSchedule::k1F1B).status();
      }));
    }
  }
}

// Linear layers on these stages.
absl::Status TrainOn(Context& context, const std::vector<int>& stages, int64_t micro_batches,
                     PipelineSchedule schedule) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("pp=3"));
  Sequential model;
  ParallelPlan plan;
  for (const int stage : stages) {
    plan.Add({absl::StrCat(model.size()), Stage("pp", stage)});
    model.Append(std::make_unique<LinearLayer>(4, 4, 0.5));
  }
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
  const auto loss = [&](int64_t) -> TensorOr {
    return Sum(model(RandomNormal(context, Layout::Replicated(mesh, 2), {2, 4}, {})), {0, 1});
  };
  return RunPipeline(context, mesh, "pp", micro_batches, loss, {.schedule = schedule}).status();
}

// All ranks refuse others alike, and may go on.
TEST(StageInputs, AreOfTheStageBefore) {
  struct Wrong {
    std::vector<int> stages;
    std::string text;
  };
  const Wrong wrongs[] = {{{0, 2}, "is on stage 0 of pp, and the module on stage 2"},
                          {{2, 1, 0}, "is on stage 2 of pp, and the module on stage 1"},
                          {{0, 1, 1, 0}, "is on stage 1 of pp, and the module on stage 0"}};
  for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    for (const int64_t n : {1, 2, 5}) {
      DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
        for (const Wrong& wrong : wrongs) {
          EXPECT_THAT(TrainOn(context, wrong.stages, n, schedule), Refuses(HasSubstr(wrong.text)));
        }
        for (const std::vector<int>& right :
             std::vector<std::vector<int>>{{0, 0, 1, 2}, {0, 1}, {1, 2}, {2}}) {
          DT_RETURN_IF_ERROR(TrainOn(context, right, n, schedule));
        }
        return absl::OkStatus();
      }));
    }
  }
}

}  // namespace
}  // namespace dtensor
