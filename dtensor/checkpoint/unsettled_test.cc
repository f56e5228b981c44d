// Tensors that are not ready yet when they are saved: asynchronous redistributions, and tensors
// that are gathered at their first use (docs/overlap.md).
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status OnRanks(int ranks, const std::function<absl::Status(Context&)>& fn) {
  ContextOptions contexts;
  contexts.overlap = {.chunks = 2, .min_bytes = 0};
  contexts.read_environment = false;
  return RunRanks(ranks, fn, {}, contexts);
}

TensorOr Sevens(Context& context, const char* mesh, const Placements& placements, Dims shape) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh parsed, DeviceMesh::Parse(mesh));
  return Full(context, parsed, placements, shape, DType::kF32, 7);
}

// Of one rank.
absl::StatusOr<std::vector<float>> Load(MemoryFiles& files, const std::string& name, Dims shape) {
  std::vector<float> values;
  DT_RETURN_IF_ERROR(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto to, Full(context, *DeviceMesh::Parse("tp=1"), {Replicate()},
                                            shape, DType::kF32, 0));
    DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run", files));
    DT_RETURN_IF_ERROR(LoadTensors(context, reader, {{name, to}}));
    DT_ASSIGN_OR_RETURN(values, ToGlobal<float>(to));
    return absl::OkStatus();
  }));
  return values;
}

// A small one is written by one rank of four, and comes by all: with what is large beside it.
TEST(Unsettled, AllRanksMakeWhatOneWrites) {
  for (const bool async : {false, true}) {
    for (const bool saver_is_async : {false, true}) {
      MemoryFiles files;
      DT_ASSERT_OK(OnRanks(
          4,
          [&](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const auto large,
                                Sevens(context, "dp=2,tp=2", {Shard(0), Shard(1)}, {256, 256}));
            DT_ASSIGN_OR_RETURN(const auto x,
                                Sevens(context, "dp=2,tp=2", {Replicate(), Shard(0)}, {6, 4}));
            DT_ASSIGN_OR_RETURN(
                const auto small,
                x.Redistribute({Replicate(), Replicate()}, {.async = async, .on_use = !async}));
            CheckpointSaver saver(context, "run", {.async = saver_is_async, .files = &files});
            DT_RETURN_IF_ERROR(
                saver.Save({.step = 1, .tensors = {{"large", large}, {"small", small}}}));
            return saver.Wait();
          }))
          << async << saver_is_async;
      DT_ASSERT_OK_AND_ASSIGN(const auto got, Load(files, "small", {6, 4}));
      EXPECT_THAT(got, Each(7));
    }
  }
}

// Meshes that share ranks 1 and 2, which therefore wait for both in one order.
TEST(Unsettled, OnMeshesThatShareRanks) {
  MemoryFiles files;
  DT_ASSERT_OK(OnRanks(4, [&](Context& context) -> absl::Status {
    CheckpointContent content{.step = 1};
    const char* const meshes[] = {"tp=3@0..2", "tp=3@1..3", "tp=2@1..2"};
    for (int i = 0; i < 3; ++i) {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(meshes[i]));
      if (!mesh.Contains(context.rank())) continue;
      DT_ASSIGN_OR_RETURN(const auto x, Sevens(context, meshes[i], {Shard(0)}, {6, 4}));
      DT_ASSIGN_OR_RETURN(content.tensors[std::string(1, static_cast<char>('c' - i))],
                          x.Redistribute({Replicate()}, {.on_use = true}));
    }
    return SaveCheckpoint(context, "run", content, {.files = &files});
  }));
  for (const char* const name : {"a", "b", "c"}) {
    DT_ASSERT_OK_AND_ASSIGN(const auto got, Load(files, name, {6, 4}));
    EXPECT_THAT(got, Each(7));
  }
}

// Ranks that cut otherwise fail the world when the tensor is made: nothing is saved, and nothing
// that was there goes.
TEST(Unsettled, WhatDoesNotComeIsNotSaved) {
  for (const bool is_async : {false, true}) {
    MemoryFiles files;
    const SaveOptions options{.keep_last = 1, .async = is_async, .files = &files};
    const absl::Status status = OnRanks(2, [&](Context& world) -> absl::Status {
      Context context(world.communicator(), world.device(),
                      {.overlap = {.chunks = 2 + world.rank(), .min_bytes = 0}});
      DT_ASSIGN_OR_RETURN(const auto x, Sevens(context, "tp=2", {Shard(0)}, {600, 400}));
      CheckpointSaver saver(context, "run", options);
      DT_RETURN_IF_ERROR(saver.Save({.step = 1, .tensors = {{"x", x}}}));
      DT_RETURN_IF_ERROR(saver.Wait());
      DT_ASSIGN_OR_RETURN(const auto late, x.Redistribute({Replicate()}, {.on_use = true}));
      const absl::Status saved = saver.Save({.step = 2, .tensors = {{"x", late}}});
      EXPECT_THAT(saved.message(), HasSubstr("ranks disagree"));
      EXPECT_FALSE(saver.Wait().ok() && saved.ok());
      return saved;
    });
    EXPECT_FALSE(status.ok());
    DT_ASSERT_OK_AND_ASSIGN(const auto steps, ListCheckpoints("run", files));
    EXPECT_THAT(steps, ElementsAre(1));
    DT_ASSERT_OK_AND_ASSIGN(const auto got, Load(files, "x", {600, 400}));
    EXPECT_THAT(got, Each(7));
  }
}

// A rank fails its world between what is agreed upon and what is written.
TEST(Unsettled, AWorldThatHasFailedCommitsNothing) {
  MemoryFiles files;
  const absl::Status status = OnRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Sevens(context, "tp=2", {Shard(0)}, {6, 4}));
    if (context.rank() == 0) {
      files.set_refuse([&](const FileCall& call) {
        // Only in this rank's own call: for another rank's this Context may be gone.
        const bool is_own = absl::StrContains(call.path, "rank-00000");
        if (call.kind == FileCall::Kind::kCreate && is_own) {
          context.communicator().Fail(absl::AbortedError("the device is gone")).IgnoreError();
        }
        return absl::OkStatus();
      });
    }
    return SaveCheckpoint(context, "run", {.step = 1, .tensors = {{"x", x}}}, {.files = &files});
  });
  EXPECT_THAT(status.message(), HasSubstr("the device is gone"));
  DT_ASSERT_OK_AND_ASSIGN(const auto steps, ListCheckpoints("run", files));
  EXPECT_TRUE(steps.empty());
}

}  // namespace
}  // namespace dtensor
