#include "dtensor/runtime/core/status.h"

#include <memory>
#include <string>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::_;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointee;

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument({"half of ", "an odd number"});
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  DT_ASSIGN_OR_RETURN(const int half, Half(n));
  DT_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status CheckQuarter(int n, int* reached) {
  DT_RETURN_IF_ERROR(Quarter(n).status());
  ++*reached;
  return absl::OkStatus();
}

TEST(Status, InvalidArgumentJoinsPieces) {
  EXPECT_EQ(InvalidArgument({"a", "", "bc"}), absl::InvalidArgumentError("abc"));
}

TEST(Status, MacrosUnwrapAndReturn) {
  EXPECT_THAT(Quarter(12), IsOkAndHolds(3));
  EXPECT_THAT(Quarter(6), StatusIs(absl::StatusCode::kInvalidArgument, "half of an odd number"));
  int reached = 0;
  DT_EXPECT_OK(CheckQuarter(4, &reached));
  EXPECT_EQ(reached, 1);
  EXPECT_THAT(CheckQuarter(5, &reached), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(reached, 1);
}

TEST(Status, MacrosStandTwiceOnALine) {
  const auto sum = [](int a, int b) -> absl::StatusOr<int> {
    // clang-format off
    DT_ASSIGN_OR_RETURN(const int x, Half(a)); DT_ASSIGN_OR_RETURN(const int y, Half(b));
    // clang-format on
    return x + y;
  };
  // clang-format off
  DT_ASSERT_OK_AND_ASSIGN(const int five, sum(4, 6)); DT_ASSERT_OK_AND_ASSIGN(int one, sum(2, 0));
  // clang-format on
  EXPECT_EQ(five, 5);
  EXPECT_EQ(one, 1);
  EXPECT_THAT(sum(4, 5), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Status, AssignMovesOutOfTheStatusOr) {
  const auto unwrap = []() -> absl::StatusOr<std::unique_ptr<int>> {
    DT_ASSIGN_OR_RETURN(auto p, absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(7)));
    return p;
  };
  DT_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<int> p, unwrap());
  EXPECT_EQ(*p, 7);
}

TEST(StatusDeathTest, RequireSaysWhatTheCallerDid) {
  DT_REQUIRE(1 + 1 == 2, "never");
  EXPECT_DEATH(DT_REQUIRE(1 + 1 == 3, "Add: takes numbers"), "^dtensor: Add: takes numbers\n$");
  EXPECT_DEATH(DT_REQUIRE_DEFINED(false, "Tensor::device()"),
               "^dtensor: Tensor::device\\(\\) of an undefined tensor .*ask defined");
}

TEST(StatusDeathTest, CheckNamesPlaceAndCondition) {
  DT_CHECK(1 + 1 == 2);
  EXPECT_DEATH(DT_CHECK(1 + 1 == 3), "status_test.cc:[0-9]+: .*1 \\+ 1 == 3");
}

TEST(StatusMatchers, TellValuesCodesAndMessagesApart) {
  const absl::StatusOr<int> three = 3, error = absl::NotFoundError("no axis \"tp\"");
  EXPECT_THAT(three, IsOk());
  EXPECT_THAT(three, IsOkAndHolds(Gt(2)));
  EXPECT_THAT(three, Not(IsOkAndHolds(4)));
  EXPECT_THAT(three, Not(StatusIs(absl::StatusCode::kNotFound)));
  EXPECT_THAT(error, Not(IsOk()));
  EXPECT_THAT(error, Not(IsOkAndHolds(_)));
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kNotFound, HasSubstr("tp")));
  EXPECT_THAT(error, Not(StatusIs(absl::StatusCode::kNotFound, HasSubstr("dp"))));
  EXPECT_THAT(error, Not(StatusIs(absl::StatusCode::kInternal, HasSubstr("tp"))));
  EXPECT_THAT(error.status(), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(7)),
              IsOkAndHolds(Pointee(7)));
}

TEST(StatusMatchers, ExplainWhatTheyFound) {
  testing::StringMatchResultListener listener;
  const testing::Matcher<absl::StatusOr<int>> holds_four = IsOkAndHolds(4);
  EXPECT_FALSE(holds_four.MatchAndExplain(3, &listener));
  EXPECT_THAT(listener.str(), HasSubstr("holds 3"));
  listener.Clear();
  EXPECT_FALSE(holds_four.MatchAndExplain(absl::NotFoundError("gone"), &listener));
  EXPECT_THAT(listener.str(), HasSubstr("NOT_FOUND: gone"));
  EXPECT_EQ(testing::DescribeMatcher<absl::StatusOr<int>>(holds_four),
            "is OK and holds what is equal to 4");
}

}  // namespace
}  // namespace dtensor
