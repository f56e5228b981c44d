// A crash at any moment of saving leaves either the previous checkpoint or the new one, complete.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/checkpoint/testing/saved_tensors.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AnyOf;

absl::Status SaveAt(const SavedPlace& place, MemoryFiles& files, int64_t step, int keep_last) {
  return RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const SavedTensors tensors, MakeSavedTensors(context, place, step));
    return SaveCheckpoint(context, "runs/one", {.step = step, .tensors = tensors},
                          {.keep_last = keep_last, .files = &files});
  });
}

// The step of the checkpoint that is found, all of whose values are those of that step; 0: there is
// none.
absl::StatusOr<int64_t> StepThatLoads(MemoryFiles& files) {
  const absl::StatusOr<std::string> found = FindCheckpoint("runs/one", files);
  if (absl::IsNotFound(found.status())) return 0;
  DT_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open("runs/one", files));
  const int64_t step = reader.index().step;
  DT_RETURN_IF_ERROR(reader.Verify());
  DT_RETURN_IF_ERROR(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const SavedTensors tensors, MakeEmptyTensors(context, SavedPlaces()[0]));
    std::vector<LoadTarget> targets;
    for (const auto& [name, tensor] : tensors) targets.push_back({name, tensor});
    DT_RETURN_IF_ERROR(LoadTensors(context, reader, targets));
    return CheckSavedTensors(tensors, step);
  }));
  return step;
}

// Whether two saves, of steps 1 and 2, leave the old or the new one wherever the machine stops.
void TryEveryPrefix(const SavedPlace& place, int keep_last) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveAt(place, files, 1, keep_last));
  const size_t first = files.calls().size();
  DT_ASSERT_OK(SaveAt(place, files, 2, keep_last));
  const std::vector<FileCall> calls = files.calls();
  ASSERT_GT(calls.size(), first + 10);
  std::map<int64_t, int> found;
  for (size_t count = 0; count <= calls.size(); ++count) {
    for (const CrashKind kind : {CrashKind::kNothing, CrashKind::kNames, CrashKind::kSomeOfIt}) {
      const int seeds = kind == CrashKind::kSomeOfIt ? 2 : 1;
      for (int seed = 0; seed < seeds; ++seed) {
        const auto after = MemoryFiles::AfterCrash(calls, count, kind, 77 * count + seed);
        const absl::StatusOr<int64_t> step = StepThatLoads(*after);
        DT_ASSERT_OK(step) << place.mesh << ", call " << count << " of " << calls.size();
        // What a save that has returned saved is on the disk.
        const int64_t least = count < first ? 0 : count < calls.size() ? 1 : 2;
        const int64_t most = count <= first ? 1 : 2;
        ASSERT_TRUE(*step >= least && *step <= most)
            << place.mesh << ", call " << count << " of " << calls.size() << ": step " << *step;
        ++found[*step];
      }
    }
  }
  for (const int64_t step : {0, 1, 2}) EXPECT_GT(found[step], 0) << step;
}

// The first to commit is refused. Where both ranks are to see that all have written, the first to
// look waits for that.
class FirstCommitRefused final : public MemoryFiles {
 public:
  explicit FirstCommitRefused(int committers) : committers_(committers) {}

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    while (committers_ > 1 && absl::StrContains(folder, ".tmp")) {
      auto names = MemoryFiles::List(folder);
      const auto is_done = [](const std::string& name) { return absl::EndsWith(name, ".done"); };
      if (!names.ok() || std::count_if(names->begin(), names->end(), is_done) == 2) return names;
      std::this_thread::yield();
    }
    return MemoryFiles::List(folder);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (!absl::EndsWith(to, "-commit.tmp") || commits_++ > 0) return MemoryFiles::Rename(from, to);
    return absl::UnavailableError("stale file handle");
  }

 private:
  const int committers_;
  std::atomic<int> commits_ = 0;
};

TEST(Commit, OfOneThatIsRefusedLeavesNothing) {
  FirstCommitRefused files(1);
  EXPECT_THAT(SaveAt(SavedPlaces()[0], files, 1, 0), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(files.Paths(), testing::IsEmpty());
}

TEST(Commit, OfOneThatIsRefusedAndOneThatIsNotIsThere) {
  FirstCommitRefused files(2);
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Full(context, mesh, {Shard(0)}, {8}, DType::kF32, 1));
    return SaveCheckpoint(context, "run", {.step = 1, .tensors = {{"x", x}}}, {.files = &files});
  }));
  EXPECT_THAT(ListCheckpoints("run", files), IsOkAndHolds(testing::ElementsAre(1)));
}

TEST(Crash, AnyPrefixOfTheCallsLeavesTheOldOrTheNewOne) { TryEveryPrefix(SavedPlaces()[1], 0); }

TEST(Crash, AlsoWhereTheOldOneIsRemoved) { TryEveryPrefix(SavedPlaces()[5], 1); }

// The checks above can fail: an index that is not synced is one that a crash may lose.
TEST(Crash, AFolderThatWasNotSyncedWouldBeLost) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, 1, 0));
  DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, 2, 0));
  for (const FileCall::Kind left_out : {FileCall::Kind::kSync, FileCall::Kind::kSyncFolder}) {
    std::vector<FileCall> calls;
    for (const FileCall& call : files.calls()) {
      if (call.kind != left_out) calls.push_back(call);
    }
    int lost = 0;
    for (const CrashKind kind : {CrashKind::kNothing, CrashKind::kNames, CrashKind::kSomeOfIt}) {
      const auto after = MemoryFiles::AfterCrash(calls, calls.size(), kind, 5);
      const absl::StatusOr<int64_t> step = StepThatLoads(*after);
      if (!step.ok() || *step != 2) ++lost;
    }
    EXPECT_GT(lost, 0);
  }
}

// Any one call that is refused: the save fails on all ranks, or is whole; what was there stays.
TEST(Crash, AnyCallMayFail) {
  const SavedPlace& place = SavedPlaces()[5];
  MemoryFiles counted;
  DT_ASSERT_OK(SaveAt(place, counted, 1, 1));
  const size_t first = counted.calls().size();
  DT_ASSERT_OK(SaveAt(place, counted, 2, 1));
  const std::vector<FileCall> calls = counted.calls();
  const size_t all = calls.size() - first;
  const auto removals = std::count_if(calls.begin() + first, calls.end(), [](const FileCall& call) {
    return call.kind == FileCall::Kind::kRemove && absl::StrContains(call.path, "-old.");
  });
  int failed = 0;
  for (size_t refused = 0; refused < all; ++refused) {
    MemoryFiles files;
    DT_ASSERT_OK(SaveAt(place, files, 1, 1));
    size_t call = 0;
    files.set_refuse([&](const FileCall&) {
      return call++ == refused ? absl::UnavailableError("cannot do it: Input/output error")
                               : absl::OkStatus();
    });
    const absl::Status saved = SaveAt(place, files, 2, 1);
    files.set_refuse(nullptr);
    DT_ASSERT_OK_AND_ASSIGN(const int64_t step, StepThatLoads(files));
    EXPECT_THAT(step, AnyOf(1, 2));
    if (saved.ok()) {
      EXPECT_EQ(step, 2);
    } else {
      ++failed;
      EXPECT_THAT(saved, StatusIs(absl::StatusCode::kUnavailable)) << refused;
    }
  }
  // All that matters: what fails without harm is the removal of what nobody needs.
  EXPECT_GT(removals, 2);
  EXPECT_GE(failed, static_cast<int>(all - removals));
}

}  // namespace
}  // namespace dtensor
