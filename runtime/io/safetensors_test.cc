// Safetensors files, written, read, and broken.
#include "dtensor/runtime/io/safetensors.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "dtensor/runtime/io/safetensors_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

std::string Path() { return testing::TempDir() + "/file.safetensors"; }

void WriteBytes(const std::string& bytes) { std::ofstream(Path(), std::ios::binary) << bytes; }

std::string ReadBytes() {
  std::ifstream file(Path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The bytes of a file with this header and so many bytes of data: 0, 1, 2, ...
std::string FileOf(const std::string& header, int data_bytes) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  bytes += header;
  for (int i = 0; i < data_bytes; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

absl::StatusOr<SafetensorsReader> OpenFile(const std::string& header, int data_bytes) {
  WriteBytes(FileOf(header, data_bytes));
  return SafetensorsReader::Open(Path());
}

TEST(SafetensorsTest, EveryTypeComesBackAsItWasWritten) {
  std::vector<std::byte> data(6 * 8);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 + 1);
  std::vector<SafetensorsEntry> entries;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32,
                            DType::kI64, DType::kBool}) {
    entries.push_back({std::string(ToString(dtype)), dtype, {2, 3}, data.data()});
  }
  entries.push_back({"scalar", DType::kF32, {}, data.data()});
  entries.push_back({"empty", DType::kF32, {3, 0, 2}, data.data()});
  DT_ASSERT_OK(WriteSafetensors(Path(), entries, {{"format", "pt"}}));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(Path()));
  EXPECT_EQ(file.tensors().size(), entries.size());
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  for (const SafetensorsEntry& entry : entries) {
    SCOPED_TRACE(entry.name);
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsInfo info, file.Find(entry.name));
    EXPECT_EQ(info.dtype, entry.dtype);
    EXPECT_EQ(info.shape, entry.shape);
    const int64_t bytes = NumElements(entry.shape) * SizeOf(entry.dtype);
    EXPECT_THAT(file.Read(entry.name),
                IsOkAndHolds(std::vector<std::byte>(data.begin(), data.begin() + bytes)));
  }
}

// As Hugging Face's library for Python writes {"b": float32 [2], "a": uint8 [3]} with metadata:
// wider types first, padded with spaces.
TEST(SafetensorsTest, ReadsWhatHuggingFacesLibraryWrites) {
  DT_ASSERT_OK_AND_ASSIGN(
      const SafetensorsReader file,
      OpenFile(R"({"__metadata__":{"format":"np"},"b":{"dtype":"F32","shape":[2],)"
               R"("data_offsets":[0,8]},"a":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}} )"
               "      ",
               11));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsInfo a, file.Find("a"));
  EXPECT_EQ(a.type, "U8");
  EXPECT_EQ(a.dtype, std::nullopt);
  EXPECT_THAT(file.Read("a"), IsOkAndHolds(ElementsAre(std::byte{8}, std::byte{9}, std::byte{10})));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsInfo b, file.Find("b"));
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_THAT(file.Find("c"), StatusIs(kNotFound, HasSubstr("no tensor 'c'; it has 'a', 'b'")));
}

TEST(SafetensorsTest, AFileWithoutTensors) {
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, OpenFile("{}", 0));
  EXPECT_THAT(file.tensors(), IsEmpty());
  EXPECT_THAT(file.Read("q"), StatusIs(kNotFound, HasSubstr("it has none")));
}

TEST(SafetensorsTest, RefusesHeadersThatAreNone) {
  struct Case {
    std::string bytes, words;
  };
  for (const Case& c : {
           Case{"", "too short"},
           Case{"1234567", "too short"},
           Case{std::string(8, '\xff') + "{}", "header 18446744073709551615 B"},
           Case{std::string("\x03\0\0\0\0\0\0\0{}", 10), "10 B long, and its header 3 B"},
           Case{FileOf("", 0), "no JSON object"},
           Case{FileOf("{", 0), "no JSON object"},
           Case{FileOf("[]", 0), "no JSON object"},
           Case{FileOf("{} x", 0), "no JSON object"},
           Case{FileOf("{\"\xff\": 1}", 0), "no JSON object"},
           Case{FileOf("7", 0), "no JSON object"},
           Case{FileOf(std::string(1 << 20, '['), 0), "nested"},
           Case{FileOf(R"({"a":{"b":[[1]]}})", 0), "nested"},
           Case{FileOf(R"({"[[[[\"{{{{":1})", 0), "tensor '[[[[\"{{{{': is no JSON object"},
           Case{FileOf(R"({"a":{},"a":{}})", 0), "'a' twice"},
           Case{FileOf(R"({"a":{"shape":[1],"shape":[]}})", 0), "'shape' twice"},
           Case{FileOf(R"({"__metadata__":3})", 0), "__metadata__"},
           Case{FileOf(R"({"__metadata__":{"a":3}})", 0), "__metadata__ has 'a'"},
       }) {
    WriteBytes(c.bytes);
    EXPECT_THAT(SafetensorsReader::Open(Path()),
                StatusIs(kInvalid, AllOf(HasSubstr(Path()), HasSubstr(c.words))));
  }
}

// A file with one tensor 'x' of which this is said, and 8 bytes of data.
absl::Status OpenOne(const std::string& dtype, const std::string& shape,
                     const std::string& offsets) {
  return OpenFile(absl::StrCat(R"({"x":{"dtype":)", dtype, R"(,"shape":)", shape,
                               R"(,"data_offsets":)", offsets, "}}"),
                  8)
      .status();
}

TEST(SafetensorsTest, RefusesTensorsThatCannotBe) {
  struct Case {
    std::string dtype, shape, offsets, words;
  };
  DT_EXPECT_OK(OpenOne(R"("F32")", "[2]", "[0,8]"));
  for (const Case& c : {
           Case{R"("F33")", "[2]", "[0,8]", "dtype F33 is unknown; known are F32"},
           Case{"32", "[2]", "[0,8]", "dtype is no text"},
           Case{R"("F32")", "2", "[0,8]", "shape is no list"},
           Case{R"("F32")", "[-2]", "[0,8]", "shape has -2"},
           Case{R"("F32")", "[2.0]", "[0,8]", "shape has 2.0"},
           Case{R"("F32")", "[\"2\"]", "[0,8]", "shape has \"2\""},
           Case{R"("F32")", "[18446744073709551616]", "[0,8]", "shape has 1.8"},
           Case{R"("F32")", "[9223372036854775808]", "[0,8]", "shape has 9223372036854775808"},
           Case{R"("F32")", "[4294967296,4294967296]", "[0,8]", "too many bytes"},
           Case{R"("F32")", "[0,4294967296,4294967296]", "[0,0]", "too many bytes"},
           Case{R"("F32")", "[2305843009213693952]", "[0,0]", "too many bytes"},
           Case{R"("F32")", "[3]", "[0,8]", "needs 12 B"},
           Case{R"("F32")", "[2]", "[8,0]", "data_offsets are 8 to 0"},
           Case{R"("F32")", "[2]", "[0]", "not two"},
           Case{R"("F32")", "[2]", "[0,8,8]", "not two"},
           Case{R"("F32")", "[2]", "[8,16]", "begins at byte 8"},
           Case{R"("F32")", "[4]", "[0,16]", "ends at byte 16 of the 8"},
           Case{R"("F32")", "[1]", "[4,8]", "begins at byte 4"},
           Case{R"("F32")", "[1]", "[0,4]", "end at byte 4 of the 8"},
       }) {
    EXPECT_THAT(OpenOne(c.dtype, c.shape, c.offsets),
                StatusIs(kInvalid, AllOf(HasSubstr(Path()), HasSubstr(c.words))));
  }
  EXPECT_THAT(OpenFile(R"({"x":{"dtype":"F32","shape":[2]}})", 8),
              StatusIs(kInvalid, HasSubstr("tensor 'x': there is no data_offsets")));
  EXPECT_THAT(OpenFile(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                       12),
              StatusIs(kInvalid, HasSubstr("tensor 'y': it begins at byte 4")));
}

TEST(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(SafetensorsReader::Open("/nowhere/x"), StatusIs(kNotFound, HasSubstr("/nowhere/x")));
  EXPECT_THAT(SafetensorsReader::Open("/dev/zero"), StatusIs(kInvalid, HasSubstr("/dev/zero")));
  EXPECT_THAT(SafetensorsReader::Open(testing::TempDir()), StatusIs(kInvalid));
}

TEST(SafetensorsTest, AFileThatShrinksIsNoCrash) {
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file,
                          OpenFile(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  WriteBytes("short");
  EXPECT_THAT(file.Read("x"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has changed")));
}

// Whatever becomes of a file: it is refused, or what its header says can be read.
void ExpectReadOrRefused(const std::string& bytes) {
  WriteBytes(bytes);
  const absl::StatusOr<SafetensorsReader> file = SafetensorsReader::Open(Path());
  if (!file.ok()) {
    EXPECT_THAT(file, StatusIs(kInvalid, HasSubstr(Path())));
    return;
  }
  for (const auto& [name, info] : file->tensors()) {
    DT_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> data, file->Read(name));
    EXPECT_EQ(data.size(), info.end - info.begin);
  }
}

TEST(SafetensorsTest, BrokenFilesAreReadOrRefused) {
  const std::vector<double> data(6, 1.5);
  DT_ASSERT_OK(WriteSafetensors(
      Path(), {{"q", DType::kF64, {2, 3}, data.data()}, {"n", DType::kI32, {}, data.data()}},
      {{"note", "x"}}));
  const std::string whole = ReadBytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    WriteBytes(whole.substr(0, length));
    EXPECT_THAT(SafetensorsReader::Open(Path()), StatusIs(kInvalid)) << length;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      ExpectReadOrRefused(flipped);
    }
    for (const char* text : {"0", "-", "9999999999999999999", "[", "}", "\"", "\\"}) {
      std::string inserted = whole;
      ExpectReadOrRefused(inserted.insert(i, text));
    }
  }
}

}  // namespace
}  // namespace dtensor
