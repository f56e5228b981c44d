#include "dtensor/runtime/core/dims.h"

#include <cstdint>
#include <limits>
#include <string>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Dims, NumElements) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({7}), 7);
  EXPECT_EQ(NumElements({2, 3, 4}), 24);
  EXPECT_EQ(NumElements({2, 0, 4}), 0);
  EXPECT_EQ(NumElements({1 << 20, 1 << 20}), int64_t{1} << 40);
}

TEST(Dims, EmptyWhateverTheOtherSizes) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(NumElements({huge, huge, 0}), 0);
}

TEST(Dims, AProductThatDoesNotFitIsTheLargestInt64) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  // Wraps to 4.
  EXPECT_EQ(NumElements({5, 0x3333333333333334}), huge);
  EXPECT_EQ(NumElements({int64_t{1} << 32, int64_t{1} << 32, 2}), huge);
  EXPECT_THAT(RowMajorStrides({2, int64_t{1} << 32, int64_t{1} << 32}),
              ElementsAre(huge, int64_t{1} << 32, 1));
}

TEST(Dims, CheckedNumElementsTakesWhatATensorMayHave) {
  EXPECT_THAT(CheckedNumElements("Full", {}), IsOkAndHolds(1));
  EXPECT_THAT(CheckedNumElements("Full", {2, 0, 4}), IsOkAndHolds(0));
  EXPECT_THAT(CheckedNumElements("Full", {kMaxElements}), IsOkAndHolds(kMaxElements));
  EXPECT_THAT(CheckedNumElements("Full", {0, kMaxElements}), IsOkAndHolds(0));
  EXPECT_GE(kMaxElements, int64_t{1} << 48);
}

TEST(Dims, CheckedNumElementsNamesTheShapeItRefuses) {
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(CheckedNumElements("Full", {-3, 4}), refused("Full: no tensor has shape [-3, 4]"));
  EXPECT_THAT(CheckedNumElements("Full", {-2, -2}), refused("-2 is negative"));
  EXPECT_THAT(CheckedNumElements("Full", {0, -1}), refused("negative"));
  EXPECT_THAT(CheckedNumElements("Full", {5, 0x3333333333333334}), refused("2^56 elements"));
  EXPECT_THAT(CheckedNumElements("Full", {kMaxElements + 1}), refused("2^56"));
  EXPECT_THAT(CheckedNumElements("Full", {0, kMaxElements, 2}), refused("2^56"));
}

TEST(Dims, RowMajorStrides) {
  EXPECT_THAT(RowMajorStrides({}), IsEmpty());
  EXPECT_THAT(RowMajorStrides({5}), ElementsAre(1));
  EXPECT_THAT(RowMajorStrides({2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(RowMajorStrides({2, 0, 3}), ElementsAre(3, 3, 1));
}

TEST(Dims, TextRoundTrips) {
  EXPECT_EQ(DimsToString({}), "[]");
  EXPECT_EQ(DimsToString({2, 3}), "[2, 3]");
  EXPECT_EQ(DimsToString({-1}), "[-1]");  // not only sizes are printed
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const Dims& dims : {Dims{}, Dims{0}, Dims{2, 3}, Dims{1, 0, most, 4, 5}}) {
    EXPECT_THAT(ParseDims(DimsToString(dims)), IsOkAndHolds(dims));
  }
}

TEST(Dims, ParseTakesOtherSpellings) {
  for (const char* text : {"2,3", "[2,3]", " 2 , 3 ", "[ 2,  3 ] ", "02,3"}) {
    EXPECT_THAT(ParseDims(text), IsOkAndHolds(ElementsAre(2, 3))) << text;
  }
  for (const char* text : {"", " ", "[]", "[ ]"}) {
    EXPECT_THAT(ParseDims(text), IsOkAndHolds(IsEmpty())) << text;
  }
}

TEST(Dims, ParseRefusesNamingTheText) {
  for (const char* text : {"-1", "[2, -3]", "+2", "2,,3", "2,", ",", "[,]", "2 3", "2x3", "1e3",
                           "0x10", "[2, 3", "2, 3]", "]2[", "[[2]]", "9223372036854775808"}) {
    EXPECT_THAT(ParseDims(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("\"" + std::string(text) + "\"")));
  }
}

}  // namespace
}  // namespace dtensor
