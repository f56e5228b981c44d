// Every style, and compositions of them on meshes of one to four axes, train as one rank does:
// losses, each gradient, and weights after five steps of AdamW, in f64. The order of a mesh's axes
// and of a plan's lines changes nothing.
//
// Axes by name: "dp" and "fs" split the batch, and "fs" shards parameters between uses; "cp" splits
// the sequence (zigzag, by ring attention), "tp" the layers.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Sums in another order, through five steps.
constexpr double kTolerance = 1e-9;

struct Options {
  bool sequence_parallel = true, tied = false, recompute = false;
  int64_t level = 3;  // of FullyShard
};

ParallelPlan PlanOn(const DeviceMesh& mesh, const Options& options) {
  ParallelPlan plan;
  const auto has = [&](const char* axis) { return mesh.Find(axis).ok(); };
  if (has("tp")) plan.Add(TensorParallelPlan("tp", options.sequence_parallel));
  if (has("dp")) plan.Add({"", DataParallel("dp")});
  if (has("cp")) plan.Add(ContextParallelPlan("cp", "zigzag"));
  if (!has("fs")) return plan;
  for (const std::string unit : {"model.layers.*", "{model.embed_tokens,lm_head}", ""}) {
    plan.Add({unit, FullyShard("fs", options.level)});
  }
  return plan;
}

TrainingRun RunOn(const std::string& mesh, const Options& options = {}) {
  TrainingRun run;
  run.mesh = mesh;
  run.plan = PlanOn(*DeviceMesh::Parse(mesh), options);
  run.allow_uneven = true;
  run.model.tie_embeddings = options.tied;
  run.batch = 8;
  run.dtype = run.first_values = DType::kF64;
  run.steps = 5;
  run.recompute = options.recompute;
  return run;
}

Trained TrainOrFail(const TrainingRun& run) {
  absl::StatusOr<Trained> trained = Train(run);
  EXPECT_THAT(trained, IsOk()) << run.mesh << "\n" << run.plan->ToString();
  return trained.ok() ? *std::move(trained) : Trained();
}

void ExpectAsOnOneRank(const TrainingRun& run) {
  if (!SuiteHasRanks(DeviceMesh::Parse(run.mesh)->size())) return;
  static auto& known = *new std::map<std::pair<bool, int64_t>, Trained>();
  const auto [it, fresh] = known.try_emplace({run.model.tie_embeddings, run.model.kv_heads});
  const Trained& one = it->second;
  if (fresh) {
    TrainingRun alone = RunOn("none=1");
    alone.model = run.model;
    it->second = TrainOrFail(alone);
  }
  const Trained trained = TrainOrFail(run);
  const std::string what = absl::StrCat(run.mesh, "\n", run.plan->ToString());
  ASSERT_EQ(trained.losses.size(), one.losses.size()) << what;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(trained.losses[i], one.losses[i], kTolerance * one.losses[i]) << what;
  }
  EXPECT_LE(WorstRelativeRms(trained.first_gradients, one.first_gradients), kTolerance) << what;
  EXPECT_LE(WorstRelativeRms(trained.parameters, one.parameters), kTolerance) << what;
  EXPECT_GT(WorstRelativeRms(one.parameters, one.first_values), 0.05);  // it has learned something
}

TEST(Meshes, EachStyleOnWorldsOfOneToEightRanks) {
  for (const std::string axis : {"dp", "fs", "cp", "tp"}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      ExpectAsOnOneRank(RunOn(absl::StrCat(axis, "=", ranks)));
    }
  }
}

TEST(Meshes, TensorParallelismWithoutSequenceParallelism) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    ExpectAsOnOneRank(RunOn(absl::StrCat("tp=", ranks), {.sequence_parallel = false}));
  }
}

TEST(Meshes, EachPairOfStyles) {
  const std::vector<std::string> axes = {"dp", "fs", "cp", "tp"};
  for (const std::string& outer : axes) {
    for (const std::string& inner : axes) {
      if (outer == inner) continue;
      ExpectAsOnOneRank(RunOn(absl::StrCat(outer, "=2,", inner, "=2")));
    }
  }
}

TEST(Meshes, PairsOnEightRanks) {
  for (const std::string mesh : {"dp=2,tp=4", "dp=2,fs=4", "fs=4,tp=2", "cp=4,tp=2", "tp=2,cp=4",
                                 "fs=2,cp=4", "cp=2,dp=4"}) {
    ExpectAsOnOneRank(RunOn(mesh));
  }
}

TEST(Meshes, ThreeStyles) {
  for (const std::string mesh :
       {"dp=2,cp=2,tp=2", "dp=2,fs=2,tp=2", "fs=2,cp=2,tp=2", "tp=2,cp=2,fs=2", "dp=2,fs=2,cp=2"}) {
    ExpectAsOnOneRank(RunOn(mesh));
  }
}

constexpr char kFour[] = "dp=2,fs=2,cp=2,tp=2";

TEST(Meshes, FourStyles) {
  ExpectAsOnOneRank(RunOn(kFour));
  ExpectAsOnOneRank(RunOn(kFour, {.sequence_parallel = false}));
  ExpectAsOnOneRank(RunOn(kFour, {.tied = true}));
  ExpectAsOnOneRank(RunOn(kFour, {.tied = true, .recompute = true}));
  for (const int64_t level : {1, 2}) ExpectAsOnOneRank(RunOn(kFour, {.level = level}));
}

TEST(Meshes, AnyOrderOfTheAxes) {
  std::vector<std::string> axes = absl::StrSplit(kFour, ',');
  std::sort(axes.begin(), axes.end());
  std::mt19937 random(1);
  for (int i = 0; i < 4; ++i) {
    std::shuffle(axes.begin(), axes.end(), random);
    ExpectAsOnOneRank(RunOn(absl::StrJoin(axes, ",")));
  }
}

TEST(Meshes, AnyOrderOfTheLines) {
  const TrainingRun run = RunOn(kFour);
  std::vector<ParallelPlan::Line> lines = run.plan->lines();
  std::mt19937 random(2);
  for (int i = 0; i < 4; ++i) {
    std::shuffle(lines.begin(), lines.end(), random);
    TrainingRun shuffled = run;
    shuffled.plan = ParallelPlan(lines);
    ExpectAsOnOneRank(shuffled);
  }
}

// Key and value weights are replicated over a part of the axis, and sharded between uses.
TEST(Meshes, FewerKeysThanRanks) {
  for (const std::string mesh : {"fs=2,tp=4", "tp=4,fs=2", "fs=2,cp=2,tp=4", "tp=8"}) {
    for (const bool tied : {false, true}) {
      TrainingRun run = RunOn(mesh, {.tied = tied});
      run.model.kv_heads = 2;
      auto parallelism = PlanTensorParallel(run.model, *DeviceMesh::Parse(mesh));
      ASSERT_THAT(parallelism, IsOk());
      run.mesh = parallelism->mesh.ToString();
      for (const ParallelPlan::Line& line : run.plan->lines()) {
        if (line.style.axis() == "fs") parallelism->plan.Add(line);
      }
      run.plan = parallelism->plan;
      ExpectAsOnOneRank(run);
    }
  }
}

// As far from f64 as one rank is, about.
TEST(Meshes, Bf16) {
  const auto run_in = [](DType dtype, const std::string& mesh) {
    TrainingRun run = RunOn(mesh);
    run.dtype = dtype;
    run.first_values = DType::kBF16;
    run.steps = 1;
    return TrainOrFail(run);
  };
  const Trained exact = run_in(DType::kF64, "none=1"), one = run_in(DType::kBF16, "none=1");
  const auto error = [&](const Trained& trained) {
    return WorstRelativeRms(trained.first_gradients, exact.first_gradients);
  };
  EXPECT_GT(error(one), 1e-3);
  EXPECT_LT(error(one), 0.1);
  for (const std::string mesh : {"dp=4", "fs=4", "fs=3", "cp=4", "tp=4", "tp=3", "dp=2,tp=2",
                                 "fs=2,tp=2", "cp=2,tp=2", kFour}) {
    EXPECT_LT(error(run_in(DType::kBF16, mesh)), 2 * error(one)) << mesh;
  }
}

}  // namespace
}  // namespace dtensor
