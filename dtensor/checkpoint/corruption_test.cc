// A checkpoint that was changed after it was written is refused; the error names the file and the
// tensor. DTENSOR_CHANGES says how many changes are tried.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/checkpoint/testing/saved_tensors.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

int NumChanges() {
  const char* text = std::getenv("DTENSOR_CHANGES");
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : 30;
}

// Loads on the ranks of a place.
absl::Status LoadAt(const SavedPlace& place, MemoryFiles& files) {
  return RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const SavedTensors tensors, MakeEmptyTensors(context, place));
    DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run", files));
    std::vector<LoadTarget> targets;
    for (const auto& [name, tensor] : tensors) targets.push_back({name, tensor});
    return LoadTensors(context, reader, targets);
  });
}

// The tensor whose slice has the byte of the file; empty for what is beside slices.
std::string TensorAt(const CheckpointIndex& index, const std::string& file, int64_t byte) {
  for (const auto& [name, tensor] : index.tensors) {
    for (const CheckpointSlice& slice : tensor.slices) {
      const CheckpointFile& of = index.files[slice.file];
      const int64_t at = byte - of.header_bytes - slice.begin;
      const int64_t bytes = NumElements(slice.region) * SizeOf(tensor.dtype);
      if (of.name == file && at >= 0 && at < bytes) return name;
    }
  }
  return "";
}

// One bit, one byte, a cut, more bytes, a run of zeros, or two bytes swapped.
std::string Changed(std::string bytes, size_t at, int kind, TestRandom& random) {
  switch (kind) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.Below(8)));
      break;
    case 1:
      bytes[at] = static_cast<char>(bytes[at] + 1 + random.Below(255));
      break;
    case 2:
      bytes.resize(at);
      break;
    case 3:
      bytes.insert(at, std::string(1 + random.Below(9), 'x'));
      break;
    case 4:
      bytes.replace(at, 512, std::string(std::min<size_t>(512, bytes.size() - at), '\0'));
      break;
    default:
      std::swap(bytes[at], bytes[random.Below(static_cast<int>(bytes.size()))]);
  }
  return bytes;
}

TEST(Corruption, EachChangeIsRefused) {
  TestRandom random;
  const int changes = NumChanges();
  int tried = 0;
  for (int round = 0; tried < changes; ++round) {
    const auto& place = SavedPlaces()[random.Below(static_cast<int>(SavedPlaces().size()))];
    MemoryFiles files;
    DT_ASSERT_OK(RunRanks(place.ranks, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const SavedTensors tensors, MakeSavedTensors(context, place, 1));
      return SaveCheckpoint(context, "run", {.step = 1, .tensors = tensors}, {.files = &files});
    }));
    DT_ASSERT_OK_AND_ASSIGN(CheckpointReader whole, CheckpointReader::Open("run", files));
    const CheckpointIndex index = whole.index();
    const std::vector<std::string> paths = files.Paths();
    for (int i = 0; i < 20 && tried < changes; ++i) {
      const std::string path = paths[random.Below(static_cast<int>(paths.size()))];
      const std::string file = path.substr(path.rfind('/') + 1), before = files.Bytes(path);
      const auto at = static_cast<size_t>(random.Below(static_cast<int>(before.size())));
      const int kind = random.Below(6);
      const std::string after = Changed(before, at, kind, random);
      if (after == before) continue;
      ++tried;
      files.SetBytes(path, after);
      absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open("run", files);
      const absl::Status verified = reader.ok() ? reader->Verify() : reader.status();
      const std::string what = absl::StrCat(path, ", byte ", at, ", kind ", kind);
      ASSERT_THAT(verified, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file))) << what;
      if (file != kCheckpointIndexFile) {
        EXPECT_THAT(verified.message(), HasSubstr("tensor '")) << what;
        const bool stays = after.size() == before.size() && kind < 2;
        const std::string name = stays ? TensorAt(index, file, static_cast<int64_t>(at)) : "";
        // In messages a name is in printable ASCII.
        if (!name.empty() && name[0] != '\xc3') {
          EXPECT_THAT(verified.message(), HasSubstr(absl::StrCat("tensor '", name, "'"))) << what;
        }
      }
      const auto& to = SavedPlaces()[random.Below(static_cast<int>(SavedPlaces().size()))];
      EXPECT_THAT(LoadAt(to, files), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)))
          << what << ", loaded at " << to.mesh;
      files.SetBytes(path, before);
    }
    DT_ASSERT_OK(whole.Verify());
  }
}

TEST(Corruption, AFileThatIsGoneIsNamed) {
  MemoryFiles files;
  const SavedPlace& place = SavedPlaces()[1];
  DT_ASSERT_OK(RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const SavedTensors tensors, MakeSavedTensors(context, place, 1));
    return SaveCheckpoint(context, "run", {.step = 1, .tensors = tensors}, {.files = &files});
  }));
  DT_ASSERT_OK(files.Remove("run/step-00000001/rank-00001.safetensors"));
  EXPECT_THAT(LoadAt(SavedPlaces()[3], files),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank-00001.safetensors")));
}

// An index whose checksum is right, and which says what cannot be: no reader goes astray.
TEST(Corruption, AnIndexOfSomethingElseIsRefused) {
  CheckpointIndex index;
  index.files.push_back({"rank-00000.safetensors", 1000, 100, 0, 800, 0});
  index.tensors["w"] = {
      DType::kF32, {4, 4}, {{0, 0, 0, {IndexSet::Interval(0, 4), IndexSet::Interval(0, 4)}}}};
  DT_ASSERT_OK(CheckpointIndex::Parse(index.ToText()));
  const auto refused = [&](const std::function<void(CheckpointIndex&)>& change) {
    CheckpointIndex other = index;
    change(other);
    return CheckpointIndex::Parse(other.ToText()).status();
  };
  const auto invalid = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  EXPECT_THAT(refused([](auto& other) { other.files[0].name = "../secret"; }), invalid("name"));
  EXPECT_THAT(refused([](auto& other) {
                other.files[0].bytes = other.files[0].header_bytes = int64_t{1} << 50;
              }),
              invalid("header_bytes"));
  EXPECT_THAT(refused([](auto& other) { other.files[0].header_bytes = 1001; }),
              invalid("header_bytes"));
  EXPECT_THAT(refused([](auto& other) { other.files[0].slice_bytes = 901; }),
              invalid("slice_bytes"));
  EXPECT_THAT(refused([](auto& other) { other.step = -1; }), invalid("step"));
  EXPECT_THAT(refused([](auto& other) { other.aliases["x"] = "y"; }), invalid("aliases"));
  const auto slice = [&](const std::function<void(CheckpointSlice&)>& change) {
    return refused([&](CheckpointIndex& other) { change(other.tensors["w"].slices[0]); });
  };
  EXPECT_THAT(slice([](auto& s) { s.file = 1; }), invalid("tensor 'w': it has no slice's file"));
  EXPECT_THAT(slice([](auto& s) { s.begin = 737; }), invalid("begin"));
  EXPECT_THAT(slice([](auto& s) { s.begin = -1; }), invalid("begin"));
  EXPECT_THAT(slice([](auto& s) { s.first_block = 25; }), invalid("block"));
  EXPECT_THAT(slice([](auto& s) { s.region[0] = IndexSet::Interval(0, 3); }), invalid("slices"));
  EXPECT_THAT(slice([](auto& s) { s.region[0] = IndexSet::Interval(1, 5); }), invalid("region"));
  EXPECT_THAT(slice([](auto& s) { s.region.pop_back(); }), invalid("region"));
  EXPECT_THAT(refused([](auto& other) {
                other.tensors["w"].shape = {4, 4, 1};
              }),
              invalid("region"));
  EXPECT_THAT(refused([](auto& other) {
                other.tensors["w"].slices.push_back(other.tensors["w"].slices[0]);
              }),
              invalid("slices"));
}

}  // namespace
}  // namespace dtensor
