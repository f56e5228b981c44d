#include "dtensor/runtime/core/shortened.h"

#include <string>

#include "dtensor/runtime/core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Shortened, LeavesShortTexts) {
  EXPECT_EQ(Shortened(""), "");
  EXPECT_EQ(Shortened(std::string(1000, 'x')), std::string(1000, 'x'));
}

TEST(Shortened, KeepsBothEnds) {
  const std::string text = "begin" + std::string(10'000'000, 'x') + "end";
  const std::string cut = Shortened(text);
  EXPECT_LT(cut.size(), 1000u);
  EXPECT_THAT(cut, AllOf(StartsWith("beginxx"), EndsWith("xxend"), HasSubstr("(10000008 bytes)")));
}

// Characters of two bytes, at even and at odd offsets.
TEST(Shortened, CutsNoCharacter) {
  for (const char* begin : {"", "x"}) {
    std::string text = begin;
    for (int i = 0; i < 1000; ++i) text += "\xC3\xA9";
    const std::string cut = Shortened(text);
    const size_t first = cut.find('.'), last = cut.rfind('.');
    EXPECT_EQ(cut[first - 1], '\xA9');
    EXPECT_EQ(cut[last + 1], '\xC3');
  }
  EXPECT_LT(Shortened(std::string(5000, '\x80')).size(), 1000u);
}

TEST(InvalidArgument, CutsLongPieces) {
  const std::string huge(100'000'000, 'x');
  const absl::Status status = InvalidArgument({"cannot read ", huge, " of ", huge, ": why"});
  EXPECT_LT(status.message().size(), 3000u);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("cannot read xx"), EndsWith("x: why")));
}

}  // namespace
}  // namespace dtensor
