#include "dtensor/runtime/core/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(OffStandardStreams, IsAboveThem) {
  const int input = dup(0);
  close(0);
  const int made = open("/dev/null", O_RDWR);
  const int taken = OffStandardStreams(made);
  const bool closed = fcntl(0, F_GETFD) < 0;
  dup2(input, 0);
  close(input);
  EXPECT_EQ(made, 0);
  EXPECT_GT(taken, 2);
  EXPECT_TRUE(closed);
  EXPECT_EQ(fcntl(taken, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(OffStandardStreams(taken), taken);
  close(taken);
}

TEST(OffStandardStreams, KeepsTheError) {
  errno = ENOENT;
  EXPECT_LT(OffStandardStreams(-1), 0);
  EXPECT_EQ(errno, ENOENT);
}

TEST(SyncAll, SaysWhatFails) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_FALSE(SyncAll(pipe_ends[1]));
  EXPECT_EQ(errno, EINVAL);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace dtensor
