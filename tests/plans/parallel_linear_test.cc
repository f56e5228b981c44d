// ColumnParallelLinear and RowParallelLinear: shapes, values, gradients and collectives on worlds
// of 1, 2, 3 and 4 ranks, and mistakes known from other systems: a bias that is added by every
// rank, a weight split on the wrong dimension, gradients on one rank only.
#include "dtensor/parallel_plans/parallel_linear.h"

#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/plans/on_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int64_t kIn = 12, kOut = 24, kRows = 5;

std::vector<double> Values(int64_t count, int seed) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>((i * 7 + seed) % 9) - 4);
  return values;
}

ParallelLinearOptions Master(int64_t in, int64_t out) {
  ParallelLinearOptions options;
  options.master_weight = Values(in * out, 1);
  options.master_bias = Values(out, 2);
  options.dtype = DType::kF64;
  return options;
}

// y = x w^T + b, and the gradients of sum(y * y) / 2: dy = y.
struct Dense {
  std::vector<double> y, dx, dw, db;
};
Dense Reference(int64_t rows, int64_t in, int64_t out) {
  const std::vector<double> x = Values(rows * in, 3), w = Values(in * out, 1), b = Values(out, 2);
  Dense dense{std::vector<double>(rows * out), std::vector<double>(rows * in),
              std::vector<double>(out * in), std::vector<double>(out)};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = b[o];
      for (int64_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      dense.y[r * out + o] = sum;
      dense.db[o] += sum;
      for (int64_t i = 0; i < in; ++i) {
        dense.dx[r * in + i] += sum * w[o * in + i];
        dense.dw[o * in + i] += sum * x[r * in + i];
      }
    }
  }
  return dense;
}

absl::Status ExpectValues(const DistributedTensor& tensor, const std::vector<double>& values) {
  DT_ASSIGN_OR_RETURN(const std::vector<double> all, ToGlobal<double>(tensor));
  EXPECT_EQ(all, values) << tensor.ToString();
  return absl::OkStatus();
}

// Small whole numbers: the same bits on every mesh.
absl::Status CheckLayer(Context& context, LinearLayer& layer, const Layout& x_layout, int64_t in,
                        int64_t out) {
  DT_ASSIGN_OR_RETURN(auto x, Distribute<double>(context, x_layout, {kRows, in},
                                                 absl::MakeConstSpan(Values(kRows * in, 3))));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  DT_ASSIGN_OR_RETURN(const auto y, layer(x));
  const Dense dense = Reference(kRows, in, out);
  DT_RETURN_IF_ERROR(ExpectValues(y.Detach(), dense.y));
  DT_RETURN_IF_ERROR(Backward(Scale(Sum(Mul(y, y), {0, 1}), 0.5)));
  const std::vector<DistributedTensor> leaves = {x, layer.weight()->tensor, layer.bias()->tensor};
  DT_RETURN_IF_ERROR(ReduceGradients(leaves));
  DT_RETURN_IF_ERROR(ExpectValues(leaves[0].grad(), dense.dx));
  DT_RETURN_IF_ERROR(ExpectValues(leaves[1].grad(), dense.dw));
  DT_RETURN_IF_ERROR(ExpectValues(leaves[2].grad(), dense.db));
  for (const DistributedTensor& leaf : leaves) {  // a gradient on every rank, where the leaf is
    EXPECT_EQ(leaf.grad().layout(), leaf.layout());
  }
  return absl::OkStatus();
}

TEST(ColumnParallelLinear, HasTheShapesOfItsTable) {
  for (const int ranks : {1, 2, 4}) {
    DT_EXPECT_OK(OnWorld(ranks, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto layer,
                          ColumnParallelLinear::Create(context, mesh, kIn, kOut, true, false));
      EXPECT_EQ(layer->weight()->tensor.local().shape(), Dims({kOut / ranks, kIn}));
      EXPECT_EQ(layer->bias()->tensor.local().shape(), Dims({kOut / ranks}));
      DT_ASSIGN_OR_RETURN(
          const auto y, (*layer)(Full(context, mesh, {Replicate()}, {kRows, kIn}, DType::kF32, 1)));
      EXPECT_EQ(y.local().shape(), Dims({kRows, kOut / ranks}));
      EXPECT_EQ(y.shape(), Dims({kRows, kOut}));
      return absl::OkStatus();
    }));
  }
}

TEST(RowParallelLinear, HasTheShapesOfItsTable) {
  for (const int ranks : {1, 2, 4}) {
    DT_EXPECT_OK(OnWorld(ranks, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto layer,
                          RowParallelLinear::Create(context, mesh, kIn, kOut, true, true));
      EXPECT_EQ(layer->weight()->tensor.local().shape(), Dims({kOut, kIn / ranks}));
      EXPECT_EQ(layer->bias()->tensor.local().shape(), Dims({kOut}));
      DT_ASSIGN_OR_RETURN(const auto y,
                          (*layer)(Full(context, mesh, {Shard(1)}, {kRows, kIn}, DType::kF32, 1)));
      EXPECT_EQ(y.local().shape(), Dims({kRows, kOut}));
      return absl::OkStatus();
    }));
  }
}

TEST(ColumnParallelLinear, IsTheDenseLayer) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool gather : {false, true}) {
      DT_EXPECT_OK(OnWorld(ranks, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto layer,
                            ColumnParallelLinear::Create(context, mesh, kIn, kOut, true, gather,
                                                         Master(kIn, kOut)));
        return CheckLayer(context, *layer, Layout::Replicated(mesh, 2), kIn, kOut);
      }));
    }
  }
}

TEST(RowParallelLinear, IsTheDenseLayer) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool parallel : {false, true}) {
      DT_EXPECT_OK(OnWorld(ranks, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
        DT_ASSIGN_OR_RETURN(
            const auto layer,
            RowParallelLinear::Create(context, mesh, kIn, kOut, true, parallel, Master(kIn, kOut)));
        DT_ASSIGN_OR_RETURN(const Layout split,
                            Layout::Replicated(mesh, 2).WithAxes({0}, Shard(1)));
        return CheckLayer(context, *layer, parallel ? split : Layout::Replicated(mesh, 2), kIn,
                          kOut);
      }));
    }
  }
}

TEST(ParallelLinear, IsTheDenseLayerWhereSizesDoNotDivide) {
  DT_EXPECT_OK(OnWorld(4, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    ParallelLinearOptions options = Master(7, 5);
    options.allow_uneven = true;
    DT_ASSIGN_OR_RETURN(const auto column,
                        ColumnParallelLinear::Create(context, mesh, 7, 5, true, true, options));
    DT_RETURN_IF_ERROR(CheckLayer(context, *column, Layout::Replicated(mesh, 2), 7, 5));
    DT_ASSIGN_OR_RETURN(const auto row,
                        RowParallelLinear::Create(context, mesh, 7, 5, true, false, options));
    return CheckLayer(context, *row, Layout::Replicated(mesh, 2), 7, 5);
  }));
}

TEST(ParallelLinear, RefusesSizesThatDoNotDivide) {
  EXPECT_THAT(
      OnWorld(2,
              [](Context& context, const DeviceMesh& mesh) {
                return ColumnParallelLinear::Create(context, mesh, 4, 5, true, false).status();
              }),
      Refuses(AllOf(HasSubstr("ColumnParallelLinear"), HasSubstr("dimension 0 of weight, 5"),
                    HasSubstr("allow uneven"))));
  EXPECT_THAT(
      OnWorld(2,
              [](Context& context, const DeviceMesh& mesh) {
                return RowParallelLinear::Create(context, mesh, 5, 4, true, false).status();
              }),
      Refuses(AllOf(HasSubstr("RowParallelLinear"), HasSubstr("dimension 1 of weight, 5"))));
}

TEST(ParallelLinear, RefusesAnotherAxisAndOtherSizes) {
  DT_EXPECT_OK(OnWorld(1, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    EXPECT_THAT(ColumnParallelLinear::Create(context, mesh, 4, 4, true, false, {.axis = "cols"}),
                Refuses(HasSubstr("cols")));
    EXPECT_THAT(RowParallelLinear::Create(context, mesh, 0, 4, true, false),
                Refuses(HasSubstr("at least one feature")));
    EXPECT_THAT(ColumnParallelLinear::Create(context, mesh, 4, 4, true, false,
                                             {.master_weight = std::vector<double>(3)}),
                Refuses(HasSubstr("3")));
    return absl::OkStatus();
  }));
}

TEST(RowParallelLinear, RefusesAWholeOperandWhereItSaidSplit) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto layer,
                        RowParallelLinear::Create(context, mesh, kIn, kOut, true, true));
    EXPECT_THAT((*layer)(Full(context, mesh, {Replicate()}, {kRows, kIn}, DType::kF32, 1)),
                Refuses(AllOf(HasSubstr("tp"), HasSubstr("input_is_parallel"))));
    return absl::OkStatus();
  }));
}

TEST(RowParallelLinear, AddsItsBiasOnceAndAfterOneCollective) {
  struct Case {
    Placement output;
    std::string collective;
  };
  for (const Case& c : {Case{Replicate(), "all-reduce"}, Case{Shard(0), "reduce-scatter"}}) {
    DT_EXPECT_OK(OnWorld(2, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
      ParallelLinearOptions options;
      options.master_weight = std::vector<double>(4 * 6, 1);
      options.master_bias = {1, 2, 3, 4};
      options.output = c.output;
      DT_ASSIGN_OR_RETURN(const auto layer,
                          RowParallelLinear::Create(context, mesh, 6, 4, true, false, options));
      const TensorOr x = Full(context, mesh, {Replicate()}, {2, 6}, DType::kF32, 1);
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const auto y, (*layer)(x));
      EXPECT_THAT(TakeCollectives(context), ElementsAre(Pair(c.collective, 1)));
      // Not 6 + 2 b, which a bias of every rank would give, nor 6 + b / 2.
      EXPECT_THAT(ToGlobal<float>(y.Detach()), IsOkAndHolds(ElementsAre(7, 8, 9, 10, 7, 8, 9, 10)));
      return absl::OkStatus();
    }));
  }
}

TEST(ParallelLinear, MovesNothingInAWorldOfOne) {
  DT_EXPECT_OK(OnWorld(1, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto up,
                        ColumnParallelLinear::Create(context, mesh, kIn, kOut, true, true));
    DT_ASSIGN_OR_RETURN(const auto down,
                        RowParallelLinear::Create(context, mesh, kOut, kIn, true, true));
    const TensorOr x = Full(context, mesh, {Replicate()}, {kRows, kIn}, DType::kF32, 1);
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Backward(Sum((*down)((*up)(x)), {0, 1})));
    EXPECT_THAT(TakeCollectives(context), ElementsAre());
    return absl::OkStatus();
  }));
}

// Column then row: the one all-reduce that Megatron's MLP has.
TEST(ParallelLinear, PairsWithOneAllReduce) {
  DT_EXPECT_OK(OnWorld(4, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto up,
                        ColumnParallelLinear::Create(context, mesh, kIn, kOut, true, false));
    DT_ASSIGN_OR_RETURN(const auto down,
                        RowParallelLinear::Create(context, mesh, kOut, kIn, true, true));
    const TensorOr x = Full(context, mesh, {Replicate()}, {kRows, kIn}, DType::kF32, 1);
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR((*down)(Silu((*up)(x))).status());
    EXPECT_THAT(TakeCollectives(context), ElementsAre(Pair("all-reduce", 1)));
    return absl::OkStatus();
  }));
}

TEST(ParallelLinear, ReturnsItsBias) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    ParallelLinearOptions options = Master(kIn, kOut);
    options.return_bias = true;
    DT_ASSIGN_OR_RETURN(const auto row,
                        RowParallelLinear::Create(context, mesh, kIn, kOut, true, false, options));
    const TensorOr x = Distribute<double>(context, Layout::Replicated(mesh, 2), {kRows, kIn},
                                          Values(kRows * kIn, 3));
    DT_ASSIGN_OR_RETURN(const auto results, row->Call({x}));
    DT_ASSIGN_OR_RETURN(const auto y, Add(results[0], results[1]));
    return ExpectValues(y.Detach(), Reference(kRows, kIn, kOut).y);
  }));
}

TEST(ParallelLinear, StartsAlikeOnEveryMesh) {
  std::vector<float> first;
  for (const int ranks : {1, 2, 4}) {
    DT_EXPECT_OK(OnWorld(ranks, [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
      DT_ASSIGN_OR_RETURN(
          const auto layer,
          ColumnParallelLinear::Create(context, mesh, kIn, kOut, false, false, {.seed = 9}));
      EXPECT_EQ(layer->bias(), nullptr);
      DT_ASSIGN_OR_RETURN(std::vector<float> all, ToGlobal<float>(layer->weight()->tensor));
      if (context.rank() != 0) return absl::OkStatus();
      if (first.empty()) first = all;
      EXPECT_EQ(all, first);
      return absl::OkStatus();
    }));
  }
}

TEST(ParallelLinear, ComputesInBf16) {
  DT_EXPECT_OK(OnWorld(2, [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    ParallelLinearOptions options = Master(kIn, kOut);
    options.dtype = DType::kBF16;
    DT_ASSIGN_OR_RETURN(const auto row,
                        RowParallelLinear::Create(context, mesh, kIn, kOut, true, false, options));
    const TensorOr x = Distribute<double>(context, Layout::Replicated(mesh, 2), {kRows, kIn},
                                          Values(kRows * kIn, 3));
    DT_ASSIGN_OR_RETURN(const auto y, (*row)(Cast(x, DType::kBF16)));
    DT_ASSIGN_OR_RETURN(const auto wide, Cast(y.Detach(), DType::kF64));
    DT_ASSIGN_OR_RETURN(const std::vector<double> all, ToGlobal<double>(wide));
    EXPECT_LE(RelativeRms(all, Reference(kRows, kIn, kOut).y), 0x1p-7);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
