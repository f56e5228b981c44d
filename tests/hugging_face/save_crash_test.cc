// A model is saved over another one. Whatever call is the last before the machine stops, and
// whatever data had not reached the disk, the folder has all files of the old model or all of the
// new one. The same holds if a call is refused.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr char kFolder[] = "models/tuned";
constexpr CrashKind kKinds[] = {CrashKind::kNothing, CrashKind::kNames, CrashKind::kSomeOfIt};

struct Saved {
  uint64_t seed = 1;
  int64_t max_file_bytes = int64_t{1} << 30;
  std::map<std::string, std::string> others;
};
const Saved kOne = {1, int64_t{1} << 30, {{"tokenizer.json", "one"}}};
const Saved kSeveral = {2, 2000, {}};
const Saved kOther = {3, 1500, {{"tokenizer.json", "three"}}};

absl::Status Save(MemoryFiles& files, const Saved& saved) {
  TransformerConfig config;
  config.vocab = 8, config.dim = 8, config.layers = 1, config.heads = 2;
  config.kv_heads = 2, config.hidden = 8;
  return RunRanks(2, [&](Context& context) -> absl::Status {
    Transformer model(config);
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    TensorParallelOptions options;
    options.seed = saved.seed;
    DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, mesh, options).status());
    return SaveHuggingFace(model, kFolder,
                           {.config = std::to_string(saved.seed),
                            .others = saved.others,
                            .max_file_bytes = saved.max_file_bytes,
                            .files = &files});
  });
}

// The files of the folder, by name.
using Files = std::map<std::string, std::string>;
Files FilesOf(const MemoryFiles& files) {
  Files found;
  for (const std::string& path : files.Paths()) {
    absl::string_view name = path;
    if (absl::ConsumePrefix(&name, std::string(kFolder) + "/")) {
      found[std::string(name)] = files.Bytes(path);
    }
  }
  return found;
}

// What is beside models; it comes along.
absl::Status PutNotes(MemoryFiles& files) {
  DT_RETURN_IF_ERROR(WriteText(files, std::string(kFolder) + "/README.md", "of the user"));
  DT_RETURN_IF_ERROR(files.MakeFolder(std::string(kFolder) + "/notes"));
  DT_RETURN_IF_ERROR(WriteText(files, std::string(kFolder) + "/notes/1", "note"));
  DT_RETURN_IF_ERROR(files.SyncFolder(std::string(kFolder) + "/notes"));
  return files.SyncFolder(kFolder);
}

// How often the old and the new model were found.
struct Found {
  int old_ones = 0, new_ones = 0;
};

void TryEveryPrefix(const std::vector<FileCall>& calls, size_t first, const Files& before,
                    const Files& after, Found& found) {
  for (size_t count = first; count <= calls.size(); ++count) {
    for (const CrashKind kind : kKinds) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        const auto left = MemoryFiles::AfterCrash(calls, count, kind, 97 * count + seed);
        const Files files = FilesOf(*left);
        if (files == after) {
          ++found.new_ones;
          continue;
        }
        ASSERT_EQ(files, before) << "call " << count << " of " << calls.size();
        ASSERT_LT(count, calls.size()) << "a save that has returned is on the disk";
        ++found.old_ones;
      }
    }
  }
}

TEST(SaveCrash, AnyPrefixOfTheCallsLeavesTheOldOrTheNewModel) {
  Found found;
  for (const auto& [old_one, new_one] :
       {std::pair(kOne, kSeveral), std::pair(kSeveral, kOne), std::pair(kSeveral, kOther)}) {
    MemoryFiles files;
    DT_ASSERT_OK(Save(files, old_one));
    DT_ASSERT_OK(PutNotes(files));
    const size_t first = files.calls().size();
    const Files before = FilesOf(files);
    EXPECT_TRUE(before.contains("notes/1"));
    DT_ASSERT_OK(Save(files, new_one));
    const Files after = FilesOf(files);
    EXPECT_EQ(after.at("README.md"), "of the user");
    EXPECT_EQ(after.at("notes/1"), "note");
    EXPECT_EQ(after.at("config.json"), std::to_string(new_one.seed));
    EXPECT_EQ(after.contains("model.safetensors"), new_one.seed == kOne.seed);
    TryEveryPrefix(files.calls(), first, before, after, found);
    for (const std::string& path : files.Paths()) {
      EXPECT_TRUE(absl::StartsWith(path, kFolder)) << path << " is left";
    }
  }
  EXPECT_GT(found.old_ones, 50);
  EXPECT_GT(found.new_ones, 10);
}

TEST(SaveCrash, ANewFolderIsThereOrNot) {
  MemoryFiles files;
  DT_ASSERT_OK(Save(files, kSeveral));
  Found found;
  TryEveryPrefix(files.calls(), 0, {}, FilesOf(files), found);
  EXPECT_GT(found.old_ones, 20);
  EXPECT_GT(found.new_ones, 1);
}

// The checks above can fail: what is not synced is what a crash may lose.
TEST(SaveCrash, WhatIsNotSyncedWouldBeLost) {
  MemoryFiles files;
  DT_ASSERT_OK(Save(files, kOne));
  const Files before = FilesOf(files);
  DT_ASSERT_OK(Save(files, kSeveral));
  const Files after = FilesOf(files);
  for (const FileCall::Kind left_out : {FileCall::Kind::kSync, FileCall::Kind::kSyncFolder}) {
    std::vector<FileCall> calls;
    for (const FileCall& call : files.calls()) {
      if (call.kind != left_out) calls.push_back(call);
    }
    int lost = 0;
    for (const CrashKind kind : kKinds) {
      const Files left = FilesOf(*MemoryFiles::AfterCrash(calls, calls.size(), kind, 5));
      if (left != after) ++lost;
    }
    EXPECT_GT(lost, 0);
  }
}

// Any one call that is refused: an error on all ranks, or no harm, and what was there stays.
TEST(SaveCrash, AnyCallMayFail) {
  MemoryFiles counted;
  DT_ASSERT_OK(Save(counted, kOne));
  DT_ASSERT_OK(PutNotes(counted));
  const Files before = FilesOf(counted);
  const size_t first = counted.calls().size();
  DT_ASSERT_OK(Save(counted, kSeveral));
  const Files after = FilesOf(counted);
  const size_t all = counted.calls().size() - first;
  size_t failed = 0;
  for (size_t refused = 0; refused < all; ++refused) {
    MemoryFiles files;
    DT_ASSERT_OK(Save(files, kOne));
    DT_ASSERT_OK(PutNotes(files));
    size_t call = 0;
    files.set_refuse([&](const FileCall&) {
      return call++ == refused ? absl::UnavailableError("cannot do it: No space left on device")
                               : absl::OkStatus();
    });
    const absl::Status saved = Save(files, kSeveral);
    files.set_refuse(nullptr);
    if (saved.ok()) {
      EXPECT_EQ(FilesOf(files), after) << refused;
      continue;
    }
    ++failed;
    EXPECT_THAT(saved, StatusIs(absl::StatusCode::kUnavailable, testing::HasSubstr("SaveHuggi")));
    const bool is_there = absl::StrContains(saved.message(), "is there, but may not");
    EXPECT_EQ(FilesOf(files), is_there ? after : before) << refused << " " << saved;
  }
  // What fails without harm is the removal of what was replaced.
  EXPECT_GT(failed, all / 2);
}

}  // namespace
}  // namespace dtensor
