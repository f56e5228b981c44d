// Parts of tensors, files that are written piece by piece, and folders of several files.
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsFolderTest : public ::testing::Test {
 protected:
  SafetensorsFolderTest() : folder_(absl::StrCat(testing::TempDir(), "/folder", getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::string Path(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }
  void WriteText(absl::string_view name, absl::string_view text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  const std::string folder_;
};

// x[i, j, k] = 100 i + 10 j + k, [3, 4, 5].
std::vector<int32_t> Numbers() {
  std::vector<int32_t> values;
  for (int i = 0; i < 60; ++i) values.push_back(i / 20 * 100 + i / 5 % 4 * 10 + i % 5);
  return values;
}

absl::StatusOr<std::vector<int32_t>> Part(const SafetensorsReader& file,
                                          const std::vector<IndexSet>& region) {
  int64_t size = 1;
  for (const IndexSet& indices : region) size *= indices.size();
  std::vector<int32_t> values(size);
  const absl::Status status =
      file.ReadRegion("x", region, reinterpret_cast<std::byte*>(values.data()));
  if (!status.ok()) return status;
  return values;
}

TEST_F(SafetensorsFolderTest, ReadsPartsOfTensors) {
  const std::vector<int32_t> numbers = Numbers();
  const float before = 1;
  DT_ASSERT_OK(WriteSafetensors(
      Path("x"), {{{"a", DType::kF32, {}, &before}, {"x", DType::kI32, {3, 4, 5}, numbers.data()}}},
      {}));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(Path("x")));
  const auto all = [](int64_t n) { return IndexSet::Interval(0, n); };
  DT_ASSERT_OK_AND_ASSIGN(const auto whole, Part(file, {all(3), all(4), all(5)}));
  EXPECT_EQ(whole, numbers);
  DT_ASSERT_OK_AND_ASSIGN(const auto row, Part(file, {IndexSet::Interval(1, 2), all(4), all(5)}));
  EXPECT_EQ(row, std::vector<int32_t>(numbers.begin() + 20, numbers.begin() + 40));
  const IndexRun ends = {0, 1, 2, 2};  // 0 and 2
  const IndexSet apart = IndexSet::FromIntervals({&ends, 1});
  DT_ASSERT_OK_AND_ASSIGN(const auto corner,
                          Part(file, {apart, IndexSet::Interval(1, 3), IndexSet::Interval(4, 5)}));
  EXPECT_THAT(corner, ElementsAre(14, 24, 214, 224));
  DT_ASSERT_OK_AND_ASSIGN(const auto strided, Part(file, {IndexSet::Interval(2, 3), apart, apart}));
  EXPECT_THAT(strided, ElementsAre(200, 202, 220, 222));
  DT_ASSERT_OK_AND_ASSIGN(const auto none, Part(file, {all(3), IndexSet(), all(5)}));
  EXPECT_TRUE(none.empty());
  float scalar = 0;
  DT_EXPECT_OK(file.ReadRegion("a", {}, reinterpret_cast<std::byte*>(&scalar)));
  EXPECT_EQ(scalar, 1);
  EXPECT_THAT(file.ReadRegion("b", {}, nullptr), StatusIs(absl::StatusCode::kNotFound));
  std::filesystem::resize_file(Path("x"), std::filesystem::file_size(Path("x")) - 4);
  EXPECT_THAT(Part(file, {all(3), all(4), all(5)}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has changed")));
}

TEST_F(SafetensorsFolderTest, IsWrittenPieceByPiece) {
  const std::vector<int32_t> numbers = Numbers();
  const std::vector<SafetensorsEntry> entries = {{"x", DType::kI32, {3, 4, 5}},
                                                 {"y", DType::kI32, {1}}};
  {
    DT_ASSERT_OK_AND_ASSIGN(SafetensorsWriter file,
                            SafetensorsWriter::Create(Path(kSafetensorsFile), entries, {}));
    DT_ASSERT_OK(file.Append(numbers.data(), 240));
    EXPECT_THAT(file.Commit(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("4 B")));
  }
  EXPECT_FALSE(std::filesystem::exists(Path(kSafetensorsFile)));
  DT_ASSERT_OK_AND_ASSIGN(SafetensorsWriter file,
                          SafetensorsWriter::Create(Path(kSafetensorsFile), entries, {}));
  for (int i = 0; i < 60; i += 7) {
    DT_ASSERT_OK(file.Append(&numbers[i], std::min(7, 60 - i) * 4));
  }
  DT_ASSERT_OK(file.Append(&numbers[3], 4));
  DT_ASSERT_OK(file.Commit());
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder folder, SafetensorsFolder::Open(folder_));
  EXPECT_EQ(folder.tensors().size(), 2);
  DT_ASSERT_OK_AND_ASSIGN(const auto bytes, folder.tensors().at("x").file->Read("x"));
  EXPECT_EQ(std::memcmp(bytes.data(), numbers.data(), 240), 0);
}

TEST_F(SafetensorsFolderTest, MayHaveAnIndex) {
  const float one = 1, two = 2;
  DT_ASSERT_OK(WriteSafetensors(Path("f1"), {{{"a", DType::kF32, {}, &one}}}, {}));
  DT_ASSERT_OK(WriteSafetensors(Path("f2"), {{{"b", DType::kF32, {}, &two}}}, {}));
  WriteText(SafetensorsIndexName(), SafetensorsIndexText({{"a", "f1"}, {"b", "f2"}}, 8));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder folder, SafetensorsFolder::Open(folder_));
  EXPECT_EQ(folder.tensors().at("a").file->path(), Path("f1"));
  EXPECT_EQ(folder.tensors().at("b").file->path(), Path("f2"));
  const auto refused = [&](absl::string_view index, absl::string_view why) {
    WriteText(SafetensorsIndexName(), index);
    EXPECT_THAT(SafetensorsFolder::Open(folder_), Refuses(HasSubstr(why))) << index;
  };
  refused("[]", "no JSON object");
  refused("{\"weight_map\": []}", "no object \"weight_map\"");
  refused("{\"weight_map\": {\"a\": \"../f1\"}}", "'a' is no name of a file beside it");
  refused("{\"weight_map\": {\"b\": \"f1\"}}", "tensor 'b' is not in f1");
  WriteText(SafetensorsIndexName(), "{\"weight_map\": {\"a\": \"f3\"}}");
  EXPECT_THAT(SafetensorsFolder::Open(folder_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("f3")));
}

TEST_F(SafetensorsFolderTest, KnowsWhenAFileIsWrittenTo) {
  const std::vector<float> x = {1, 2};
  DT_ASSERT_OK(WriteSafetensors(Path(kSafetensorsFile), {{"x", DType::kF32, {2}, x.data()}}, {}));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder folder, SafetensorsFolder::Open(folder_));
  const SafetensorsReader& file = *folder.tensors().at("x").file;
  DT_EXPECT_OK(file.Read("x"));
  std::filesystem::last_write_time(
      Path(kSafetensorsFile),
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const auto changed = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has changed since"));
  EXPECT_THAT(file.Read("x"), changed);
  EXPECT_THAT(folder.SampledCrc32c(), changed);
  float two[2];
  EXPECT_THAT(file.ReadRegion("x", {IndexSet::Interval(0, 2)}, reinterpret_cast<std::byte*>(two)),
              changed);
}

// Its files are read all the same: they are open.
TEST_F(SafetensorsFolderTest, KnowsWhenAFileIsReplaced) {
  const std::vector<float> x = {1, 2}, y = {3, 4};
  const auto write = [&](const std::vector<float>& values) {
    return WriteSafetensors(Path(kSafetensorsFile), {{"x", DType::kF32, {2}, values.data()}}, {});
  };
  DT_ASSERT_OK(write(x));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsFolder folder, SafetensorsFolder::Open(folder_));
  DT_EXPECT_OK(folder.CheckInPlace());
  DT_ASSERT_OK(write(y));
  EXPECT_THAT(folder.CheckInPlace(), StatusIs(absl::StatusCode::kUnavailable,
                                              HasSubstr("model.safetensors': it was replaced")));
  DT_ASSERT_OK_AND_ASSIGN(const auto bytes, folder.tensors().at("x").file->Read("x"));
  EXPECT_EQ(std::memcmp(bytes.data(), x.data(), bytes.size()), 0);
  std::filesystem::remove(Path(kSafetensorsFile));
  EXPECT_THAT(folder.CheckInPlace(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("replaced")));
}

}  // namespace
}  // namespace dtensor
