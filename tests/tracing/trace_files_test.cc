// Where worlds write their traces, as set by options and by the environment, also when they fail.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tensor/local_world.h"
#include "dtensor/tests/tracing/check_trace.h"
#include "dtensor/trace/trace_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string PathOf(const std::string& name) { return ::testing::TempDir() + "/" + name; }

ContextOptions TracedTo(const std::string& path) {
  ContextOptions options;
  options.trace_file = path;
  return options;
}

absl::Status Gather(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse(absl::StrCat("tp=", context.world_size())));
  const TensorOr x = Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 1);
  DT_RETURN_IF_ERROR(x.status());
  return x->Redistribute({Replicate()}).status();
}

// Its last statement begins what nobody reads.
absl::Status DropsAtItsEnd(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse(absl::StrCat("tp=", context.world_size())));
  const TensorOr x = Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 1);
  DT_RETURN_IF_ERROR(x.status());
  return x->Redistribute({Replicate()}, {.async = true}).status();
}

std::map<int, FileTraffic> SumsIn(const std::string& path) {
  const auto text = ReadFile(path, 1 << 30);
  EXPECT_THAT(text.status(), IsOk()) << path;
  if (!text.ok()) return {};
  const auto sums = CheckChromeTrace(*text);
  EXPECT_THAT(sums.status(), IsOk()) << path;
  return sums.ok() ? *sums : std::map<int, FileTraffic>();
}

TEST(TraceFiles, OneOfAllThreads) {
  const std::string path = PathOf("all.json");
  DT_ASSERT_OK(RunRanks(3, Gather, {}, TracedTo(path)));
  EXPECT_THAT(SumsIn(path), SizeIs(3));
}

TEST(TraceFiles, OneOfEachRank) {
  DT_ASSERT_OK(RunRanks(2, Gather, {}, TracedTo(PathOf("of_%r.json"))));
  EXPECT_EQ(SumsIn(PathOf("of_0.json")).count(0), 1u);
  EXPECT_EQ(SumsIn(PathOf("of_1.json")).count(1), 1u);
}

TEST(TraceFiles, ATable) {
  DT_ASSERT_OK(RunRanks(2, Gather, {}, TracedTo(PathOf("table.txt"))));
  DT_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(PathOf("table.txt"), 1 << 30));
  EXPECT_THAT(text, HasSubstr("rank 1 of 2\n"));
  EXPECT_THAT(text, HasSubstr("total all-gather(tp): 1 call, 8 B\n"));
}

TEST(TraceFiles, AreWrittenWhenTheWorldFails) {
  const std::string path = PathOf("failed.json");
  const absl::Status status = RunRanks(
      2,
      [](Context& context) -> absl::Status {
        DT_RETURN_IF_ERROR(Gather(context));
        if (context.rank() == 1) return absl::AbortedError("enough");
        return Gather(context);
      },
      {}, TracedTo(path));
  EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
  const auto sums = SumsIn(path);
  ASSERT_THAT(sums, SizeIs(2));
  const FileTraffic once = {{{"tp", "all-gather"}, {1, 1, 8}}};
  EXPECT_EQ(sums.at(0), once) << "the second was not received";
  EXPECT_EQ(sums.at(1), once);
}

// fn(rank) on a thread for each of two.
void OnTwoThreads(const std::function<void(int)>& fn) {
  std::thread other([&] { fn(1); });
  fn(0);
  other.join();
}

// An exchange, received and ended, of each of two ranks.
void ExpectOneGather(const std::string& path, const std::vector<int>& ranks) {
  const auto sums = SumsIn(path);
  const FileTraffic once = {{{"tp", "all-gather"}, {1, 1, 8}}};
  for (const int rank : ranks) {
    ASSERT_EQ(sums.count(rank), 1u) << path;
    EXPECT_EQ(sums.at(rank), once) << path;
  }
  DT_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(path, 1 << 30));
  const auto count = [&](const std::string& word) {
    return std::vector<absl::string_view>(absl::StrSplit(text, word)).size() - 1;
  };
  EXPECT_EQ(count("\"ph\": \"b\""), 2 * ranks.size()) << "a redistribution and its exchange";
  EXPECT_EQ(count("\"ph\": \"e\""), 2 * ranks.size());
}

TEST(TraceFiles, HaveWhatWasDroppedAtTheEnd) {
  const std::string path = PathOf("dropped.json");
  DT_ASSERT_OK(RunRanks(2, DropsAtItsEnd, {}, TracedTo(path)));
  ExpectOneGather(path, {0, 1});
}

TEST(TraceFiles, HaveWhatRanksThatWereTakenDropped) {
  const std::string path = PathOf("taken_%r.json");
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld world, LocalWorld::Create(2, {}, TracedTo(path)));
  OnTwoThreads([&](int number) {
    auto rank = world.Take(number);
    DT_ASSERT_OK(rank.status());
    DT_EXPECT_OK(rank->Leave(DropsAtItsEnd(rank->context())));
  });
  ExpectOneGather(PathOf("taken_0.json"), {0});
  ExpectOneGather(PathOf("taken_1.json"), {1});
}

TEST(TraceFiles, HaveWhatProcessesDropped) {
  const JoinOptions options = {.size = 2,
                               .address = absl::StrCat("127.0.0.1:", FreePort()),
                               .job = "job",
                               .timeout_seconds = 30};
  OnTwoThreads([&](int number) {
    JoinOptions mine = options;
    mine.rank = number;
    const auto world = JoinWorld(mine, TracedTo(PathOf("process.json")));
    DT_ASSERT_OK(world.status());
    DT_EXPECT_OK((*world)->Leave(DropsAtItsEnd((*world)->context())));
    DT_EXPECT_OK((*world)->Leave(absl::OkStatus())) << "the second is nothing";
  });
  ExpectOneGather(PathOf("process.0.json"), {0});
  ExpectOneGather(PathOf("process.1.json"), {1});
}

TEST(TraceFiles, WhatCannotBeWrittenIsRefusedBeforeAnythingRuns) {
  bool ran = false;
  const auto note = [&](Context&) {
    ran = true;
    return absl::OkStatus();
  };
  const ContextOptions nowhere = TracedTo("/nowhere/trace.json");
  EXPECT_EQ(RunRanks(1, note, {}, nowhere).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LocalWorld::Create(1, {}, nowhere).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(ran);
}

TEST(TraceFiles, OfAWorldThatStays) {
  const std::string path = PathOf("stays.json");
  {
    DT_ASSERT_OK_AND_ASSIGN(LocalWorld world, LocalWorld::Create(2, {}, TracedTo(path)));
    DT_ASSERT_OK(world.Run(Gather));
    DT_ASSERT_OK(world.Run(Gather));
  }
  const FileTraffic twice = {{{"tp", "all-gather"}, {2, 2, 16}}};
  EXPECT_EQ(SumsIn(path).at(1), twice);
}

TEST(TraceFiles, OfARankThatWasTaken) {
  const std::string path = PathOf("taken.json");
  DT_ASSERT_OK_AND_ASSIGN(LocalRank rank, SingleRank({}, TracedTo(path)));
  DT_ASSERT_OK(Gather(rank.context()));
  DT_ASSERT_OK(rank.Leave(absl::OkStatus()));
  EXPECT_THAT(SumsIn(path), SizeIs(1));
}

TEST(TraceFiles, OfASimulatedRankAreAskedForAlone) {
  const std::string path = PathOf("simulated_%r.json");
  ASSERT_EQ(setenv("DTENSOR_TRACE", PathOf("by_environment.json").c_str(), 1), 0);
  SimulationOptions options;
  options.contexts.trace_file = path;
  DT_EXPECT_OK(Simulate(3, 4, Gather, options));
  DT_EXPECT_OK(Simulate(3, 4, Gather));
  ASSERT_EQ(unsetenv("DTENSOR_TRACE"), 0);
  const FileTraffic once = {{{"tp", "all-gather"}, {1, 3, 12}}};
  EXPECT_EQ(SumsIn(PathOf("simulated_3.json")).at(3), once);
  EXPECT_FALSE(ReadFile(PathOf("by_environment.json"), 1 << 30).ok());

  options.contexts.trace_file = "/nowhere/trace.json";
  EXPECT_EQ(Simulate(3, 4, Gather, options).code(), absl::StatusCode::kUnavailable);
}

TEST(TraceFiles, ByTheEnvironment) {
  const std::string path = PathOf("environment.json");
  ASSERT_EQ(setenv("DTENSOR_TRACE", path.c_str(), 1), 0);
  EXPECT_EQ(WithEnvironment({}).trace_file, path);
  EXPECT_EQ(WithEnvironment(TracedTo("mine")).trace_file, "mine");
  DT_EXPECT_OK(RunRanks(2, Gather));
  ContextOptions not_asked;
  not_asked.read_environment = false;
  DT_EXPECT_OK(RunRanks(1, Gather, {}, not_asked));
  ASSERT_EQ(unsetenv("DTENSOR_TRACE"), 0);
  EXPECT_THAT(SumsIn(path), SizeIs(2)) << "the second run asked for nothing";

  EXPECT_EQ(WithEnvironment({}).notice, nullptr);
  for (const char* verbose : {"0", "", "1"}) {
    ASSERT_EQ(setenv("DTENSOR_VERBOSE", verbose, 1), 0);
    EXPECT_EQ(WithEnvironment({}).notice != nullptr, absl::string_view(verbose) == "1");
  }
  ::testing::internal::CaptureStderr();
  WithEnvironment({}).notice("a line");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "dtensor: a line\n");
  ASSERT_EQ(unsetenv("DTENSOR_VERBOSE"), 0);
}

TEST(TraceFiles, TheProgramMayGoToAnotherFolder) {
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  const fs::path top = PathOf("folders");
  fs::remove_all(top);
  for (const char* folder : {"%r", "b"}) fs::create_directories(top / folder);
  const auto leaves = [&](Context&) {
    fs::current_path(top / "b");
    return absl::OkStatus();
  };
  fs::current_path(top / "%r");
  DT_EXPECT_OK(RunRanks(1, leaves, {}, TracedTo("of_%r.json")));
  fs::current_path(top / "%r");
  const JoinOptions alone = {
      .rank = 0, .size = 1, .address = absl::StrCat("127.0.0.1:", FreePort()), .job = "job"};
  DT_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<JoinedWorld> world,
                          JoinWorld(alone, TracedTo("process.json")));
  DT_EXPECT_OK(world->Leave(leaves(world->context())));
  fs::current_path(before);
  EXPECT_TRUE(fs::exists(top / "%r/of_0.json"));
  EXPECT_TRUE(fs::exists(top / "%r/process.json"));
  EXPECT_TRUE(fs::is_empty(top / "b"));
}

TEST(TraceFiles, NamesOfProcesses) {
  EXPECT_EQ(TracePathOfRank("a/trace.json", 3, 4), "a/trace.3.json");
  EXPECT_EQ(TracePathOfRank("a.b/trace", 3, 4), "a.b/trace.3");
  EXPECT_EQ(TracePathOfRank(".trace", 3, 4), ".trace.3");
  EXPECT_EQ(TracePathOfRank("trace_%r.json", 3, 4), "trace_3.json");
  EXPECT_EQ(TracePathOfRank("trace.json", 0, 1), "trace.json");
  EXPECT_EQ(TracePathOfRank("", 3, 4), "");
  EXPECT_EQ(TracePathOfRank("/dev/null", 3, 4), "/dev/null");
}

}  // namespace
}  // namespace dtensor
