// dtensor ring --run, without the program around it.
#include "dtensor/tools/cli/ring/ring_run.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cli/ring/ring_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

RingFlags Flags(std::string mesh, std::string pattern, std::string mask, std::string dtype) {
  RingFlags flags;
  flags.mesh = std::move(mesh);
  flags.pattern = std::move(pattern);
  flags.mask = std::move(mask);
  flags.dtype = std::move(dtype);
  flags.batch = 2, flags.heads = 4, flags.kv_heads = 2, flags.seq = 37, flags.head_dim = 8;
  flags.run = true;
  return flags;
}

// Flags that leave all to a file.
RingFlags FileFlags(std::string mesh, const std::string& in) {
  RingFlags flags;
  flags.mesh = std::move(mesh);
  flags.mask = "causal";
  flags.run = true;
  flags.in = in;
  return flags;
}

std::string Path(const std::string& name) { return testing::TempDir() + "/" + name; }

void ExpectRight(const RingFlags& flags) {
  SCOPED_TRACE(absl::StrCat(flags.mesh, " ", flags.pattern, " ", flags.mask, " ", *flags.dtype));
  DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome, RunRing(flags, true));
  EXPECT_TRUE(outcome.ok) << outcome.text;
  const json run = json::parse(outcome.text);
  EXPECT_TRUE(run["ok"]);
  EXPECT_EQ(run["counted_bytes"], run["planned_bytes"]);
  EXPECT_GE(run["counted_peak_bytes_per_rank"], run["peak_bytes_per_rank"]);
  ASSERT_EQ(run["tensors"].size(), 5);
  for (const json& tensor : run["tensors"]) {
    EXPECT_GT(tensor["error"], 0) << tensor;
    EXPECT_LE(tensor["error"], tensor["limit"]) << tensor;
    EXPECT_EQ(tensor.contains("ratio"), *flags.dtype == "bf16" || *flags.dtype == "f16");
  }
}

TEST(RingRunTest, EveryPatternMaskAndType) {
  for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
    for (const char* mask : {"full", "causal", "window:6", "prefix:9", "documents:0,5,23"}) {
      for (const char* pattern : {"ring", "zigzag", "striped"}) {
        ExpectRight(Flags("cp=4", pattern, mask, dtype));
      }
      ExpectRight(Flags("node=2,cp=2", "double_ring", mask, dtype));
    }
  }
}

TEST(RingRunTest, OneRankToThirtyTwo) {
  for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
    for (const char* mesh : {"cp=1", "cp=2", "cp=3", "cp=8", "cp=32"}) {
      ExpectRight(Flags(mesh, "zigzag", "causal", dtype));
    }
    ExpectRight(Flags("node=4,cp=8", "double_ring", "causal", dtype));
  }
}

TEST(RingRunTest, RanksMayStandBy) { ExpectRight(Flags("cp=2@3,1", "ring", "causal", "f32")); }

TEST(RingRunTest, NothingToDo) {
  RingFlags flags = Flags("cp=2", "ring", "full", "f32");
  flags.seq = 0;
  DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome, RunRing(flags, false));
  EXPECT_TRUE(outcome.ok);
  EXPECT_THAT(outcome.text, HasSubstr("verdict    all within the limits\n"));
}

// Each exchange is told of, and the last one ends the ring.
TEST(RingRunTest, TellsHowFarItIs) {
  const auto device = MakeCpuDevice();
  for (const auto& [pattern, mask] :
       {std::pair("ring", "full"), std::pair("zigzag", "causal"), std::pair("ring", "window:4")}) {
    RingFlags flags = Flags("cp=4", pattern, mask, "f32");
    DT_ASSERT_OK_AND_ASSIGN(const RingProblem problem, ParseRing(flags));
    DT_ASSERT_OK_AND_ASSIGN(const RingSchedule schedule, RingSchedule::Create(problem));
    DT_ASSERT_OK_AND_ASSIGN(const RingInputs inputs, RandomInputs(*device, problem));
    std::vector<double> told;
    DT_EXPECT_OK(
        RunOnThreads(*device, schedule, inputs, [&](double done) { told.push_back(done); }));
    ASSERT_FALSE(told.empty());
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_DOUBLE_EQ(told[i], static_cast<double>(i + 1) / static_cast<double>(told.size()));
    }
  }
}

TEST(RingRunTest, TheVerdictNamesWhatIsWrong) {
  RingReport report;
  for (RingError& error : report.errors) error = {.name = "dk", .error = 1e-6, .limit = 3e-6};
  report.counted_bytes = report.planned_bytes = 8;
  EXPECT_EQ(Verdict(report), "");
  report.errors[3].error = 4e-6;
  EXPECT_EQ(Verdict(report), "the error of dk is 4.00e-06, beyond its limit of 3.00e-06");
  report.errors[3].error = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Verdict(report), HasSubstr("the error of dk is nan"));
  report.errors[3].error = 0;
  report.counted_bytes = 7;
  EXPECT_EQ(Verdict(report), "the schedule says 8 B, and the ranks counted 7");
}

// Random q, k, v and do in this type; 6 query heads read 2 of keys.
RingInputs WriteInputs(Device& device, const std::string& path, DType dtype) {
  RingProblem problem;
  problem.batch = 2, problem.heads = 6, problem.kv_heads = 2, problem.head_dim = 4;
  problem.q_length = problem.kv_length = 11;
  problem.dtype = dtype;
  RingInputs in = RandomInputs(device, problem).value();
  DT_EXPECT_OK(WriteSafetensors(path,
                                {{"q", dtype, in.q.shape(), in.q.raw()},
                                 {"k", dtype, in.k.shape(), in.k.raw()},
                                 {"v", dtype, in.v.shape(), in.v.raw()},
                                 {"do", dtype, in.dout.shape(), in.dout.raw()}},
                                {}));
  return in;
}

template <typename T>
std::vector<T> ReadValues(const SafetensorsReader& file, const std::string& name) {
  const std::vector<std::byte> bytes = file.Read(name).value();
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(RingRunTest, FromAFileIntoAFile) {
  const auto device = MakeCpuDevice();
  const std::string in = Path("in.safetensors"), out = Path("out.safetensors");
  const RingInputs inputs = WriteInputs(*device, in, DType::kF32);
  RingFlags flags = FileFlags("cp=3", in);
  flags.pattern = "zigzag";
  flags.out = out;
  DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome, RunRing(flags, true));
  EXPECT_TRUE(outcome.ok) << outcome.text;
  const json run = json::parse(outcome.text);
  EXPECT_EQ(run["kv_heads"], 2);
  EXPECT_EQ(run["dtype"], "f32");

  // In the global order of positions, as one rank has them.
  RingProblem problem;
  problem.batch = 2, problem.heads = 6, problem.kv_heads = 2, problem.head_dim = 4;
  problem.q_length = problem.kv_length = 11;
  problem.mask = AttentionMask::Causal();
  DT_ASSERT_OK_AND_ASSIGN(const RingOutputs want,
                          RunOnOneRank(*device, problem, inputs, DType::kF32));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(out));
  EXPECT_EQ(file.tensors().size(), 5);
  for (const auto& [name, tensor] : want.Named()) {
    SCOPED_TRACE(name);
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsInfo info, file.Find(name));
    EXPECT_EQ(info.shape, tensor.shape());
    EXPECT_EQ(info.dtype, DType::kF32);
    EXPECT_THAT(ReadValues<float>(file, name),
                testing::Pointwise(testing::FloatNear(1e-5), ToHost<float>(tensor).value()));
  }
}

TEST(RingRunTest, AFilesValuesAreConvertedToTheTypeThatRuns) {
  const auto device = MakeCpuDevice();
  const std::string in = Path("in.safetensors"), out = Path("out.safetensors");
  for (const DType stored : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    WriteInputs(*device, in, stored);
    for (const char* dtype : {"f64", "f32", "bf16", "f16"}) {
      SCOPED_TRACE(absl::StrCat(ToString(stored), " to ", dtype));
      RingFlags flags = FileFlags("cp=2", in);
      flags.dtype = dtype;
      flags.out = out;
      DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome, RunRing(flags, false));
      EXPECT_TRUE(outcome.ok) << outcome.text;
      DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, SafetensorsReader::Open(out));
      EXPECT_EQ(file.Find("dq")->dtype, ParseDType(dtype).value());
      EXPECT_EQ(file.Find("lse")->dtype, flags.dtype == "f64" ? DType::kF64 : DType::kF32);
    }
    RingFlags follows = FileFlags("cp=2", in);
    EXPECT_EQ(json::parse(RunRing(follows, true)->text)["dtype"], std::string(ToString(stored)));
  }
}

TEST(RingRunTest, FlagsThatAreGivenMustBeTheFiles) {
  const auto device = MakeCpuDevice();
  const std::string in = Path("in.safetensors");
  WriteInputs(*device, in, DType::kF32);
  RingFlags flags = FileFlags("cp=2", in);
  flags.batch = 2, flags.heads = 6, flags.kv_heads = 2, flags.seq = 11, flags.head_dim = 4;
  DT_EXPECT_OK(RunRing(flags, false));
  const auto refused = [&](std::optional<int64_t> RingFlags::*flag, const char* words) {
    RingFlags wrong = flags;
    wrong.*flag = 3;
    EXPECT_THAT(RunRing(wrong, false), StatusIs(kInvalid, AllOf(HasSubstr(words), HasSubstr(in))));
  };
  refused(&RingFlags::batch, "--batch: 3, and the tensors of");
  refused(&RingFlags::heads, "--heads: 3, and the tensors of");
  refused(&RingFlags::kv_heads, "--kv-heads: 3, and the tensors of");
  refused(&RingFlags::seq, "--seq: 3, and the tensors of");
  refused(&RingFlags::head_dim, "--head-dim: 3, and the tensors of");
}

TEST(RingRunTest, RefusesTensorsThatDoNotFit) {
  const std::string in = Path("in.safetensors");
  std::vector<float> ones(1024, 1);
  struct Stored {
    DType dtype;
    Dims q, k, v, dout;
  };
  const Dims good = {1, 4, 6, 8}, keys = {1, 2, 6, 8};
  const auto refused = [&](const Stored& s, const char* words) {
    DT_EXPECT_OK(WriteSafetensors(in,
                                  {{"q", s.dtype, s.q, ones.data()},
                                   {"k", s.dtype, s.k, ones.data()},
                                   {"v", s.dtype, s.v, ones.data()},
                                   {"do", s.dtype, s.dout, ones.data()}},
                                  {}));
    EXPECT_THAT(RunRing(FileFlags("cp=2", in), false), StatusIs(kInvalid, HasSubstr(words)));
  };
  refused({DType::kF32, {4, 6, 8}, keys, keys, good}, "tensor 'q' is [4, 6, 8] F32; give [batch");
  refused({DType::kI32, good, keys, keys, good}, "tensor 'q' is [1, 4, 6, 8] I32; give [batch");
  refused({DType::kF32, good, {1, 2, 5, 8}, keys, good}, "it must be [1, 2, 6, 8]; keys are as");
  refused({DType::kF32, good, keys, {1, 1, 6, 8}, good}, "tensor 'v' is [1, 1, 6, 8], and beside");
  refused({DType::kF32, good, keys, keys, keys}, "tensor 'do' is [1, 2, 6, 8]");
  refused({DType::kF32, good, {1, 3, 6, 8}, {1, 3, 6, 8}, good}, "4 heads are not divisible by 3");
  ones[7] = std::numeric_limits<float>::infinity();
  refused({DType::kF32, good, keys, keys, good},
          "tensor 'q' has values that are not finite in f32");
  ones[7] = 1e30F;
  RingFlags half = FileFlags("cp=2", in);
  half.dtype = "f16";
  DT_ASSERT_OK(WriteSafetensors(in,
                                {{"q", DType::kF32, good, ones.data()},
                                 {"k", DType::kF32, keys, ones.data()},
                                 {"v", DType::kF32, keys, ones.data()},
                                 {"do", DType::kF32, good, ones.data()}},
                                {}));
  EXPECT_THAT(RunRing(half, false), StatusIs(kInvalid, HasSubstr("not finite in f16; mend them")));

  DT_ASSERT_OK(WriteSafetensors(in, {{"q", DType::kF32, good, ones.data()}}, {}));
  EXPECT_THAT(RunRing(FileFlags("cp=2", in), false),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no tensor 'k'; it has 'q'")));
  EXPECT_THAT(RunRing(FileFlags("cp=2", "/nowhere/x"), false),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--in: ")));
  std::ofstream(in) << "no tensors here";
  EXPECT_THAT(RunRing(FileFlags("cp=2", in), false), StatusIs(kInvalid, HasSubstr("--in: ")));
}

TEST(RingRunTest, RefusesWhatCannotRun) {
  RingFlags flags = Flags("cp=2", "ring", "full", "f32");
  flags.out = "/nowhere/out.safetensors";
  EXPECT_THAT(RunRing(flags, false), StatusIs(kInvalid, HasSubstr("--out: cannot write")));
  flags.run = false;
  EXPECT_THAT(RunRing(flags, false), StatusIs(kInvalid, HasSubstr("--out: files are")));
  flags.in = "x";
  EXPECT_THAT(RunRing(flags, false), StatusIs(kInvalid, HasSubstr("--in: files are")));
  flags.progress = true;
  EXPECT_THAT(RunRing(flags, false), StatusIs(kInvalid, HasSubstr("--progress: ")));
  EXPECT_THAT(RunRing(Flags("cp=65", "ring", "full", "f32"), false),
              StatusIs(kInvalid, HasSubstr("64 or fewer")));
  flags = Flags("cp=2", "ring", "full", "f32");
  flags.seq = int64_t{1} << 30;
  EXPECT_THAT(RunRing(flags, false),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are free")));
  flags.seq.reset();
  EXPECT_THAT(RunRing(flags, false), StatusIs(kInvalid, HasSubstr("--seq is required")));
}

}  // namespace
}  // namespace dtensor::cli
