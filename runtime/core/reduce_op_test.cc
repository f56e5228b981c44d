#include "dtensor/runtime/core/reduce_op.h"

#include <string>
#include <utility>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReduceOp, NamesRoundTrip) {
  const std::pair<ReduceOp, std::string> names[] = {{ReduceOp::kSum, "sum"},
                                                    {ReduceOp::kAvg, "avg"},
                                                    {ReduceOp::kMax, "max"},
                                                    {ReduceOp::kMin, "min"},
                                                    {ReduceOp::kProduct, "product"}};
  for (const auto& [op, name] : names) {
    EXPECT_EQ(std::string(ToString(op)), name);
    EXPECT_THAT(ParseReduceOp(name), IsOkAndHolds(op));
  }
}

TEST(ReduceOp, ParseListsTheNames) {
  for (const char* text : {"", "Sum", "sum ", "mean"}) {
    EXPECT_THAT(ParseReduceOp(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("\"" + std::string(text) + "\""),
                                                    HasSubstr("sum, avg, max, min, product"))));
  }
}

}  // namespace
}  // namespace dtensor
