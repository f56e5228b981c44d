#include "dtensor/tools/program/speaker.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

// One of four processes that mpirun started on two hosts: nothing tells where rank 0 is.
void SetRank(const char* rank) {
  setenv("OMPI_COMM_WORLD_RANK", rank, 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
}

TEST(Speaker, IsOneAmongSeveralHosts) {
  EXPECT_TRUE(IsSpeaker());
  EXPECT_EQ(LaunchedRanks(), 0);
  SetRank("3");
  EXPECT_FALSE(IsSpeaker());
  EXPECT_EQ(LaunchedRanks(), 4);
  SetRank("0");
  EXPECT_TRUE(IsSpeaker());
  SetRank("4");  // of four
  EXPECT_TRUE(IsSpeaker());
}

}  // namespace
}  // namespace dtensor
