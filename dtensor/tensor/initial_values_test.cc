// Arange and RandomUniform: the same values in every layout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;

TEST(Arange, CountsInEveryLayout) {
  for (const char* const text : {"[]", "[tp]", "[tp:zigzag]", "[_ x 3(tp)]", "[tp x 2]"}) {
    DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("tp=3");
      DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(mesh, text));
      DT_ASSIGN_OR_RETURN(const auto x, Arange(context, layout, 12, DType::kI64));
      EXPECT_THAT(*ToGlobal<int64_t>(x), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)) << text;
      DT_ASSIGN_OR_RETURN(const auto y, Arange(context, layout, 12, DType::kF32, 1, -0.5));
      const auto values = *ToGlobal<float>(y);
      EXPECT_EQ(values[0], 1);
      EXPECT_EQ(values[11], -4.5F);
      return absl::OkStatus();
    }));
  }
}

TEST(Arange, OfNothingAndRefusals) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(const auto none, Arange(context, mesh, {Shard(0)}, 0, DType::kBF16));
    EXPECT_EQ(none.ToString(), "[0] bf16 on [\"tp\"=2] as [tp]");
    EXPECT_THAT(Arange(context, mesh, {Replicate()}, -1, DType::kI64), Refuses(HasSubstr("-1")));
    EXPECT_THAT(Arange(context, mesh, {Partial()}, 2, DType::kI64), Refuses(HasSubstr("Partial")));
    return absl::OkStatus();
  }));
}

TEST(RandomUniform, IsTheSameOnEveryMesh) {
  std::vector<std::vector<float>> all;
  for (const std::string axes : {"tp=1", "tp=2", "tp=4"}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(axes);
    DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto x, RandomUniform(context, mesh, {Shard(1)}, {5, 50},
                                                      {.seed = 7, .low = -2, .high = 3}));
      DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<float>(x));
      if (context.rank() == 0) all.push_back(values);
      return absl::OkStatus();
    }));
  }
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all[1], all[0]);
  EXPECT_EQ(all[2], all[0]);
  EXPECT_THAT(all[0], Each(AllOf(Ge(-2), Lt(3))));
  EXPECT_LT(*std::min_element(all[0].begin(), all[0].end()), -1.8);
  EXPECT_GT(*std::max_element(all[0].begin(), all[0].end()), 2.8);
}

TEST(RandomUniform, MakesFloats) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    EXPECT_THAT(RandomUniform(context, *DeviceMesh::Parse("tp=1"), {Replicate()}, {2},
                              {.dtype = DType::kI32}),
                Refuses(HasSubstr("floating")));
    const auto between = [&](double low, double high) {
      return RandomUniform(context, *DeviceMesh::Parse("tp=1"), {Replicate()}, {2},
                           {.low = low, .high = high});
    };
    EXPECT_THAT(between(1, 0), Refuses(HasSubstr("from 1 to 0")));
    EXPECT_THAT(between(-3e38, 3e38), Refuses(HasSubstr("finite")));
    EXPECT_THAT(between(std::nan(""), 1), Refuses(HasSubstr("finite")));
    return absl::OkStatus();
  }));
}

// In 16 bits numbers near 0 are as fine as those of that type, and not steps of the whole range.
TEST(RandomUniform, IsRoundedOnce) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x,
                        RandomUniform(context, *DeviceMesh::Parse("tp=1"), {Replicate()}, {20000},
                                      {.seed = 3, .low = -1, .high = 1, .dtype = DType::kBF16}));
    DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<BFloat16>(x));
    const auto is_near_zero = [](BFloat16 value) {
      return value.bits != 0 && std::abs(static_cast<float>(value)) < 0x1p-10F;
    };
    EXPECT_GT(std::count_if(values.begin(), values.end(), is_near_zero), 5);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
