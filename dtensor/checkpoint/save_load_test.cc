// What is saved with one layout is loaded with another: every element bit by bit, written once.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/checkpoint/testing/saved_tensors.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status SaveAt(const SavedPlace& place, MemoryFiles& files, int64_t step,
                    const SaveOptions& options = {}, RunOptions run = {}) {
  return RunRanks(
      place.ranks,
      [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(SavedTensors tensors, MakeSavedTensors(context, place, step));
        SaveOptions own = options;
        own.files = &files;
        CheckpointSaver saver(context, "run", own);
        DT_RETURN_IF_ERROR(saver.Save({.step = step,
                                       .tensors = tensors,
                                       .aliases = {{"tied", "embedding.weight"}},
                                       .entries = {{"note", "line one\nline two"}}}));
        if (options.async) {  // what is written now is no longer saved
          for (auto& [name, tensor] : tensors) {
            DT_RETURN_IF_ERROR(BeforeWrite(tensor));
            DT_RETURN_IF_ERROR(
                context.device().FillBytes(tensor.local().raw(), 0xee, tensor.local().bytes()));
          }
        }
        return saver.Wait();
      },
      run);
}

std::vector<LoadTarget> TargetsOf(const SavedTensors& tensors) {
  std::vector<LoadTarget> targets;
  for (const auto& [name, tensor] : tensors) targets.push_back({name, tensor});
  return targets;
}

absl::Status LoadAt(const SavedPlace& place, MemoryFiles& files, int64_t step,
                    RunOptions run = {}) {
  return RunRanks(
      place.ranks,
      [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const SavedTensors tensors, MakeEmptyTensors(context, place));
        DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run", files));
        DT_RETURN_IF_ERROR(LoadTensors(context, reader, TargetsOf(tensors)));
        DT_RETURN_IF_ERROR(CheckSavedTensors(tensors, step));
        if (reader.index().entries.at("note") == "line one\nline two") return absl::OkStatus();
        return absl::InternalError("another note");
      },
      run);
}

TEST(SaveLoad, EachPlaceLoadsWhatEachSaved) {
  for (const SavedPlace& from : SavedPlaces()) {
    MemoryFiles files;
    DT_ASSERT_OK(SaveAt(from, files, 3));
    for (const SavedPlace& to : SavedPlaces()) {
      EXPECT_THAT(LoadAt(to, files, 3), IsOk()) << from.mesh << " to " << to.mesh;
    }
  }
}

TEST(SaveLoad, OnADeviceThatRunsLater) {
  const RunOptions deferred = {.device = Device::Kind::kDeferred};
  for (const bool async : {false, true}) {
    MemoryFiles files;
    DT_ASSERT_OK(SaveAt(SavedPlaces()[5], files, 3, {.async = async}, deferred));
    DT_EXPECT_OK(LoadAt(SavedPlaces()[4], files, 3, deferred));
  }
}

TEST(SaveLoad, AsynchronousOneHasTheValuesOfTheCall) {
  for (const SavedPlace& place : SavedPlaces()) {
    MemoryFiles files;
    DT_ASSERT_OK(SaveAt(place, files, 5, {.async = true}));
    EXPECT_THAT(LoadAt(SavedPlaces()[6], files, 5), IsOk()) << place.mesh;
  }
}

TEST(SaveLoad, EachElementIsWrittenOnce) {
  for (const SavedPlace& place : SavedPlaces()) {
    MemoryFiles files;
    DT_ASSERT_OK(SaveAt(place, files, 1));
    DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open("run", files));
    int64_t bytes = 0;
    for (const CheckpointFile& file : reader.index().files) bytes += file.slice_bytes;
    EXPECT_EQ(bytes, SavedBytes()) << place.mesh;
    EXPECT_EQ(reader.index().bytes(), SavedBytes());
    // Nothing beside: a header for each file, a word for each block, the index.
    int64_t all = 0;
    for (const std::string& path : files.Paths()) {
      all += static_cast<int64_t>(files.Bytes(path).size());
    }
    EXPECT_LT(all, SavedBytes() + 3000 * place.ranks + 20000) << place.mesh;
    DT_EXPECT_OK(reader.Verify());
  }
}

TEST(SaveLoad, ALoadReadsWhatItNeeds) {
  MemoryFiles files;
  const SavedPlace& rows = SavedPlaces()[1];
  DT_ASSERT_OK(SaveAt(rows, files, 1));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open("run", files));
  const int64_t before = files.bytes_read();
  // Two of the 129 rows of 2,400 bytes.
  std::vector<float> two(2 * 600);
  DT_ASSERT_OK(
      reader.Read("large", {IndexSet::Interval(3, 5), IndexSet::Interval(0, 600)}, two.data()));
  EXPECT_EQ(two[0], 3 * 600 * 3 + 1);
  EXPECT_EQ(two[1199], (5 * 600 - 1) * 3 + 1);
  EXPECT_EQ(reader.bytes_read(), 4800);
  // One block, and the file's header and table.
  EXPECT_LE(files.bytes_read() - before, kChecksumBlock + 3000);
  EXPECT_GE(files.bytes_read() - before, 4800);
}

TEST(SaveLoad, TensorsHaveTheirOtherNames) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveAt(SavedPlaces()[3], files, 1));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open("run", files));
  EXPECT_EQ(reader.index().Find("tied"), reader.index().Find("embedding.weight"));
  EXPECT_EQ(reader.index().Find("untied"), nullptr);
  float value = 0;
  DT_ASSERT_OK(reader.Read("tied", {IndexSet::Interval(2, 3), IndexSet::Interval(5, 6)}, &value));
  for (const auto& [rows, columns] : {std::pair(2, 41), std::pair(-1, 6)}) {
    EXPECT_THAT(
        reader.Read("tied", {IndexSet::Interval(rows, 3), IndexSet::Interval(5, columns)}, &value),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with the shape [")));
  }
  EXPECT_EQ(value, (2 * 40 + 5) * 3 + 1);
}

TEST(SaveLoad, AnyStepIsFoundAgain) {
  MemoryFiles files;
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  DT_ASSERT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, DeviceMesh(), {}, {2}, DType::kF32, 1));
    for (const int64_t step : {int64_t{0}, kLast}) {
      DT_RETURN_IF_ERROR(
          SaveCheckpoint(context, "run", {.step = step, .tensors = {{"x", x}}}, {.files = &files}));
    }
    return absl::OkStatus();
  }));
  DT_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader, CheckpointReader::Open("run", files));
  EXPECT_EQ(reader.index().step, kLast);
}

TEST(SaveLoad, FloatsBecomeOtherFloats) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, 1));
  DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=3"));
    DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run", files));
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      for (const std::string name : {"embedding.weight", "up.weight", "norm.weight", "cube"}) {
        const CheckpointTensor& saved = *reader.index().Find(name);
        const Layout whole = Layout::Replicated(mesh, static_cast<int>(saved.shape.size()));
        DT_ASSIGN_OR_RETURN(const Layout layout, whole.WithAxes({0}, Shard(0)));
        DT_ASSIGN_OR_RETURN(const DistributedTensor plain,
                            Full(context, layout, saved.shape, saved.dtype, 0));
        DT_ASSIGN_OR_RETURN(const DistributedTensor other,
                            Full(context, layout, saved.shape, dtype, 0));
        DT_RETURN_IF_ERROR(LoadTensors(context, reader, {{name, plain}, {name, other}}));
        DT_ASSIGN_OR_RETURN(const DistributedTensor cast, Cast(plain, dtype));
        DT_ASSIGN_OR_RETURN(const DistributedTensor wide_cast, Cast(cast, DType::kF64));
        DT_ASSIGN_OR_RETURN(const DistributedTensor wide_other, Cast(other, DType::kF64));
        DT_ASSIGN_OR_RETURN(const std::vector<double> expected, ToGlobal<double>(wide_cast));
        DT_ASSIGN_OR_RETURN(const std::vector<double> found, ToGlobal<double>(wide_other));
        if (found != expected) return absl::InternalError(absl::StrCat(name, " ", ToString(dtype)));
      }
    }
    return absl::OkStatus();
  }));
}

TEST(SaveLoad, KeepsTheLatest) {
  MemoryFiles files;
  for (int64_t step : {1, 2, 5, 7, 9}) {
    DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, step, {.keep_last = 2}));
  }
  EXPECT_THAT(ListCheckpoints("run", files), IsOkAndHolds(ElementsAre(7, 9)));
  for (const std::string& path : files.Paths()) {
    EXPECT_THAT(path, ::testing::StartsWith("run/step-")) << "what was removed left something";
  }
  // Somebody went back, and what came later stays.
  DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, 3, {.keep_last = 1}));
  EXPECT_THAT(ListCheckpoints("run", files), IsOkAndHolds(ElementsAre(3, 7, 9)));
}

// An old checkpoint may be a link to another run's, which is not this one's to remove.
TEST(SaveLoad, KeepLastRemovesALinkAndNotWhatItLeadsTo) {
  namespace fs = std::filesystem;
  const fs::path top = fs::path(testing::TempDir()) / "linked";
  fs::remove_all(top);
  const auto save = [&](const fs::path& run, int64_t step, int keep_last) {
    return RunRanks(1, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(SavedTensors tensors, MakeSavedTensors(context, SavedPlaces()[0], step));
      return SaveCheckpoint(context, run.native(), {.step = step, .tensors = tensors},
                            {.keep_last = keep_last});
    });
  };
  DT_ASSERT_OK(save(top / "old", 1, 0));
  fs::create_directories(top / "new");
  fs::create_directory_symlink(top / "old/step-00000001", top / "new/step-00000001");
  DT_ASSERT_OK(save(top / "new", 2, 1));
  EXPECT_THAT(ListCheckpoints(top / "new"), IsOkAndHolds(ElementsAre(2)));
  EXPECT_EQ(std::distance(fs::directory_iterator(top / "new"), fs::directory_iterator()), 1);
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(top / "old"));
  DT_EXPECT_OK(reader.Verify());
  fs::remove_all(top);
}

// As NFS does with a file that another process has open.
TEST(SaveLoad, AnOldCheckpointThatCannotBeRemovedYetGoesLater) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_ASSERT_OK(SaveAt(place, files, 1));
  files.set_refuse([](const FileCall& call) {
    const bool busy = call.kind == FileCall::Kind::kRemove &&
                      absl::StrContains(call.path, "step-00000001") &&
                      absl::EndsWith(call.path, ".tmp");
    return busy ? absl::AlreadyExistsError("Directory not empty") : absl::OkStatus();
  });
  DT_EXPECT_OK(SaveAt(place, files, 2, {.keep_last = 1}));
  EXPECT_THAT(ListCheckpoints("run", files), IsOkAndHolds(ElementsAre(2)));
  EXPECT_EQ(files.List("run")->size(), 2);
  files.set_refuse(nullptr);
  DT_EXPECT_OK(SaveAt(place, files, 3, {.keep_last = 1}));
  EXPECT_THAT(files.List("run"), IsOkAndHolds(ElementsAre("step-00000003")));
}

TEST(SaveLoad, AnOldCheckpointThatStaysIsNotAStepThatIsThere) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_ASSERT_OK(SaveAt(place, files, 1));
  files.set_refuse([](const FileCall& call) {
    return call.path == "run/step-00000001" ? absl::AlreadyExistsError("Directory not empty")
                                            : absl::OkStatus();
  });
  EXPECT_THAT(SaveAt(place, files, 2, {.keep_last = 1}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("step-00000002 is saved, but an older checkpoint cannot be "
                                 "removed: Directory not empty")));
}

TEST(SaveLoad, ACheckpointWhoseFolderCannotBeSyncedIsSaidToBeThere) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_ASSERT_OK(SaveAt(place, files, 1));
  files.set_refuse([&, renamed = false](const FileCall& call) mutable {
    if (call.kind == FileCall::Kind::kRename && call.to == "run/step-00000002") renamed = true;
    return renamed && call.kind == FileCall::Kind::kSyncFolder && call.path == "run"
               ? absl::UnavailableError("cannot sync the folder 'run': Input/output error")
               : absl::OkStatus();
  });
  EXPECT_THAT(SaveAt(place, files, 2, {.keep_last = 1}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("step-00000002 is saved, but may not outlast a crash: cannot sync "
                                 "the folder 'run': Input/output error")));
  DT_EXPECT_OK(LoadAt(place, files, 2));
  EXPECT_THAT(ListCheckpoints("run", files), IsOkAndHolds(ElementsAre(1, 2)));
}

// A rank's second slice of `w` has a name of its own in the file, whatever else there is.
TEST(SaveLoad, ATensorMayBeCalledAsASlice) {
  MemoryFiles files;
  const auto run = [](const std::function<absl::Status(Context&, const DeviceMesh&)>& fn) {
    return RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
      return fn(context, mesh);
    });
  };
  DT_ASSERT_OK(run([&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    CheckpointContent content;
    int value = 0;
    for (const char* const name : {"w", "w#1", "w#1#1", "w#2"}) {
      DT_ASSIGN_OR_RETURN(content.tensors[name],
                          Full(context, mesh, {Replicate()}, {3, 3}, DType::kF32, ++value));
    }
    return SaveCheckpoint(context, "run", content, {.files = &files});
  }));
  DT_EXPECT_OK(run([&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run", files));
    int value = 0;
    for (const char* const name : {"w", "w#1", "w#1#1", "w#2"}) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor tensor,
                          Full(context, mesh, {Replicate()}, {3, 3}, DType::kF32, 0));
      DT_RETURN_IF_ERROR(LoadTensors(context, reader, {{name, tensor}}));
      ++value;
      for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(tensor.local().data<float>()[i], value) << name;
    }
    return absl::OkStatus();
  }));
}

// --- What is refused.

// The error of two ranks, which is one.
absl::Status Refused(const std::function<absl::Status(Context&)>& fn) {
  absl::Status of_both;
  std::mutex mutex;
  int count = 0;
  const absl::Status run = RunRanks(2, [&](Context& context) -> absl::Status {
    const absl::Status mine = fn(context);
    const std::lock_guard lock(mutex);
    if (count++ == 0) of_both = mine;
    EXPECT_EQ(mine, of_both);
    return absl::OkStatus();  // and the world goes on
  });
  EXPECT_THAT(run, IsOk());
  EXPECT_EQ(count, 2);
  return of_both;
}

TEST(SaveLoad, RefusesWhatCannotBeSaved) {
  MemoryFiles files;
  const SaveOptions options = {.files = &files};
  const auto save = [&](const std::function<absl::Status(Context&, CheckpointContent&)>& change) {
    return Refused([&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
      CheckpointContent content;
      DT_ASSIGN_OR_RETURN(content.tensors["w"],
                          Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 1));
      DT_RETURN_IF_ERROR(change(context, content));
      return SaveCheckpoint(context, "run", content, options);
    });
  };
  const auto invalid = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) -> absl::Status {
                DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), {1, 2}, {2}));
                DT_ASSIGN_OR_RETURN(content.tensors["p"],
                                    FromLocal(context, mesh, {Partial()}, {2}, local));
                return absl::OkStatus();
              }),
              invalid("tensor 'p', [2] f32 on [\"tp\"=2] as [] P(sum: tp), is Partial"));
  EXPECT_THAT(save([](Context&, CheckpointContent& content) {
                content.tensors["u"] = {};
                return absl::OkStatus();
              }),
              invalid("tensor 'u' is undefined"));
  EXPECT_THAT(save([](Context&, CheckpointContent& content) {
                content.tensors["\xff"] = content.tensors["w"];
                return absl::OkStatus();
              }),
              invalid("the name '\\xff' is no UTF-8"));
  EXPECT_THAT(save([](Context&, CheckpointContent& content) {
                content.tensors["__checksums__"] = content.tensors["w"];
                return absl::OkStatus();
              }),
              invalid("no tensor can be called '__checksums__'"));
  EXPECT_THAT(save([](Context&, CheckpointContent& content) {
                content.aliases["x"] = "y";
                return absl::OkStatus();
              }),
              invalid("'x' is to be another name of 'y', and there is no such tensor"));
  EXPECT_THAT(save([](Context&, CheckpointContent& content) {
                content.step = -1;
                return absl::OkStatus();
              }),
              invalid("step -1 is negative"));
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) {
                if (context.rank() == 1) content.entries["only"] = "here";
                return absl::OkStatus();
              }),
              invalid("rank 1 saves another text as entry 'only' than rank 0"));
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) {
                if (context.rank() == 1) content.entries["\xff"] = "here";
                return absl::OkStatus();
              }),
              invalid("SaveCheckpoint: rank 1: the entry '\\xff' is no UTF-8"));
  EXPECT_THAT(files.Paths(), ElementsAre());
  EXPECT_THAT(ListCheckpoints("run", files), StatusIs(absl::StatusCode::kNotFound));
}

TEST(SaveLoad, RefusesAStepThatIsThere) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, 4));
  EXPECT_THAT(SaveAt(SavedPlaces()[2], files, 4),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("SaveCheckpoint: rank 0: 'run' has a checkpoint of step 4")));
  DT_EXPECT_OK(LoadAt(SavedPlaces()[0], files, 4));
  EXPECT_THAT(ListCheckpoints("run", files), IsOkAndHolds(ElementsAre(4)));
}

TEST(SaveLoad, RefusesWhatCannotBeLoaded) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveAt(SavedPlaces()[1], files, 4));
  const auto load = [&](const std::string& name, const Dims& shape, DType dtype) {
    return Refused([&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
      DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run", files));
      DT_ASSIGN_OR_RETURN(const DistributedTensor into,
                          Full(context, mesh, {Replicate()}, shape, dtype, 1));
      DT_ASSIGN_OR_RETURN(const DistributedTensor good,
                          Full(context, mesh, {Replicate()}, {40}, DType::kBF16, 1));
      const absl::Status status =
          LoadTensors(context, reader, {{"norm.weight", good}, {name, into}});
      // Nothing was written.
      DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<BFloat16>(good));
      EXPECT_EQ(static_cast<float>(values[17]), 1);
      return status;
    });
  };
  const auto invalid = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  EXPECT_THAT(load("wo", {2}, DType::kF32), invalid("tensor 'wo': checkpoint 'run/step-00000004' "
                                                    "has no tensor of this name"));
  EXPECT_THAT(load("up.weight", {13, 7}, DType::kF32),
              invalid("tensor 'up.weight': checkpoint 'run/step-00000004' has it with the shape "
                      "[7, 13]"));
  EXPECT_THAT(load("step", {}, DType::kF32), invalid("only floats become floats"));
  EXPECT_THAT(load("up.weight", {7, 13}, DType::kI64), invalid("only floats become floats"));
}

TEST(SaveLoad, SaysWhatIsThereWhereThereIsNoCheckpoint) {
  MemoryFiles files;
  const auto open = [&](const std::string& path) {
    return Refused([&](Context& context) { return OpenCheckpoint(context, path, files).status(); });
  };
  EXPECT_THAT(open("nowhere"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nowhere")));
  DT_ASSERT_OK(files.MakeFolder("model"));
  EXPECT_THAT(open("model"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("it has nothing")));
  DT_ASSERT_OK(WriteText(files, "model/config.json", "{}"));
  DT_ASSERT_OK(files.MakeFolder("model/step-7"));  // not as it would be written
  EXPECT_THAT(open("model"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("'model' is no checkpoint, and none is in it"),
                             HasSubstr("it has config.json, step-7"))));
  DT_ASSERT_OK(WriteText(files, "model/index.json", "{}"));
  EXPECT_THAT(open("model"), StatusIs(absl::StatusCode::kDataLoss,
                                      HasSubstr("'model/index.json': it does not begin as")));
  EXPECT_THAT(open("model/config.json"), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(SaveLoad, ARankThatCannotWriteFailsThemAll) {
  const SavedPlace& place = SavedPlaces()[5];
  for (const bool async : {false, true}) {
    MemoryFiles files;
    DT_ASSERT_OK(SaveAt(place, files, 1));
    const std::vector<std::string> before = files.Paths();
    files.set_refuse([](const FileCall& call) {
      const bool full = call.kind == FileCall::Kind::kAppend &&
                        absl::StrContains(call.path, "rank-00002.safetensors");
      return full ? absl::UnavailableError(
                        absl::StrCat("cannot write '", call.path, "': No space left on device"))
                  : absl::OkStatus();
    });
    EXPECT_THAT(SaveAt(place, files, 2, {.keep_last = 1, .async = async}),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("SaveCheckpoint: rank 2: tensor '"),
                               HasSubstr("rank-00002.safetensors': No space left on device"),
                               HasSubstr("what was saved before is still there"))));
    files.set_refuse(nullptr);
    EXPECT_EQ(files.Paths(), before) << "what was not saved is removed";
    DT_EXPECT_OK(LoadAt(SavedPlaces()[2], files, 1));
    DT_EXPECT_OK(SaveAt(place, files, 2));
  }
}

TEST(SaveLoad, AnIndexThatCannotBeWrittenIsNoCheckpoint) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_ASSERT_OK(SaveAt(place, files, 1));
  const std::vector<std::string> before = files.Paths();
  files.set_refuse([](const FileCall& call) {
    return call.kind == FileCall::Kind::kAppend && absl::EndsWith(call.path, "/index.json")
               ? absl::UnavailableError("No space left on device")
               : absl::OkStatus();
  });
  EXPECT_THAT(SaveAt(place, files, 2, {.keep_last = 1}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("No space left on device; step 2 is not saved, and what was saved "
                                 "before is still there")));
  EXPECT_EQ(files.Paths(), before);
}

// While a save is under way, and between two, with older ones to be removed.
TEST(SaveLoad, TheProgramMayGoToAnotherFolder) {
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  const fs::path top = fs::path(::testing::TempDir()) / "folders";
  fs::remove_all(top);
  for (const char* folder : {"a", "b/run/step-00000001"}) fs::create_directories(top / folder);
  fs::current_path(top / "a");
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("one=1"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Full(context, mesh, {Replicate()}, {8}, DType::kF32, 1));
    CheckpointSaver saver(context, "run", {.keep_last = 1, .async = true});
    DT_RETURN_IF_ERROR(saver.Save({.step = 2, .tensors = {{"x", x}}}));
    fs::current_path(top / "b");
    DT_RETURN_IF_ERROR(saver.Save({.step = 3, .tensors = {{"x", x}}}));
    return saver.Wait();
  }));
  fs::current_path(before);
  FileSystem& files = FileSystem::OfThisMachine();
  EXPECT_THAT(ListCheckpoints(top / "a/run", files), IsOkAndHolds(ElementsAre(3)));
  EXPECT_TRUE(fs::exists(top / "b/run/step-00000001")) << "another run's";
  EXPECT_THAT(files.List(top / "b/run"), IsOkAndHolds(ElementsAre("step-00000001")));
}

TEST(SaveLoad, WhatIsDroppedIsCompleted) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_ASSERT_OK(RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(SavedTensors tensors, MakeSavedTensors(context, place, 8));
    CheckpointSaver saver(context, "run", {.async = true, .files = &files});
    return saver.Save({.step = 8, .tensors = tensors, .entries = {{"note", "line one\nline two"}}});
  }));
  DT_EXPECT_OK(LoadAt(place, files, 8));
}

TEST(SaveLoad, TheNextSaveWaitsAndTellsOfTheOneBefore) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_EXPECT_OK(RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(SavedTensors tensors, MakeSavedTensors(context, place, 8));
    CheckpointSaver saver(context, "run", {.async = true, .files = &files});
    DT_RETURN_IF_ERROR(saver.Save({.step = 1, .tensors = tensors}));
    DT_RETURN_IF_ERROR(saver.Save({.step = 2, .tensors = tensors}));
    EXPECT_TRUE(files.List("run/step-00000001").ok());
    EXPECT_THAT(saver.Save({.step = 1, .tensors = tensors}),
                StatusIs(absl::StatusCode::kAlreadyExists));
    EXPECT_TRUE(files.List("run/step-00000002").ok());
    EXPECT_TRUE(saver.written());
    DT_EXPECT_OK(saver.Wait());
    return absl::OkStatus();
  }));
}

// Hosts that keep what they know of folders: no rank sees what the others have just written.
TEST(SaveLoad, WaitCommitsWhatNoRankSawComplete) {
  class Blind final : public MemoryFiles {
   public:
    absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
      if (absl::StrContains(folder, ".tmp")) return std::vector<std::string>();
      return MemoryFiles::List(folder);
    }
  };
  Blind files;
  const SavedPlace& place = SavedPlaces()[5];
  DT_ASSERT_OK(RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(SavedTensors tensors, MakeSavedTensors(context, place, 8));
    CheckpointSaver saver(context, "run", {.async = true, .files = &files});
    DT_RETURN_IF_ERROR(
        saver.Save({.step = 8, .tensors = tensors, .entries = {{"note", "line one\nline two"}}}));
    return saver.Wait();
  }));
  DT_EXPECT_OK(LoadAt(place, files, 8));
}

// As a network's file system does whose answer was lost: the second time the folder is not there.
TEST(SaveLoad, ARenameWhoseAnswerIsLostIsNoSuccess) {
  class Lossy final : public MemoryFiles {
   public:
    absl::Status Rename(const std::string& from, const std::string& to) override {
      const absl::Status status = MemoryFiles::Rename(from, to);
      const bool lost =
          status.ok() && absl::EndsWith(to, "-commit.tmp") && !had_lost_.exchange(true);
      return lost ? absl::NotFoundError("no such folder") : status;
    }

   private:
    std::atomic<bool> had_lost_ = false;
  };
  Lossy files;
  EXPECT_THAT(SaveAt(SavedPlaces()[5], files, 8),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step 8 is not saved")));
  DT_EXPECT_OK(SaveAt(SavedPlaces()[5], files, 9));
}

TEST(SaveLoad, TwoWorldsAtOnce) {
  MemoryFiles files;
  std::vector<absl::Status> results(2);
  std::vector<std::thread> worlds;
  for (int world = 0; world < 2; ++world) {
    worlds.emplace_back([&, world] {
      for (int64_t step = 1; step <= 10; ++step) {
        // Steps of its own, and one that both save: one of them is told so.
        const absl::Status own = SaveAt(SavedPlaces()[5], files, 100 * (world + 1) + step);
        const absl::Status both = SaveAt(SavedPlaces()[5], files, step);
        if (!own.ok()) results[world] = own;
        if (!both.ok() && !absl::IsAlreadyExists(both)) results[world] = both;
      }
    });
  }
  for (std::thread& world : worlds) world.join();
  for (const absl::Status& result : results) DT_EXPECT_OK(result);
  DT_ASSERT_OK_AND_ASSIGN(const std::vector<int64_t> steps, ListCheckpoints("run", files));
  EXPECT_EQ(steps.size(), 30);
  for (const int64_t step : steps) {
    DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader,
                            CheckpointReader::Open("run/" + CheckpointName(step), files));
    DT_EXPECT_OK(reader.Verify());
    EXPECT_EQ(reader.index().step, step);
  }
  for (const std::string& path : files.Paths())
    EXPECT_THAT(path, ::testing::StartsWith("run/step-"));
}

}  // namespace
}  // namespace dtensor
