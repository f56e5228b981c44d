#include "dtensor/runtime/comm/process/launch.h"

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchedRank> Read(const Variables& variables, const JoinOptions& options = {}) {
  return ReadLaunch(options, [&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

MATCHER_P4(IsRank, launcher, rank, size, local_rank, "") {
  *result_listener << arg.launcher << ": " << arg.rank << " of " << arg.size << ", local "
                   << arg.local_rank;
  return arg.launcher == launcher && arg.rank == rank && arg.size == size &&
         arg.local_rank == local_rank;
}
MATCHER_P(ListensAt, address, "") { return arg.address.ToString() == address; }
MATCHER_P(IsOfJob, job, "") {
  *result_listener << arg.job;
  return arg.job == job;
}

template <typename... Words>
auto Refused(const Words&... words) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr("JoinWorld"), HasSubstr(words)...));
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kDtrun = {{"DTENSOR_RANK", "1"},       {"DTENSOR_SIZE", "4"},
                          {"DTENSOR_LOCAL_RANK", "0"}, {"DTENSOR_ADDRESS", "127.0.0.1:4000"},
                          {"DTENSOR_JOB", "run 7"},    {"DTENSOR_SECRET", "hidden"}};
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RUN_ID", "elastic"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kSlurm = {{"SLURM_PROCID", "6"},  {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "2"}, {"SLURM_STEP_NODELIST", "gpu[003-004,7],x"},
                          {"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "3"}};

TEST(Launch, NobodySaysAnything) {
  const auto read = Read({});
  EXPECT_THAT(read, IsOkAndHolds(AllOf(IsRank("nobody", 0, 1, 0), IsOfJob(""))));
  EXPECT_EQ(read->secret, "");
  EXPECT_EQ(read->timeout_seconds, 60);
}

TEST(Launch, EachLauncher) {
  EXPECT_THAT(Read(kDtrun), IsOkAndHolds(AllOf(IsRank("dtrun", 1, 4, 0),
                                               ListensAt("127.0.0.1:4000"), IsOfJob("run 7"))));
  EXPECT_EQ(Read(kDtrun)->secret, "hidden");
  EXPECT_THAT(Read(kTorchrun), IsOkAndHolds(AllOf(IsRank("torchrun", 5, 8, 1),
                                                  ListensAt("node0:29501"), IsOfJob("elastic"))));
  EXPECT_THAT(Read(With(kOpenMpi, {{"DTENSOR_ADDRESS", "[::1]:5"}})),
              IsOkAndHolds(AllOf(IsRank("OpenMPI", 2, 3, 1), ListensAt("[::1]:5"))));
  EXPECT_THAT(Read(kSlurm), IsOkAndHolds(AllOf(IsRank("Slurm", 6, 7, 2), ListensAt("gpu003:28781"),
                                               IsOfJob("slurm 12.3"))));
}

TEST(Launch, TheFirstThatSaysAnythingWins) {
  Variables all = With(With(With(kSlurm, kOpenMpi), kTorchrun), kDtrun);
  JoinOptions options;
  options.rank = 0;
  options.size = 2;
  EXPECT_THAT(Read(all, options), IsOkAndHolds(IsRank("options", 0, 2, 0)));
  EXPECT_THAT(Read(all), IsOkAndHolds(IsRank("dtrun", 1, 4, 0)));
  all = With(With(kSlurm, kOpenMpi), kTorchrun);
  EXPECT_THAT(Read(all), IsOkAndHolds(IsRank("torchrun", 5, 8, 1)));
  all = With(With(kSlurm, kOpenMpi), {{"DTENSOR_ADDRESS", "a:1"}});
  EXPECT_THAT(Read(all), IsOkAndHolds(IsRank("OpenMPI", 2, 3, 1)));
}

TEST(Launch, AnEmptyVariableSaysNothing) {
  EXPECT_THAT(Read(With(kTorchrun, {{"DTENSOR_RANK", ""}, {"DTENSOR_SIZE", ""}})),
              IsOkAndHolds(IsRank("torchrun", 5, 8, 1)));
}

TEST(Launch, WithoutALocalRankAllAreOnOneHost) {
  EXPECT_THAT(Read(Without(kDtrun, "DTENSOR_LOCAL_RANK")), IsOkAndHolds(IsRank("dtrun", 1, 4, 1)));
}

TEST(Launch, HalfIsMissing) {
  for (const auto& [all, rank, size] :
       {std::tuple(kDtrun, "DTENSOR_RANK", "DTENSOR_SIZE"),
        std::tuple(kTorchrun, "RANK", "WORLD_SIZE"),
        std::tuple(kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")}) {
    EXPECT_THAT(Read(Without(all, rank)), Refused(std::string(rank) + " is not"));
    EXPECT_THAT(Read(Without(all, size)), Refused(std::string(size) + " is not"));
  }
  EXPECT_THAT(Read(Without(kSlurm, "SLURM_NTASKS")), Refused("SLURM_NTASKS is not"));
  EXPECT_THAT(Read(Without(kTorchrun, "MASTER_PORT")), Refused("MASTER_PORT is not"));
}

// sbatch says to its script how many ranks srun is to start there.
TEST(Launch, AnSbatchScriptIsNoRank) {
  EXPECT_THAT(Read(Without(kSlurm, "SLURM_PROCID")), IsOkAndHolds(IsRank("nobody", 0, 1, 0)));
  EXPECT_THAT(Read(Without(kSlurm, "SLURM_STEP_NODELIST")),
              IsOkAndHolds(IsRank("nobody", 0, 1, 0)));
}

TEST(Launch, WhatContradicts) {
  EXPECT_THAT(Read(With(kDtrun, {{"DTENSOR_RANK", "4"}})),
              Refused("DTENSOR_RANK is 4 of DTENSOR_SIZE 4"));
  EXPECT_THAT(Read(With(kTorchrun, {{"WORLD_SIZE", "2"}})), Refused("RANK is 5 of WORLD_SIZE 2"));
  EXPECT_THAT(Read(With(kTorchrun, {{"LOCAL_RANK", "8"}})), Refused("LOCAL_RANK is 8", "8 ranks"));
  // One who is asked first is not skipped for what is wrong with it.
  EXPECT_THAT(Read(With(kTorchrun, {{"DTENSOR_RANK", "0"}})), Refused("DTENSOR_SIZE is not"));
}

TEST(Launch, NumbersThatAreNone) {
  for (const char* junk : {"-1", "x", "1x", "1.5", "99999999999999999999", "2000000", "0x1"}) {
    EXPECT_THAT(Read(With(kDtrun, {{"DTENSOR_RANK", junk}})), Refused("DTENSOR_RANK is ", junk));
    EXPECT_THAT(Read(With(kDtrun, {{"DTENSOR_SIZE", junk}})), Refused("DTENSOR_SIZE is ", junk));
    EXPECT_THAT(Read(With(kDtrun, {{"DTENSOR_LOCAL_RANK", junk}})),
                Refused("DTENSOR_LOCAL_RANK is ", junk));
    EXPECT_THAT(Read(With(kTorchrun, {{"MASTER_PORT", junk}})), Refused("MASTER_PORT is ", junk));
  }
  EXPECT_THAT(Read(With(kDtrun, {{"DTENSOR_SIZE", "0"}})), Refused("DTENSOR_SIZE is 0"));
  EXPECT_THAT(Read(With(kTorchrun, {{"MASTER_PORT", "0"}})), Refused("MASTER_PORT is 0"));
}

TEST(Launch, OptionsThatAreWrong) {
  const auto of = [](std::optional<int> rank, std::optional<int> size,
                     std::optional<int> local = {}) {
    JoinOptions options;
    options.rank = rank;
    options.size = size;
    options.local_rank = local;
    options.address = "a:1";
    return Read(kDtrun, options);
  };
  DT_EXPECT_OK(of(1, 2));
  EXPECT_THAT(of(1, 2, 0), IsOkAndHolds(IsRank("options", 1, 2, 0)));
  EXPECT_THAT(of(1, {}), Refused("rank alone"));
  EXPECT_THAT(of({}, 2), Refused("size alone"));
  EXPECT_THAT(of(2, 2), Refused("no rank 2 of 2"));
  EXPECT_THAT(of(-1, 2), Refused("no rank -1 of 2"));
  EXPECT_THAT(of(0, 0), Refused("no rank 0 of 0"));
  EXPECT_THAT(of(0, 2, -1), Refused("local_rank", "-1"));
  EXPECT_THAT(of(0, 2, 2), Refused("local_rank", "2 ranks"));
  // A local rank of its own goes with ranks that somebody else gives.
  EXPECT_THAT(of({}, {}, 3), IsOkAndHolds(IsRank("dtrun", 1, 4, 3)));
}

TEST(Launch, TimeoutsThatAreNone) {
  for (const double seconds : {0., -1., std::nan("")}) {
    JoinOptions options;
    options.timeout_seconds = seconds;
    EXPECT_THAT(Read(kDtrun, options), Refused("timeout_seconds"));
  }
  JoinOptions options;
  options.timeout_seconds = std::numeric_limits<double>::infinity();
  DT_EXPECT_OK(Read(kDtrun, options));
}

TEST(Launch, WhereRankZeroIs) {
  JoinOptions options;
  options.address = "mine:1";
  EXPECT_THAT(Read(With(kTorchrun, kDtrun), options), IsOkAndHolds(ListensAt("mine:1")));
  EXPECT_THAT(Read(With(kTorchrun, {{"DTENSOR_ADDRESS", "ours:2"}})),
              IsOkAndHolds(ListensAt("ours:2")));
  EXPECT_THAT(Read(With(kSlurm, {{"MASTER_ADDR", "b"}, {"MASTER_PORT", "7"}})),
              IsOkAndHolds(ListensAt("b:7")));
  // Without an agent the port is free; "False" is no agent.
  EXPECT_THAT(Read(Without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")),
              IsOkAndHolds(ListensAt("node0:29500")));
  EXPECT_THAT(Read(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})),
              IsOkAndHolds(ListensAt("node0:29500")));
  // A world of one listens nowhere.
  EXPECT_THAT(Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
              IsOkAndHolds(IsRank("torchrun", 0, 1, 0)));
}

TEST(Launch, AddressesThatAreNone) {
  EXPECT_THAT(Read(With(kDtrun, {{"DTENSOR_ADDRESS", "nowhere"}})),
              Refused("DTENSOR_ADDRESS", "nowhere is no address"));
  EXPECT_THAT(Read(With(kOpenMpi, {{"DTENSOR_ADDRESS", "host"}})), Refused("DTENSOR_ADDRESS"));
  JoinOptions options;
  options.address = "nowhere";
  EXPECT_THAT(Read(kDtrun, options), Refused("nowhere is no address"));
  EXPECT_THAT(Read(With(kSlurm, {{"SLURM_STEP_NODELIST", "a[1"}})), Refused("a[1 is no list"));
}

// There may be another way to find it; ProcessWorld refuses a rank that has none.
TEST(Launch, NothingSaysWhereRankZeroIs) {
  EXPECT_THAT(Read(Without(kDtrun, "DTENSOR_ADDRESS")), IsOkAndHolds(ListensAt(":0")));
  EXPECT_THAT(Read(kOpenMpi), IsOkAndHolds(AllOf(IsRank("OpenMPI", 2, 3, 1), ListensAt(":0"))));
  EXPECT_THAT(Read(With(kOpenMpi, {{"DTENSOR_ADDRESS", "[::1]:5"}})),
              IsOkAndHolds(ListensAt("[::1]:5")));
}

TEST(Launch, JobsAndSecrets) {
  JoinOptions options;
  options.job = "my job";
  options.secret = "my secret";
  const auto read = Read(kDtrun, options);
  EXPECT_THAT(read, IsOkAndHolds(IsOfJob("my job")));
  EXPECT_EQ(read->secret, "my secret");
  EXPECT_THAT(Read(With(kTorchrun, {{"DTENSOR_JOB", "ours"}})), IsOkAndHolds(IsOfJob("ours")));
  EXPECT_THAT(Read(With(kSlurm, {{"TORCHELASTIC_RUN_ID", "run"}})), IsOkAndHolds(IsOfJob("run")));
  EXPECT_THAT(Read(Without(kSlurm, "SLURM_STEP_ID")), IsOkAndHolds(IsOfJob("slurm 12.")));
}

// A dtrun on each machine, each in a step or an mpirun of its own: their ranks are of one job.
TEST(Launch, DtrunsRanksAreOfNoOtherLaunchersJob) {
  const Variables dtrun = With(kDtrun, {{"DTENSOR_JOB", ""}});
  EXPECT_THAT(Read(With(kSlurm, dtrun)), IsOkAndHolds(IsOfJob("")));
  EXPECT_THAT(Read(With(dtrun, {{"PMIX_NAMESPACE", "7"}, {"TORCHELASTIC_RUN_ID", "run"}})),
              IsOkAndHolds(IsOfJob("")));
  EXPECT_THAT(Read(With(dtrun, {{"DTENSOR_JOB", "ours"}})), IsOkAndHolds(IsOfJob("ours")));
  // Said by hand, in a step of Slurm's.
  EXPECT_THAT(Read(With(kSlurm, Without(kDtrun, "DTENSOR_JOB"))),
              IsOkAndHolds(IsOfJob("slurm 12.3")));
}

// Steps of one job, and jobs of one host, have ports of their own, the same on all ranks.
TEST(Launch, SlurmPorts) {
  const auto port = [](const char* job, const char* step) {
    return Read(With(kSlurm, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}}))->address.port;
  };
  EXPECT_EQ(port("100", "0"), port("100", "0"));
  EXPECT_NE(port("100", "0"), port("100", "1"));
  EXPECT_NE(port("100", "0"), port("101", "0"));
  for (const char* job : {"0", "99999999", "1073741824"}) {
    EXPECT_GE(port(job, "0"), 20000);
    EXPECT_LT(port(job, "0"), 30000);
  }
}

TEST(FirstSlurmHost, OfLists) {
  const std::map<std::string, std::string> firsts = {
      {"node1", "node1"},
      {"b,a", "b"},
      {"node[03-05,9],other", "node03"},
      {"node[9,03-05]", "node9"},
      {"node[007]", "node007"},
      {"n[1-2]-ib0", "n1-ib0"},
      {"n[1-2]-ib0,m[3-4]", "n1-ib0"},
      {"a,n[1-2]", "a"},
      {"[1-2]", "1"},
      {"rack[0-3]node[08-15]", "rack0node08"},
      {"r[0-3]n[1,2]x,other[1]", "r0n1x"},
      {"a.b-c_d[1]", "a.b-c_d1"},
  };
  for (const auto& [list, first] : firsts) EXPECT_THAT(FirstSlurmHost(list), IsOkAndHolds(first));
}

TEST(FirstSlurmHost, RefusesJunk) {
  for (const char* list : {"", ",", ",a", "[", "]", "a[", "a[1", "a[]", "a[,1]", "a[-1]", "a]",
                           "a]b", "a[b[1]]", "a[1]]", "a[1]b[", "a[1]b[]", "a[x]"}) {
    EXPECT_THAT(FirstSlurmHost(list), Refused("is no list of hosts", "set DTENSOR_ADDRESS"))
        << list;
  }
}

}  // namespace
}  // namespace dtensor
