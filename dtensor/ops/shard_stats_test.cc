// Operators whose shards exchange statistics of their rows, with various link tables: how the
// numbers travel does not change a bit of them.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/local_world.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

struct OfRows {
  std::string name;
  std::function<TensorOr(const DistributedTensor& x, const DistributedTensor& weight,
                         const DistributedTensor& targets)>
      call;
};

std::vector<OfRows> Operators() {
  using T = DistributedTensor;
  return {
      {"RmsNorm", [](const T& x, const T& w, const T&) { return RmsNorm(x, w, 1e-5); }},
      {"LayerNorm", [](const T& x, const T& w, const T&) { return LayerNorm(x, w, w, 1e-5); }},
      {"Softmax", [](const T& x, const T&, const T&) { return Softmax(x); }},
      {"LogSoftmax", [](const T& x, const T&, const T&) { return LogSoftmax(x); }},
      {"CrossEntropy", [](const T& x, const T&, const T& t) { return CrossEntropy(x, t); }},
      {"CrossEntropyMean", [](const T& x, const T&, const T& t) { return CrossEntropyMean(x, t); }},
  };
}

// The operator's result and the gradient of x, as `rows` rows on all ranks of dp=2,tp=2.
absl::StatusOr<std::vector<float>> ValuesOf(Context& context, const OfRows& op, int64_t rows) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
  constexpr int64_t kColumns = 6;
  DT_ASSIGN_OR_RETURN(DistributedTensor x, RandomNormal(context, mesh, {Shard(0), Shard(1)},
                                                        {rows, kColumns}, {.seed = 1}));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  DT_ASSIGN_OR_RETURN(
      const DistributedTensor weight,
      RandomNormal(context, mesh, {Replicate(), Shard(0)}, {kColumns}, {.seed = 2}));
  std::vector<int32_t> classes(rows);
  for (int64_t i = 0; i < rows; ++i) classes[i] = static_cast<int32_t>(i * 5 % kColumns);
  DT_ASSIGN_OR_RETURN(const DistributedTensor targets,
                      Distribute<int32_t>(context, mesh, {Shard(0), Replicate()}, {rows}, classes));
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, op.call(x, weight, targets));
  DT_ASSIGN_OR_RETURN(
      const DistributedTensor given,
      RandomNormal(context, Layout::Replicated(mesh, y.ndim()), y.shape(), {.seed = 3}));
  DT_RETURN_IF_ERROR(Backward(y, {.gradient = given}));
  DT_ASSIGN_OR_RETURN(std::vector<float> values, ToGlobal<float>(y));
  DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, ToGlobal<float>(x.grad()));
  values.insert(values.end(), gradient.begin(), gradient.end());
  return values;
}

class ShardStatsTest : public testing::TestWithParam<RedistributionObjective> {};
INSTANTIATE_TEST_SUITE_P(Objectives, ShardStatsTest,
                         testing::Values(RedistributionObjective::kTotal,
                                         RedistributionObjective::kBusiest,
                                         RedistributionObjective::kLatency));

// Odd numbers of rows: ranks of one axis have more of them than those of the other.
TEST_P(ShardStatsTest, LinkTablesChangeNoBit) {
  for (const char* const table :
       {"link dp 100 1\nlink tp 1 1", "link dp 1 1\nlink tp 100 1",
        "link tp 12 25\nlink dp 0.5 150", "link dp 0.1 100\nlink tp 1 0.01"}) {
    DT_ASSERT_OK_AND_ASSIGN(const CostModel links, CostModel::Parse(table));
    DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
      for (const int64_t rows : {4, 201, 4000}) {
        for (const OfRows& op : Operators()) {
          DT_RETURN_IF_ERROR(context.set_redistribution_options({}));
          DT_ASSIGN_OR_RETURN(const std::vector<float> expected, ValuesOf(context, op, rows));
          DT_RETURN_IF_ERROR(
              context.set_redistribution_options({.objective = GetParam(), .links = links}));
          DT_ASSIGN_OR_RETURN(const std::vector<float> values, ValuesOf(context, op, rows));
          EXPECT_EQ(values, expected) << op.name << " of " << rows << " rows, " << table;
        }
      }
      return absl::OkStatus();
    })) << table;
  }
}

// Sums of rows, of which the shards' sums lie column by column.
absl::Status SumOfShards(const OpCall& call) {
  const Tensor x = call.operands[0].Transpose(0, 1);
  DT_ASSIGN_OR_RETURN(const Tensor sums,
                      Tensor::Empty(call.device(), x.dtype(), {x.size(0), x.size(1)}));
  DT_RETURN_IF_ERROR(kernels::Reduce(call.device(), ReduceOp::kSum, x, {2}, sums));
  DT_ASSIGN_OR_RETURN(const Tensor all, call.GatherShards("k", sums.Transpose(0, 1)));
  return kernels::Reduce(call.device(), ReduceOp::kSum, all, {0}, call.results[0]);
}

TEST(GatherShards, TakesValuesOfAnyStrides) {
  const OpDef op = {.name = "SumOfShards", .rule = "a b k^ -> a b", .host = {SumOfShards, nullptr}};
  DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
    const NoGrad no_grad(context);
    std::vector<float> values(3 * 5 * 4);  // whole: sums are exact
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 31);
    const TensorOr x = Distribute<float>(context, mesh, {Shard(0), Shard(2)}, {3, 5, 4}, values);
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Dispatch(op, {&x}, {}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor sum, Sum(x, {2}));
    DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToGlobal<float>(y));
    DT_ASSIGN_OR_RETURN(const std::vector<float> expected, ToGlobal<float>(sum));
    EXPECT_EQ(got, expected);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
