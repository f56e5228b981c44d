#include "dtensor/tools/program/output.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "dtensor/runtime/testing/interruptions.h"
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

TEST(OutputTest, SignalsLoseNothing) {
  const std::string large(1 << 20, 'x');  // more than a pipe holds
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  size_t got = 0;
  absl::Status printed;
  {
    const Interruptions interruptions;
    std::thread reader([&] {
      Interruptions::AwaitSome();
      char piece[4096];
      for (ssize_t size; (size = read(ends[0], piece, sizeof(piece))) > 0;) got += size;
    });
    printed = Print(large);
    dup2(before, STDOUT_FILENO);  // the last end to write into: the reader's end
    reader.join();
  }
  close(before), close(ends[0]);
  DT_EXPECT_OK(printed);
  EXPECT_EQ(got, large.size());
}

TEST(OutputTest, FilesAreLookedAtBeforeTheWork) {
  DT_EXPECT_OK(CheckOutputFile("--report", testing::TempDir() + "/report"));
  EXPECT_THAT(CheckOutputFile("--report", "/nowhere/report"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--report: cannot write '/nowhere/report'")));
}

}  // namespace
}  // namespace dtensor
