// Ranks that are threads share their process's limit of open files. In a test of its own, which
// lowers that limit.
#include <sys/resource.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// 8 readers of 24 files each are more than the limit.
TEST(OpenFiles, ManyRanksLoadWhatManySaved) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/open_files");
  const auto mesh = [](Context& context) {
    return DeviceMesh::Parse(absl::StrCat("a=", context.world_size()));
  };
  DT_ASSERT_OK(RunRanks(24, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh on, mesh(context));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, on, {Shard(0)}, {24, 8}, {.seed = 1}));
    return SaveCheckpoint(context, folder, {.tensors = {{"x", x}}});
  }));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few = {96, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::Status loaded = RunRanks(8, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh on, mesh(context));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Full(context, on, {Shard(1)}, {24, 8}, DType::kF32, 0));
    DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, folder));
    DT_RETURN_IF_ERROR(LoadTensors(context, reader, {{"x", x}}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor want,
                        RandomNormal(context, on, {Shard(1)}, {24, 8}, {.seed = 1}));
    EXPECT_EQ(ToGlobal<float>(x).value(), ToGlobal<float>(want).value());
    return absl::OkStatus();
  });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  DT_EXPECT_OK(loaded);
}

}  // namespace
}  // namespace dtensor
