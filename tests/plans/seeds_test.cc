// Facts that the documents behind this library state of tensor and context parallelism, as tests
// (README.md has the table): shards of a worked example, collectives of each layer in both
// directions, and limits of other systems that do not exist here.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/parallel_linear.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/plans/on_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<double> LocalValues(const DistributedTensor& tensor) {
  absl::StatusOr<std::vector<double>> values = ToHost<double>(tensor.local());
  EXPECT_THAT(values, IsOk());
  return *std::move(values);
}

// --- Two ranks, 4 features in and 2 out: w = [[1 2 3 4], [5 6 7 8]], b = [10, 20], x = [1 1 2 2].
// x w^T = [17, 41].

ParallelLinearOptions Example() {
  ParallelLinearOptions options;
  options.master_weight = {1, 2, 3, 4, 5, 6, 7, 8};
  options.master_bias = {10, 20};
  options.dtype = DType::kF64;
  return options;
}

TensorOr ExampleX(Context& context, const DeviceMesh& mesh) {
  const std::vector<double> x = {1, 1, 2, 2};
  return Distribute<double>(context, mesh, {Replicate()}, {1, 4}, absl::MakeConstSpan(x));
}

TEST(ColumnParallelLinear, ARankHasRowsOfTheWeightAndTheirFeatures) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto layer,
                        ColumnParallelLinear::Create(context, mesh, 4, 2, true, false, Example()));
    const bool first = context.rank() == 0;
    EXPECT_THAT(LocalValues(layer->weight()->tensor),
                ElementsAreArray(first ? std::vector<double>{1, 2, 3, 4}
                                       : std::vector<double>{5, 6, 7, 8}));
    EXPECT_THAT(LocalValues(layer->bias()->tensor), ElementsAre(first ? 10 : 20));
    DT_ASSIGN_OR_RETURN(const auto y, (*layer)(ExampleX(context, mesh)));
    EXPECT_THAT(LocalValues(y), ElementsAre(first ? 27 : 61));
    EXPECT_THAT(ToGlobal<double>(y.Detach()), IsOkAndHolds(ElementsAre(27, 61)));
    return absl::OkStatus();
  }));
}

TEST(RowParallelLinear, ARankHasColumnsOfTheWeightAndAllOfTheBias) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto layer,
                        RowParallelLinear::Create(context, mesh, 4, 2, true, false, Example()));
    const bool first = context.rank() == 0;
    EXPECT_THAT(LocalValues(layer->weight()->tensor),
                ElementsAreArray(first ? std::vector<double>{1, 2, 5, 6}
                                       : std::vector<double>{3, 4, 7, 8}));
    EXPECT_THAT(LocalValues(layer->bias()->tensor), ElementsAre(10, 20));
    DT_ASSIGN_OR_RETURN(const auto y, (*layer)(ExampleX(context, mesh)));
    EXPECT_THAT(LocalValues(y), ElementsAre(27, 61));  // on both ranks: not 37, 81
    return absl::OkStatus();
  }));
}

TEST(RowParallelLinear, StartsWithABiasOfZero) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto layer,
                        RowParallelLinear::Create(context, mesh, 4, 2, true, false,
                                                  {.seed = 1, .dtype = DType::kF64}));
    EXPECT_THAT(LocalValues(layer->bias()->tensor), ElementsAre(0, 0));
    return absl::OkStatus();
  }));
}

// What one rank multiplies is a sum over its half of the features.
TEST(RowParallelLinear, WithoutItsEdgeTheProductIsASumOverRanks) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const TensorOr w = Distribute<double>(context, mesh, {Shard(1)}, {2, 4},
                                          absl::MakeConstSpan(Example().master_weight));
    DT_ASSIGN_OR_RETURN(const auto x, ExampleX(context, mesh));
    DT_ASSIGN_OR_RETURN(const auto y, Linear(x.Redistribute({Shard(1)}), w));
    EXPECT_TRUE(y.layout().is_partial());
    EXPECT_THAT(LocalValues(y), context.rank() == 0 ? ElementsAre(3, 11) : ElementsAre(14, 30));
    return absl::OkStatus();
  }));
}

TEST(ColumnParallelLinear, GathersItsResultForwardAndAddsUpTheOperandsGradientBackward) {
  for (const bool gather : {false, true}) {
    for (const bool wanted : {false, true}) {
      DT_EXPECT_OK(OnWorld(2, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto layer, ColumnParallelLinear::Create(
                                                  context, mesh, 4, 2, true, gather, Example()));
        DT_ASSIGN_OR_RETURN(DistributedTensor x, ExampleX(context, mesh));
        DT_RETURN_IF_ERROR(x.set_requires_grad(wanted));
        context.communicator().ResetTraffic();
        DT_ASSIGN_OR_RETURN(const auto y, (*layer)(x));
        std::map<std::string, int64_t> forward, backward;
        if (gather) forward["all-gather"] = 1;
        EXPECT_EQ(TakeCollectives(context), forward);
        const TensorOr dy = Full(context, y.layout(), {1, 2}, DType::kF64, 1);
        DT_RETURN_IF_ERROR(Backward(y, {.gradient = *dy}));
        DT_RETURN_IF_ERROR(ReduceGradients({x, layer->weight()->tensor, layer->bias()->tensor}));
        if (wanted) backward["all-reduce"] = 1;
        EXPECT_EQ(TakeCollectives(context), backward);
        if (wanted) {
          EXPECT_THAT(LocalValues(x.grad()), ElementsAre(6, 8, 10, 12));
        }
        EXPECT_THAT(LocalValues(layer->weight()->tensor.grad()), ElementsAre(1, 1, 2, 2));
        EXPECT_THAT(LocalValues(layer->bias()->tensor.grad()), ElementsAre(1));
        return absl::OkStatus();
      }));
    }
  }
}

TEST(RowParallelLinear, AddsUpItsResultForwardAndMovesNothingBackward) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto layer,
                        RowParallelLinear::Create(context, mesh, 4, 2, true, true, Example()));
    DT_ASSIGN_OR_RETURN(const auto whole, ExampleX(context, mesh));
    DT_ASSIGN_OR_RETURN(DistributedTensor x, whole.Redistribute({Shard(1)}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto y, (*layer)(x));
    EXPECT_THAT(TakeCollectives(context), ElementsAre(Pair("all-reduce", 1)));
    const TensorOr dy = Full(context, y.layout(), {1, 2}, DType::kF64, 1);
    DT_RETURN_IF_ERROR(Backward(y, {.gradient = *dy}));
    DT_RETURN_IF_ERROR(ReduceGradients({x, layer->weight()->tensor, layer->bias()->tensor}));
    EXPECT_THAT(TakeCollectives(context), IsEmpty());
    const bool first = context.rank() == 0;
    EXPECT_THAT(LocalValues(x.grad()), first ? ElementsAre(6, 8) : ElementsAre(10, 12));
    EXPECT_THAT(LocalValues(layer->weight()->tensor.grad()),
                first ? ElementsAre(1, 1, 1, 1) : ElementsAre(2, 2, 2, 2));
    // Of every rank, and once: not 2.
    EXPECT_THAT(LocalValues(layer->bias()->tensor.grad()), ElementsAre(1, 1));
    return absl::OkStatus();
  }));
}

TEST(ColumnParallelLinear, HalvesThe11008FeaturesOfAnMlpOf4096) {
  DT_EXPECT_OK(Simulate(0, 2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(const auto up,
                        ColumnParallelLinear::Create(context, mesh, 4096, 11008, false, false));
    DT_ASSIGN_OR_RETURN(const auto down,
                        RowParallelLinear::Create(context, mesh, 11008, 4096, false, true));
    EXPECT_EQ(up->weight()->tensor.local().shape(), Dims({5504, 4096}));
    EXPECT_EQ(down->weight()->tensor.local().shape(), Dims({4096, 5504}));
    DT_ASSIGN_OR_RETURN(const auto hidden,
                        (*up)(Full(context, mesh, {Replicate()}, {64, 4096}, DType::kF32, 1)));
    EXPECT_EQ(hidden.local().shape(), Dims({64, 5504}));
    return absl::OkStatus();
  }));
}

// --- Whole models.

// The table's rows are split, and the sum of a token's one row and zeros is scattered: the sequence
// keeps its length.
TEST(VocabParallel, ScattersTheEmbeddingToTheSequence) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    EmbeddingLayer table(5, 2, 0.5);  // 3 and 2 rows
    table.SetDType(DType::kF64);
    table.weight()->init = ParameterInit::Values({0, 1, 10, 11, 20, 21, 30, 31, 40, 41});
    DT_RETURN_IF_ERROR(
        ParallelPlan({{"", VocabParallel("tp", Shard(1))}}).Apply(table, context, mesh, {}));
    const std::vector<int32_t> ids = {4, 0, 3, 4};
    const TensorOr tokens =
        Distribute<int32_t>(context, mesh, {Replicate()}, {1, 4}, absl::MakeConstSpan(ids));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto x, table(tokens));
    EXPECT_THAT(TakeCollectives(context), ElementsAre(Pair("reduce-scatter", 1)));
    EXPECT_EQ(x.shape(), Dims({1, 4, 2}));
    EXPECT_EQ(x.local().shape(), Dims({1, 2, 2}));
    EXPECT_THAT(LocalValues(x),
                context.rank() == 0 ? ElementsAre(40, 41, 0, 1) : ElementsAre(30, 31, 40, 41));
    return absl::OkStatus();
  }));
}

// Tensor parallelism does not split the batch, and data parallelism does.
TEST(TensorParallel, IsNotDataParallelism) {
  DT_EXPECT_OK(Simulate(0, 4, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2,tp=2");
    for (const bool sequence_parallel : {false, true}) {
      Transformer model(SmallTransformer());
      DT_RETURN_IF_ERROR(PlanFor(mesh, sequence_parallel).Apply(model, context, mesh, {}));
      const TensorOr ids = Full(context, Layout::Replicated(mesh, 2), {4, 8}, DType::kI32, 0);
      DT_ASSIGN_OR_RETURN(const auto logits, model(ids));
      EXPECT_EQ(logits.local().shape(), Dims({4 / 2, 8, kSmallVocab / 2}));
    }
    return absl::OkStatus();
  }));
}

TEST(TensorParallel, ALossMayHaveItsLogitsWhole) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    LinearLayer head(4, 6, 0.5);
    DT_RETURN_IF_ERROR(
        ParallelPlan({{"", Colwise("tp", Replicate())}}).Apply(head, context, mesh, {}));
    const TensorOr x = Full(context, mesh, {Replicate()}, {2, 3, 4}, DType::kF32, 1);
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto logits, head(x));
    EXPECT_THAT(TakeCollectives(context), ElementsAre(Pair("all-gather", 1)));
    EXPECT_EQ(logits.local().shape(), Dims({2, 3, 6}));
    return absl::OkStatus();
  }));
}

// Elsewhere recomputation and full sharding have to be applied after the tensor parallel plan.
TEST(TensorParallel, GoesWithRecomputationAndFullShardingInAnyOrder) {
  const ParallelPlan shard({{"model.layers.*", FullyShard("dp")}, {"", FullyShard("dp")}});
  std::vector<double> losses;
  std::vector<TrafficTable> tables;
  for (const bool shard_first : {false, true}) {
    for (const bool recompute_first : {false, true}) {
      ParallelPlan plan = shard_first ? shard : TensorParallelPlan("tp", true);
      plan.Add(shard_first ? TensorParallelPlan("tp", true) : shard);
      DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
        const DeviceMesh mesh = *DeviceMesh::Parse("dp=2,tp=2");
        Transformer model(SmallTransformer());
        const auto recompute = [&] {
          model.VisitModules([](const std::string& path, Module& module) {
            module.set_recomputes(path == "model.layers.0" || path == "model.layers.1");
          });
        };
        if (recompute_first) recompute();
        DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 3}));
        if (!recompute_first) recompute();
        const TensorOr ids = Full(context, Layout::Replicated(mesh, 2), {4, 8}, DType::kI32, 1);
        DT_ASSIGN_OR_RETURN(const auto loss, Mean(CrossEntropy(model(ids), ids), {0, 1}));
        DT_RETURN_IF_ERROR(Backward(loss));
        const TrafficTable traffic = context.communicator().traffic();
        DT_ASSIGN_OR_RETURN(const double value, Item(loss.Detach()));
        if (context.rank() != 0) return absl::OkStatus();
        losses.push_back(value);
        tables.push_back(traffic);
        return absl::OkStatus();
      }));
    }
  }
  ASSERT_EQ(losses.size(), 4);
  for (size_t i = 1; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i], losses[0]) << i;
    EXPECT_EQ(tables[i], tables[0]) << i;
  }
}

// --- Context parallelism: a rank has N / cp positions, and keys and values of the others come by.

TEST(ContextParallel, ARankHasOneChunkOfTheSequenceAndKeysAndValuesGoRound) {
  constexpr int64_t kSequence = 64, kDim = 64;
  TransformerConfig config;
  config.dim = kDim;
  config.heads = config.kv_heads = 4;
  int64_t saved_by_one = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    DT_EXPECT_OK(Simulate(ranks - 1, ranks, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse(absl::StrCat("cp=", ranks));
      DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> attention,
                          ContextParallel::Wrap(std::make_unique<GroupedQueryAttention>(config),
                                                "cp", "ring", /*causal=*/true));
      DT_RETURN_IF_ERROR(attention->Materialize(context, mesh, 1));
      const TensorOr x = Full(context, mesh, {Shard(1)}, {1, kSequence, kDim}, DType::kF32, 1);
      const int64_t before = context.device().memory().live_bytes;
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const auto y, (*attention)(x));
      const int64_t chunk = kSequence / ranks;
      EXPECT_EQ(y.local().shape(), Dims({1, chunk, kDim}));
      // Rank r's are positions r chunk to (r + 1) chunk - 1, in order.
      const int64_t first = context.rank() * chunk;
      EXPECT_EQ(ToString({DimRegion(y.layout(), 1, kSequence, mesh.Coordinate(context.rank()))}),
                absl::StrCat("{", first, "..", first + chunk - 1, "}"));
      int64_t calls = 0, bytes = 0;
      for (const auto& [key, traffic] : context.communicator().traffic()) {
        EXPECT_EQ(key.second, CollectiveKind::kPermute);
        calls += traffic.calls;
        bytes += traffic.bytes;
      }
      EXPECT_EQ(calls, ranks - 1);
      EXPECT_EQ(bytes, 2 * (ranks - 1) * chunk * kDim * 4);
      const int64_t saved = context.device().memory().live_bytes - before;
      if (ranks == 1) saved_by_one = saved;
      EXPECT_NEAR(static_cast<double>(saved), static_cast<double>(saved_by_one) / ranks,
                  static_cast<double>(saved_by_one) / ranks / 50);
      return absl::OkStatus();
    }));
  }
}

}  // namespace
}  // namespace dtensor
