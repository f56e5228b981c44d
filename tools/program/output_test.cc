#include "dtensor/tools/program/output.h"

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

TEST(OutputTest, MessagesAreOneLine) {
  EXPECT_EQ(OneLine("a\nb\tc\x1b[m\n"), "a b c [m");
  EXPECT_EQ(OneLine(""), "");
}

TEST(OutputTest, FilesAreLookedAtBeforeTheWork) {
  DT_EXPECT_OK(CheckOutputFile("--report", testing::TempDir() + "/report"));
  EXPECT_THAT(CheckOutputFile("--report", "/nowhere/report"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--report: cannot write '/nowhere/report'")));
}

}  // namespace
}  // namespace dtensor
