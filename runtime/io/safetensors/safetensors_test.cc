// Safetensors files, written, read, and broken.
#include "dtensor/runtime/io/safetensors/safetensors.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/runtime/testing/status_matchers.h"
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
           Case{FileOf(std::string(1 << 20, '['), 0), "no JSON object"},
           Case{FileOf(R"({"a":{"b":)" + std::string(1 << 20, '['), 0), "nested"},
           Case{FileOf(R"({"a":{"b":{"c":{)", 0), "nested"},
           Case{FileOf(R"({"a":{"dtype":[]}})", 0), "dtype is no text"},
           Case{FileOf(R"({"a":{"shape":{}}})", 0), "shape is no list"},
           Case{FileOf(R"({"a":[]})", 0), "tensor 'a': is no JSON object"},
           Case{FileOf(R"({"a":{"b":[[1]]}})", 0), "nested"},
           Case{FileOf(R"({"[[[[\"{{{{":1})", 0), "tensor '[[[[\\\"{{{{': is no JSON object"},
           Case{FileOf(absl::StrCat(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)",
                                    R"("a":{}})"),
                       0),
                "'a' twice"},
           Case{FileOf(R"({"a":{"shape":[1],"shape":[]}})", 0), "'shape' twice"},
           Case{FileOf(R"({"__metadata__":3})", 0), "__metadata__"},
           Case{FileOf(R"({"__metadata__":{"a":3}})", 0), "__metadata__ has 'a'"},
           Case{FileOf(R"({"__metadata__":{"a":[]}})", 0), "__metadata__ has 'a'"},
           Case{FileOf(R"({"__metadata__":{"shape":[1]}})", 0), "__metadata__ has 'shape'"},
           Case{FileOf(R"({"__metadata__":{"a":"","a":""}})", 0), "'a' twice"},
           Case{FileOf(R"({"__metadata__":{},"__metadata__":{}})", 0), "'__metadata__' twice"},
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
           Case{R"("F32")", "[18446744073709551616]", "[0,8]", "shape has 18446744073709551616"},
           Case{R"("F32")", "[9223372036854775808]", "[0,8]", "shape has 9223372036854775808"},
           Case{R"("F32")", "[4294967296,4294967296]", "[0,8]", "more than 2^56 elements"},
           Case{R"("F32")", "[0,4294967296,4294967296]", "[0,0]", "more than 2^56 elements"},
           Case{R"("F32")", "[2305843009213693952]", "[0,0]", "more than 2^56 elements"},
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

// Well-formed, and a few bytes on the disk: nothing is in it.
TEST(SafetensorsTest, AFileThatSaysItIsLargeIsNoCrash) {
  constexpr int64_t kBytes = int64_t{1} << 43;
  const std::string size = absl::StrCat(kBytes);
  const std::string bytes = FileOf(
      absl::StrCat(R"({"x":{"dtype":"U8","shape":[)", size, R"(],"data_offsets":[0,)", size, "]}}"),
      0);
  WriteBytes(bytes);
  std::error_code error;
  std::filesystem::resize_file(Path(), bytes.size() + kBytes, error);
  if (error) GTEST_SKIP() << "no file may be so large here: " << error.message();
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(Path()));
// Sanitizers end a process that asks for so much.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_THAT(file.Read("x"), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr(absl::StrCat(size, " bytes"))));
#endif
  std::byte last;
  DT_EXPECT_OK(file.ReadRegion("x", {IndexSet::Interval(kBytes - 1, kBytes)}, &last));
}

constexpr float kOne = 1;

// Whoever replaces a file by another does not change what is open.
TEST(SafetensorsTest, AFileThatIsReplacedIsReadAsItWas) {
  const float two = 2;
  DT_ASSERT_OK(WriteSafetensors(Path(), {{"x", DType::kF32, {1}, &kOne}}, {}));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(Path()));
  DT_ASSERT_OK(WriteSafetensors(Path(), {{"x", DType::kF32, {1}, &two}}, {}));
  DT_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, file.Read("x"));
  float read = 0;
  ASSERT_EQ(bytes.size(), sizeof(read));
  std::memcpy(&read, bytes.data(), sizeof(read));
  EXPECT_EQ(read, 1);
}

std::vector<std::string> FilesBeside(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    names.push_back(entry.path().filename());
  }
  return names;
}

// A limit on files stands for a disk that is full.
TEST(SafetensorsTest, AWriteThatFailsLeavesTheOldFile) {
  DT_ASSERT_OK(WriteSafetensors(Path(), {{"old", DType::kF32, {1}, &kOne}}, {}));
  const std::vector<float> large(1 << 20, 2.0f);
  const auto files = FilesBeside(Path());
  std::signal(SIGXFSZ, SIG_DFL);  // which would end the process
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status =
      WriteSafetensors(Path(), {{"new", DType::kF32, {1 << 20}, large.data()}}, {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(Path())));
  EXPECT_EQ(FilesBeside(Path()), files);
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(Path()));
  EXPECT_THAT(file.Find("old"), IsOk());
}

// Whatever Open refuses is not written.
TEST(SafetensorsTest, RefusesToWriteWhatCannotBeRead) {
  std::filesystem::remove(Path());
  const auto refuses = [](const SafetensorsEntry& entry, const std::string& words) {
    EXPECT_THAT(WriteSafetensors(Path(), {entry}, {}), StatusIs(kInvalid, HasSubstr(words)));
  };
  refuses({"a\xff", DType::kF32, {1}, &kOne}, "tensor 'a\\xff': the name is no UTF-8");
  refuses({"\xed\xa0\x80", DType::kF32, {1}, &kOne}, "no UTF-8");  // half of a surrogate pair
  refuses({"__metadata__", DType::kF32, {1}, &kOne}, "__metadata__");
  refuses({"a", DType::kF32, {-1}, &kOne}, "tensor 'a': shape: no tensor has shape [-1]");
  refuses({"a", DType::kF32, {-1, -1}, &kOne}, "shape [-1, -1]: the size -1 is negative");
  refuses({"a", DType::kF32, {1 << 30, 1 << 30, 1 << 30}, &kOne}, "more than 2^56 elements");
  refuses({"a", DType::kF32, {0, int64_t{1} << 62, 1 << 20}, &kOne}, "more than 2^56 elements");
  refuses({"a", DType::kF32, Dims(65, 1), &kOne}, "65 dimensions");
  refuses({"a", DType::kF32, {1}, nullptr}, "no data");
  refuses({std::string(100'000'000, 'a'), DType::kF32, {1}, &kOne}, "100000000 B or less");
  std::vector<SafetensorsEntry> many;
  for (int i = 0; i < 32; ++i) {
    many.push_back({absl::StrCat(i), DType::kF32, {int64_t{1} << 56}, &kOne});
  }
  EXPECT_THAT(WriteSafetensors(Path(), many, {}),
              StatusIs(kInvalid, HasSubstr("tensor '31': shape [72057594037927936] makes the")));
  EXPECT_THAT(
      WriteSafetensors(Path(), {{"a", DType::kF32, {}, &kOne}, {"a", DType::kF32, {}, &kOne}}, {}),
      StatusIs(kInvalid, HasSubstr("tensor 'a': the name occurs twice")));
  EXPECT_THAT(WriteSafetensors(Path(), {}, {{"a\xff", "b"}}),
              StatusIs(kInvalid, HasSubstr("metadata 'a\\xff'")));
  EXPECT_THAT(WriteSafetensors(Path(), {}, {{"a", "\xff"}}),
              StatusIs(kInvalid, HasSubstr("metadata 'a'")));
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

TEST(SafetensorsTest, NamesThatAreOddButText) {
  for (const std::string& name :
       {std::string(), std::string("\0\n\"\\", 4), std::string("\xe2\x82\xac")}) {
    DT_ASSERT_OK(WriteSafetensors(Path(), {{name, DType::kF32, {1}, &kOne}}, {{name, name}}));
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(Path()));
    EXPECT_THAT(file.Find(name), IsOk());
    EXPECT_THAT(file.metadata(), ElementsAre(Pair(name, name)));
  }
}

// A cost that grows with the square of their number would take hours here.
TEST(SafetensorsTest, AMillionTensors) {
  constexpr int kTensors = 1'000'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    absl::StrAppend(&header, i == 0 ? "" : ",", "\"t", i,
                    R"(":{"dtype":"BOOL","shape":[1],"data_offsets":[)", i, ",", i + 1, "]}");
  }
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, OpenFile(header + "}", kTensors));
  EXPECT_EQ(file.tensors().size(), kTensors);
  EXPECT_THAT(file.Read("t257"), IsOkAndHolds(ElementsAre(std::byte{1})));
  const absl::Status missing = file.Find("x").status();
  EXPECT_THAT(missing, StatusIs(kNotFound, HasSubstr("and 999990 others")));
  EXPECT_LT(missing.message().size(), 4000);
}

// What a file says at great length is refused at its beginning, in a few words.
TEST(SafetensorsTest, MessagesAreShort) {
  const std::string long_text(1 << 20, 'x');
  std::string ones = "1";
  for (int i = 0; i < 1 << 20; ++i) ones += ",1";
  for (const std::string& header :
       {absl::StrCat(R"({"x":{"dtype":"F32","shape":[)", ones, R"(],"data_offsets":[0,4]}})"),
        absl::StrCat(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[)", ones, "]}}"),
        absl::StrCat(R"({"x":{"dtype":")", long_text, R"("}})"),
        absl::StrCat(R"({"x":{"dtype":"F32","shape":[")", long_text, R"("]}})"),
        absl::StrCat(R"({"x":{"dtype":"F32","shape":[)", std::string(1 << 20, '7'), "]}}"),
        absl::StrCat("{\"", long_text, R"(":{"dtype":"F32"}})"),
        absl::StrCat("{\"", long_text, "\":{},\"", long_text, "\":{}}"),
        absl::StrCat(R"({"__metadata__":{")", long_text, R"(":1}})")}) {
    const absl::Status status = OpenFile(header, 4).status();
    EXPECT_THAT(status, StatusIs(kInvalid, HasSubstr(Path()))) << header.substr(0, 60);
    EXPECT_LT(status.message().size(), 4000) << header.substr(0, 60);
  }
}

TEST(SafetensorsTest, StatesItsLimits) {
  const auto header = [](int dims) {
    std::string sizes = "1";
    for (int i = 1; i < dims; ++i) sizes += ",1";
    return absl::StrCat(R"({"x":{"dtype":"F32","shape":[)", sizes, R"(],"data_offsets":[0,4]}})");
  };
  EXPECT_THAT(OpenFile(header(64), 4), IsOk());
  EXPECT_THAT(OpenFile(header(65), 4), StatusIs(kInvalid, HasSubstr("64 dimensions")));
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
