// Law 6: random numbers, initial weights and dropout masks depend on the global index alone: the
// same on every mesh, however a tensor is sharded, also unevenly, dealt out, or not at all.
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/tests/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr const char* kMeshes[] = {"a=2", "a=3", "a=4", "a=2,b=2", "a=3,b=2"};
const std::vector<Dims> kShapes = {{}, {1}, {5}, {8}, {3, 4}, {5, 7}, {2, 3, 4}};

// Row-major global numbers of what a rank holds, in local order.
std::vector<int64_t> GlobalNumbers(const Region& region, absl::Span<const int64_t> shape) {
  std::vector<int64_t> numbers = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t number : numbers) {
      for (int64_t i = 0; i < region[d].size(); ++i)
        next.push_back(number * shape[d] + region[d].At(i));
    }
    numbers = std::move(next);
  }
  return numbers;
}

Region RegionOf(const Context& context, const Layout& layout, absl::Span<const int64_t> shape) {
  return Regions(layout, shape, layout.mesh().Coordinate(context.rank()));
}

// Makes one rank's shard of a tensor of random numbers.
using Maker = std::function<absl::StatusOr<std::vector<float>>(
    Context& context, const Layout& layout, const Dims& shape)>;

std::vector<float> OnOneRank(const Maker& make, const Dims& shape) {
  std::vector<float> values;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(DeviceMesh(), static_cast<int>(shape.size()));
    DT_ASSIGN_OR_RETURN(values, make(context, whole, shape));
    return absl::OkStatus();
  }));
  return values;
}

// Each rank's own memory is compared: a gather would take replicas from one of them only.
absl::Status CheckNdim(Context& context, const Maker& make, const Layout& layout, const Dims& shape,
                       const std::vector<float>& whole) {
  DT_ASSIGN_OR_RETURN(const std::vector<float> mine, make(context, layout, shape));
  std::vector<float> expected;
  for (const int64_t number : GlobalNumbers(RegionOf(context, layout, shape), shape))
    expected.push_back(whole[number]);
  EXPECT_EQ(mine, expected) << layout.ToString() << " on " << layout.mesh().ToString() << ", shape "
                            << DimsToString(shape) << ", rank " << context.rank();
  return absl::OkStatus();
}

void ExpectTheSameOnEveryMesh(const Maker& make) {
  for (const Dims& shape : kShapes) {
    const std::vector<float> whole = OnOneRank(make, shape);
    ASSERT_EQ(static_cast<int64_t>(whole.size()), NumElements(shape));
    for (const char* text : kMeshes) {
      DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(text));
      std::vector<Layout> layouts = AllLayouts(mesh, shape, ReduceOp::kSum, AllOrders());
      std::erase_if(layouts, [](const Layout& layout) { return layout.is_partial(); });
      DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
        for (const Layout& layout : layouts)
          DT_RETURN_IF_ERROR(CheckNdim(context, make, layout, shape, whole));
        EXPECT_TRUE(context.communicator().traffic().empty());
        return absl::OkStatus();
      }));
    }
  }
}

template <typename T>
absl::StatusOr<std::vector<float>> AsFloats(const Tensor& local) {
  DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToHost<T>(local));
  std::vector<float> floats;
  for (const T value : values) floats.push_back(static_cast<float>(value));
  return floats;
}

TEST(SameOnEveryMesh, RandomNumbers) {
  ExpectTheSameOnEveryMesh([](Context& context, const Layout& layout,
                              const Dims& shape) -> absl::StatusOr<std::vector<float>> {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, layout, shape, {.seed = 11, .stream = 3}));
    return AsFloats<float>(x.local());
  });
}

TEST(SameOnEveryMesh, RandomNumbersInBf16) {
  ExpectTheSameOnEveryMesh([](Context& context, const Layout& layout,
                              const Dims& shape) -> absl::StatusOr<std::vector<float>> {
    DT_ASSIGN_OR_RETURN(
        const DistributedTensor x,
        RandomNormal(context, layout, shape, {.seed = 11, .mean = 1, .dtype = DType::kBF16}));
    return AsFloats<BFloat16>(x.local());
  });
}

// There is no dropout operator yet; this is the kernel that it will call, on a layout's regions.
TEST(SameOnEveryMesh, DropoutMasks) {
  ExpectTheSameOnEveryMesh([](Context& context, const Layout& layout,
                              const Dims& shape) -> absl::StatusOr<std::vector<float>> {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Full(context, layout, shape, DType::kF32, 1));
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Full(context, layout, shape, DType::kF32, -1));
    DT_RETURN_IF_ERROR(kernels::Dropout(context.device(), x.local(),
                                        RegionOf(context, layout, shape), shape, 7, 2, 0.5,
                                        y.local()));
    return AsFloats<float>(y.local());
  });
}

// What generators that are seeded alike on every rank, or know the local index alone, give.
TEST(SameOnEveryMesh, RanksDoNotRepeatEachOther) {
  std::vector<std::vector<float>> shards(4);
  DT_ASSERT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=4"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, mesh, {Shard(0)}, {64}, {.seed = 11}));
    DT_ASSIGN_OR_RETURN(shards[context.rank()], ToHost<float>(x.local()));
    return absl::OkStatus();
  }));
  std::set<float> distinct;
  for (const std::vector<float>& shard : shards) distinct.insert(shard.begin(), shard.end());
  EXPECT_EQ(distinct.size(), 64u);
}

// A transformer's first values under its full plan.
TEST(SameOnEveryMesh, InitialWeights) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto first_values = [&](const std::string& mesh, bool sequence_parallel, bool uneven) {
      auto trained = Train({.mesh = mesh,
                            .sequence_parallel = sequence_parallel,
                            .allow_uneven = uneven,
                            .dtype = dtype,
                            .first_values = dtype,
                            .steps = 0});
      EXPECT_THAT(trained, IsOk()) << mesh;
      return trained.ok() ? trained->first_values : Trained::Values();
    };
    const Trained::Values one = first_values("tp=1", false, false);
    for (const std::string mesh : {"dp=2", "tp=2", "tp=4", "dp=2,tp=2", "tp=2,dp=2", "cp=2,tp=2"}) {
      for (const bool sequence_parallel : {false, true})
        EXPECT_EQ(first_values(mesh, sequence_parallel, false), one) << mesh;
    }
    for (const std::string mesh : {"tp=3", "dp=2,tp=3", "tp=5"}) {
      EXPECT_EQ(first_values(mesh, true, true), one) << mesh;
    }
    // Two parameters of one shape and one seed are two streams.
    EXPECT_NE(one.at("model.layers.0.mlp.gate_proj.weight"),
              one.at("model.layers.0.mlp.up_proj.weight"));
    EXPECT_NE(one.at("model.layers.0.mlp.gate_proj.weight"),
              one.at("model.layers.1.mlp.gate_proj.weight"));
  }
}

}  // namespace
}  // namespace dtensor
