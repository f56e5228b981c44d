#include "dtensor/runtime/io/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "dtensor/runtime/testing/interruptions.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

std::string FileWith(const std::string& text) {
  const std::string path = testing::TempDir() + "/text";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(ReadFileTest, ReadsEveryByte) {
  const std::string large(3'000'000, 'x');
  for (const std::string& text : {std::string(), std::string("a\0b\n", 4), large}) {
    EXPECT_THAT(ReadFile(FileWith(text), 3'000'000), IsOkAndHolds(text));
  }
}

TEST(ReadFileTest, ReadsNoMoreThanIsAskedFor) {
  EXPECT_THAT(ReadFile(FileWith("abc"), 3), IsOkAndHolds("abc"));
  EXPECT_THAT(ReadFile(FileWith("abcd"), 3),
              StatusIs(kInvalid, AllOf(HasSubstr("/text' has more than 3 bytes"),
                                       HasSubstr("give a smaller file"))));
}

// Ten bytes at most, of a pipe that another thread fills.
absl::StatusOr<std::string> ReadPiped(const std::string& text) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::thread writer([&] {
    EXPECT_EQ(write(ends[1], text.data(), text.size()), text.size());
    close(ends[1]);
  });
  absl::StatusOr<std::string> result = ReadFile("/proc/self/fd/" + std::to_string(ends[0]), 10);
  writer.join();
  close(ends[0]);
  return result;
}

TEST(ReadFileTest, ReadsPipesToTheirEnd) {
  EXPECT_THAT(ReadPiped("piped"), IsOkAndHolds("piped"));
  EXPECT_THAT(ReadPiped("eleven byte"), StatusIs(kInvalid, HasSubstr("more than 10 bytes")));
}

// While the pipe has no writer yet, and while that writes nothing.
TEST(ReadFileTest, SignalsDoNotEndIt) {
  const std::string path = testing::TempDir() + "/pipe";
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);
  const Interruptions interruptions;
  std::thread writer([&] {
    Interruptions::AwaitSome();
    const int file = open(path.c_str(), O_RDWR);  // also where nobody reads any more
    Interruptions::AwaitSome();
    EXPECT_EQ(write(file, "late", 4), 4);
    close(file);
  });
  EXPECT_THAT(ReadFile(path, 10), IsOkAndHolds("late"));
  writer.join();
}

TEST(ReadFileTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(ReadFile("/nowhere/text", 9), StatusIs(kNotFound, HasSubstr("'/nowhere/text'")));
  EXPECT_THAT(ReadFile(testing::TempDir(), 9), StatusIs(kInvalid, HasSubstr("is a folder")));
  EXPECT_THAT(ReadFile("/dev/zero", 9), StatusIs(kInvalid, HasSubstr("is a device")));
}

}  // namespace
}  // namespace dtensor
