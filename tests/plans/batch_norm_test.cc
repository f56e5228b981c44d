// BatchNormLayer: its values, gradients and running statistics, which are those of one rank however
// the batch, the positions or the features are sharded, and whatever is recomputed.
#include "dtensor/nn/batch_norm.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/nn/conv.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/plans/train_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kFeatures = 4;
const ConvOptions kSame = {.before = {1}, .after = {1}};

// Convolutions with a norm behind each, and one more: of what a norm returns, the sum of squares
// hardly has a gradient, and of a bias before a norm nothing has one.
class Network : public Module {
 public:
  Network()
      : up_({kFeatures, 6, {3, 3}}, 0.3, kSame, /*has_bias=*/false),
        up_norm_(6, {.momentum = 0.3}),
        down_({6, kFeatures, {1, 1}}, 0.3, {}, /*has_bias=*/false),
        down_norm_(kFeatures),
        last_({kFeatures, 3, {3, 1}}, 0.3, {.before = {1, 0}, .after = {1, 0}}) {
    AddChild("up", &up_);
    AddChild("up_norm", &up_norm_);
    AddChild("down", &down_);
    AddChild("down_norm", &down_norm_);
    AddChild("last", &last_);
    VisitParameters([](const std::string&, Parameter& parameter) {
      if (parameter.trained && parameter.shape.size() == 1) {
        parameter.init = ParameterInit::Normal(1);
      }
    });
  }

 private:
  TensorOr Forward(const DistributedTensor& x) override {
    return last_(Gelu(down_norm_(down_(Relu(up_norm_(up_(x)))))));
  }
  ConvLayer up_;
  BatchNormLayer up_norm_;
  ConvLayer down_;
  BatchNormLayer down_norm_;
  ConvLayer last_;
};

ModuleRun NetworkRun() {
  return {.make = [] { return std::make_unique<Network>(); }, .x = {5, 12, 5, kFeatures}};
}

constexpr char kBatch[] = "{\"\", DataParallel(\"dp\")}\n";
constexpr char kStrips[] = "{\"\", Edges(\"cp\", in S(1))}\n";
constexpr char kFeaturesSharded[] = R"(
{"up", Colwise("tp")}
{"up_norm", Replicated("tp")}
{"down", Rowwise("tp")}
)";
constexpr char kShards[] = "{\"*\", FullyShard(\"fsdp\")}\n{\"\", FullyShard(\"fsdp\")}";

TEST(BatchNorm, IsTheSameOnEveryMesh) {
  ModuleRun run = NetworkRun();
  const std::vector<MeshAndPlan> places = {
      {"dp=2", kBatch},
      {"dp=3", kBatch},
      {"cp=2", kStrips},
      {"cp=4", kStrips},
      {"tp=2", kFeaturesSharded},
      {"cp=2,tp=2", std::string(kFeaturesSharded) + kStrips},
      {"dp=2,tp=2", std::string(kFeaturesSharded) + kBatch},
      {"fsdp=2", kShards},
      {"fsdp=3", kShards},
  };
  ExpectAsOnOneRank(run, places);
  run.recomputed = {"", "up_norm", "down_norm"};  // twice, one inside the other
  ExpectAsOnOneRank(run, places);
}

constexpr char kStages[] =
    "{\"{up,up_norm}\", Stage(\"pp\", 0)}\n"
    "{\"{down,down_norm,last}\", Stage(\"pp\", 1)}\n";

TEST(BatchNorm, MayBeInStages) {
  ExpectAsOnOneRank(
      NetworkRun(),
      {{"pp=2", kStages}, {"pp=2,dp=2", std::string(kStages) + "{\"*\", DataParallel(\"dp\")}"}});
}

using Values = ModuleOutcome::Values;

// Gradients and statistics after three micro-batches.
absl::StatusOr<std::pair<Values, Values>> ByPipeline(Context& context, const MeshAndPlan& place,
                                                     PipelineSchedule schedule, bool recomputes) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(place.plan));
  Network model;
  model.SetDType(DType::kF64);
  if (recomputes) {
    model.VisitModules(
        [](const std::string& path, Module& module) { module.set_recomputes(!path.empty()); });
  }
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 7}));
  const auto loss = [&](int64_t i) -> TensorOr {
    const Layout whole = Layout::Replicated(mesh, 4);
    const TensorOr y =
        model(RandomNormal(context, whole, {2, 4, 5, kFeatures},
                           {.seed = static_cast<uint64_t>(i), .dtype = DType::kF64}));
    return Sum(Mul(y, y), {0, 1, 2, 3});
  };
  DT_ASSIGN_OR_RETURN(const std::string axis, StageAxisOf(plan));
  DT_RETURN_IF_ERROR(RunPipeline(context, mesh, axis, 3, loss, {.schedule = schedule}).status());
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_ASSIGN_OR_RETURN(Values gradients, ValuesOn(mesh, model, /*gradients=*/true));
  DT_ASSIGN_OR_RETURN(Values values, ValuesOn(mesh, model, /*gradients=*/false));
  return std::make_pair(std::move(gradients), std::move(values));
}

// Each micro-batch has statistics of its own, and moves the running ones once, in order.
TEST(BatchNorm, TakesMicroBatchesInOrder) {
  std::pair<Values, Values> want;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(want, ByPipeline(context, {}, PipelineSchedule::k1F1B, false));
    return absl::OkStatus();
  }));
  ASSERT_EQ(want.second.size(), 12);
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    for (const bool recomputes : {false, true}) {
      DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto got,
                            ByPipeline(context, {"pp=2", kStages}, schedule, recomputes));
        for (const auto& [path, values] : want.first) {
          EXPECT_LE(RelativeRms(got.first.at(path), values), 1e-12) << path;
        }
        for (const auto& [path, values] : want.second) {
          EXPECT_LE(RelativeRms(got.second.at(path), values), 1e-12) << path;
        }
        return absl::OkStatus();
      }));
    }
  }
}

// What moves: two sums of the features in forward, over the ranks that share the batch.
TEST(BatchNorm, ReducesTwoNumbersOfEachFeature) {
  const ModuleRun run = {.make = [] { return std::make_unique<BatchNormLayer>(kFeatures); },
                         .x = {6, 7, kFeatures}};
  const auto forward = TrainModuleOn(run, {"dp=2", "{\"\", DataParallel(\"dp\")}"}).forward;
  ASSERT_EQ(forward.size(), 1);
  EXPECT_EQ(forward.begin()->first.second, CollectiveKind::kAllReduce);
  EXPECT_EQ(forward.begin()->second.calls, 2);
}

// And two in backward, before gradients of weight and bias are reduced.
TEST(BatchNorm, ReducesTwoNumbersOfEachFeatureInBackward) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    BatchNormLayer norm(kFeatures);
    DT_RETURN_IF_ERROR(norm.Materialize(context, mesh, 1));
    DT_ASSIGN_OR_RETURN(DistributedTensor x,
                        RandomNormal(context, mesh, {Shard(0)}, {6, 7, kFeatures}, {.seed = 1}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    const TensorOr factors = RandomNormal(context, mesh, {Shard(0)}, x.shape(), {.seed = 2});
    const TensorOr loss = Sum(Mul(norm(x), factors), {0, 1, 2});
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Backward(loss));
    const TrafficTable& backward = context.communicator().traffic();
    EXPECT_EQ(backward.size(), 1);
    EXPECT_EQ(backward.begin()->first.second, CollectiveKind::kAllReduce);
    EXPECT_EQ(backward.begin()->second.calls, 2);
    return absl::OkStatus();
  }));
}

// One feature after the other, as the formulas have it.
struct Wanted {
  std::vector<double> y, mean, variance;  // biased
};
Wanted ByFormula(const std::vector<double>& x, double eps) {
  const size_t n = x.size() / kFeatures;
  Wanted wanted = {std::vector<double>(x.size()), {}, {}};
  for (size_t c = 0; c < kFeatures; ++c) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) sum += x[i * kFeatures + c];
    const double mean = sum / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) squares += std::pow(x[i * kFeatures + c] - mean, 2);
    const double variance = squares / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      const size_t at = i * kFeatures + c;
      wanted.y[at] = (x[at] - mean) / std::sqrt(variance + eps);
    }
    wanted.mean.push_back(mean);
    wanted.variance.push_back(variance);
  }
  return wanted;
}

absl::StatusOr<std::vector<double>> ValuesOf(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(x.Detach(), DType::kF64));
  return ToGlobal<double>(wide);
}

// In bf16, too, statistics are f32: far from 0 a sum of squares in bf16 would be none.
TEST(BatchNorm, IsWhatItsFormulaSays) {
  const struct {
    DType dtype;
    double tolerance, of_statistics;
  } types[] = {{DType::kF64, 1e-13, 1e-13}, {DType::kF32, 2e-5, 2e-6}, {DType::kBF16, 4e-3, 2e-6}};
  for (const auto& type : types) {
    SCOPED_TRACE(ToString(type.dtype));
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
      BatchNormLayer norm(kFeatures, {.eps = 1e-3, .momentum = 0.25});
      norm.SetDType(type.dtype);
      DT_RETURN_IF_ERROR(norm.Materialize(context, mesh, 1));
      const TensorOr noise =
          RandomNormal(context, mesh, {Shard(0)}, {7, 9, kFeatures}, {.seed = 3});
      DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                          Cast(AddScalar(Scale(noise, 0.5), 3), type.dtype));
      DT_ASSIGN_OR_RETURN(const std::vector<double> values, ValuesOf(x));
      const Wanted wanted = ByFormula(values, 1e-3);
      std::vector<double> mean(kFeatures, 0), variance(kFeatures, 1);
      const double n = 7 * 9;
      for (int call = 0; call < 2; ++call) {
        DT_ASSIGN_OR_RETURN(const DistributedTensor y, norm(x));
        EXPECT_EQ(y.dtype(), type.dtype);
        EXPECT_EQ(y.layout(), x.layout());
        DT_ASSIGN_OR_RETURN(const std::vector<double> got, ValuesOf(y));
        EXPECT_LE(RelativeRms(got, wanted.y), type.tolerance);
        for (size_t c = 0; c < kFeatures; ++c) {
          mean[c] += 0.25 * (wanted.mean[c] - mean[c]);
          variance[c] += 0.25 * (wanted.variance[c] * n / (n - 1) - variance[c]);
        }
      }
      DT_ASSIGN_OR_RETURN(const auto running_mean, ValuesOf(norm.running_mean()->tensor));
      DT_ASSIGN_OR_RETURN(const auto running_var, ValuesOf(norm.running_var()->tensor));
      EXPECT_LE(RelativeRms(running_mean, mean), type.of_statistics);
      EXPECT_LE(RelativeRms(running_var, variance), type.of_statistics);

      norm.SetTraining(false);
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const DistributedTensor y, norm(x));
      EXPECT_TRUE(context.communicator().traffic().empty()) << "something moves in evaluation";
      DT_ASSIGN_OR_RETURN(const std::vector<double> got, ValuesOf(y));
      std::vector<double> evaluated = values;
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t c = i % kFeatures;
        evaluated[i] = (values[i] - mean[c]) / std::sqrt(variance[c] + 1e-3);
      }
      EXPECT_LE(RelativeRms(got, evaluated), type.tolerance);
      DT_ASSIGN_OR_RETURN(const auto still, ValuesOf(norm.running_mean()->tensor));
      EXPECT_EQ(still, running_mean);
      return absl::OkStatus();
    }));
  }
}

TEST(BatchNorm, RefusesWhatHasNoStatistics) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=1");
    BatchNormLayer norm(kFeatures);
    DT_RETURN_IF_ERROR(norm.Materialize(context, mesh, 1));
    const auto of = [&](const Dims& shape) {
      const Layout whole = Layout::Replicated(mesh, static_cast<int>(shape.size()));
      return norm(RandomNormal(context, whole, shape, {})).status();
    };
    EXPECT_THAT(of({1, kFeatures}), Refuses(HasSubstr("1 elements of each feature")));
    EXPECT_THAT(of({0, 2, kFeatures}), Refuses(HasSubstr("0 elements of each feature")));
    EXPECT_THAT(of({3, kFeatures + 1}), Refuses(HasSubstr("give floats [batch, ..., 4]")));
    EXPECT_THAT(of({kFeatures}), Refuses(HasSubstr("features last")));
    const auto before = *ToGlobal<float>(norm.running_var()->tensor.Detach());
    EXPECT_EQ(before, std::vector<float>(kFeatures, 1)) << "a refused call moved it";
    norm.SetTraining(false);
    DT_EXPECT_OK(of({1, kFeatures}));
    DT_EXPECT_OK(of({0, kFeatures}));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
