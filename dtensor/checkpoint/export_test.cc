// Exports are ordinary safetensors files: whole tensors, in files of a limited size.
#include "dtensor/checkpoint/export.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/checkpoint/testing/saved_tensors.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

absl::Status Save(const SavedPlace& place, const std::string& folder) {
  return RunRanks(place.ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(SavedTensors tensors, MakeSavedTensors(context, place, 2));
    tensors["optimizer/exp_avg/cube"] = tensors["cube"];
    tensors["blocks/0/cube"] = tensors["cube"];
    return SaveCheckpoint(
        context, folder,
        {.step = 1, .tensors = tensors, .aliases = {{"tied", "embedding.weight"}}});
  });
}

TEST(Export, WritesWholeTensors) {
  const std::string run = Folder("run"), out = Folder("out/model");
  DT_ASSERT_OK(Save(SavedPlaces()[9], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  EXPECT_THAT(ExportCheckpoint(reader, out), IsOkAndHolds(ElementsAre("model.safetensors")));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file,
                          SafetensorsReader::Open(out + "/model.safetensors"));
  EXPECT_EQ(file.tensors().size(), 11) << "no state of an optimizer";
  DT_EXPECT_OK(file.Find("blocks/0/cube").status());
  EXPECT_EQ(file.metadata().at("tied"), "embedding.weight");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  DT_ASSERT_OK_AND_ASSIGN(const auto bytes, file.Read("large"));
  ASSERT_EQ(bytes.size(), 129 * 600 * 4);
  for (int64_t i = 0; i < 129 * 600; ++i) {
    float value;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    ASSERT_EQ(value, static_cast<float>(i * 3 + 2)) << i;
  }
  DT_ASSERT_OK_AND_ASSIGN(const auto step, file.Read("step"));
  EXPECT_EQ(static_cast<int>(step[0]), 2);
  EXPECT_EQ(file.Find("nothing")->shape, (Dims{0, 4}));
  EXPECT_THAT(ExportCheckpoint(reader, out),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("model.safetensors' is there")));
}

TEST(Export, WritesFilesOfSomeSize) {
  const std::string run = Folder("run2"), out = Folder("out2");
  DT_ASSERT_OK(Save(SavedPlaces()[4], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  DT_ASSERT_OK_AND_ASSIGN(const auto names,
                          ExportCheckpoint(reader, out, {.max_file_bytes = 20'000}));
  EXPECT_THAT(names,
              ElementsAre("model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                          "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                          "model.safetensors.index.json"));
  size_t tensors = 0;
  for (size_t i = 0; i < 4; ++i) {
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file,
                            SafetensorsReader::Open(out + "/" + names[i]));
    tensors += file.tensors().size();
  }
  EXPECT_EQ(tensors, 11);
  std::ifstream index(out + "/model.safetensors.index.json");
  const std::string text(std::istreambuf_iterator<char>(index), {});
  EXPECT_THAT(text, HasSubstr("\"large\": \"model-00003-of-00004.safetensors\""));
  constexpr int64_t kCube = 4224;  // which is there twice
  EXPECT_THAT(text, HasSubstr("\"total_size\": " + std::to_string(SavedBytes() + kCube)));
}

// Readers take a whole file before several.
TEST(Export, SeveralFilesBesideAWholeOneAreRefused) {
  MemoryFiles files;
  const std::string run = Folder("run4");
  DT_ASSERT_OK(Save(SavedPlaces()[1], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  DT_ASSERT_OK(ExportCheckpoint(reader, "out", {}, files).status());
  EXPECT_THAT(ExportCheckpoint(reader, "out", {.max_file_bytes = 100}, files),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("model.safetensors' is there")));
}

// What cannot be opened is there, too.
TEST(Export, WhatIsThereIsRefusedWhateverItIs) {
  const std::string run = Folder("run5");
  DT_ASSERT_OK(Save(SavedPlaces()[1], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  std::filesystem::create_directories(Folder("link"));
  std::filesystem::create_symlink("nowhere", Folder("link/model.safetensors"));
  std::filesystem::create_directories(Folder("folder/model.safetensors"));
  for (const std::string& out : {Folder("link"), Folder("folder")}) {
    EXPECT_THAT(ExportCheckpoint(reader, out), StatusIs(absl::StatusCode::kAlreadyExists,
                                                        HasSubstr("model.safetensors' is there")));
  }
  EXPECT_EQ(std::filesystem::read_symlink(Folder("link/model.safetensors")), "nowhere");
}

// One that begins while another writes takes nothing from it, and the later one is told.
TEST(Export, TwoAtOnceLeaveOneOfThemWhole) {
  class Meeting final : public MemoryFiles {
   public:
    absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override {
      auto file = MemoryFiles::CreateFile(path);
      if (auto meet = std::exchange(meet_, nullptr)) meet();
      return file;
    }
    std::function<void()> meet_;
  };
  Meeting files;
  const std::string run = Folder("run6");
  DT_ASSERT_OK(Save(SavedPlaces()[1], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader other, CheckpointReader::Open(run));
  files.meet_ = [&] { DT_EXPECT_OK(ExportCheckpoint(other, "out", {}, files)); };
  EXPECT_THAT(ExportCheckpoint(reader, "out", {}, files),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("model.safetensors' is there")));
  DT_ASSERT_OK(ExportCheckpoint(reader, "alone", {}, files));
  EXPECT_THAT(files.Paths(), ElementsAre("alone/model.safetensors", "out/model.safetensors"));
  EXPECT_EQ(files.Bytes("out/model.safetensors"), files.Bytes("alone/model.safetensors"));
}

// Hard links are what not every file system has.
TEST(Export, WhereAFileHasOneNameOnly) {
  MemoryFiles files;
  const std::string run = Folder("run7");
  DT_ASSERT_OK(Save(SavedPlaces()[1], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  files.set_refuse([](const FileCall& call) {
    return call.kind == FileCall::Kind::kLink ? absl::UnavailableError("Operation not permitted")
                                              : absl::OkStatus();
  });
  DT_EXPECT_OK(ExportCheckpoint(reader, "out", {}, files));
  EXPECT_THAT(files.Paths(), ElementsAre("out/model.safetensors"));
}

TEST(Export, ADiskThatIsFullLeavesNothing) {
  MemoryFiles files;
  const std::string run = Folder("run3");
  DT_ASSERT_OK(Save(SavedPlaces()[1], run));
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open(run));
  int calls = 0;
  files.set_refuse([&](const FileCall& call) {
    return call.kind == FileCall::Kind::kAppend && ++calls == 4
               ? absl::UnavailableError("No space left on device")
               : absl::OkStatus();
  });
  EXPECT_THAT(ExportCheckpoint(reader, "out", {}, files),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("No space left")));
  EXPECT_THAT(files.Paths(), ElementsAre());
}

}  // namespace
}  // namespace dtensor
