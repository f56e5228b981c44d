// What a host program sees of persistent ranks: on threads of the world, on its own, and alone.
#include "dtensor/tensor/local_world.h"

#include <sched.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

const DeviceMesh& Pair() {
  static const auto* mesh = new DeviceMesh(*DeviceMesh::Parse("dp=2"));
  return *mesh;
}

LocalWorld World(int n, const RunOptions& options = {}) {
  auto world = LocalWorld::Create(n, options);
  DT_EXPECT_OK(world.status());
  return *std::move(world);
}

RunOptions Silent(double timeout_seconds = 60) {
  RunOptions options{.timeout_seconds = timeout_seconds};
  options.report = nullptr;
  return options;
}

TensorOr Numbers(Context& context) {
  return Distribute<float>(context, Pair(), {Shard(0)}, {3}, std::vector<float>{1, 2, 3});
}

// On both ranks: 1, 2, 3.
absl::StatusOr<std::vector<float>> Gathered(Context& context) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor numbers, Numbers(context));
  return ToGlobal<float>(numbers);
}

// Of what a destructor has to say.
TEST(LocalWorld, OutlivesAReportThatThrows) {
  RunOptions options;
  bool told = false;
  options.report = [&](const absl::Status&) -> void {
    told = true;
    throw std::runtime_error("of the report");
  };
  const std::string folder = testing::TempDir() + "/goes_before_its_world";
  std::filesystem::create_directory(folder);
  {
    DT_ASSERT_OK_AND_ASSIGN(LocalWorld world,
                            LocalWorld::Create(2, options, {.trace_file = folder + "/trace.json"}));
    DT_ASSERT_OK(world.Run([](Context& context) { return Gathered(context).status(); }));
    std::filesystem::remove_all(folder);
  }
  EXPECT_TRUE(told);
}

// --- On threads of the world.

TEST(LocalWorld, RefusesWhatIsNoWorld) {
  EXPECT_THAT(LocalWorld::Create(0), StatusIs(Code::kInvalidArgument, HasSubstr("not 0")));
  EXPECT_THAT(LocalWorld::Create(2, {.timeout_seconds = 0}),
              StatusIs(Code::kInvalidArgument, HasSubstr("timeout_seconds")));
  EXPECT_THAT(World(2).Run(nullptr), StatusIs(Code::kInvalidArgument, HasSubstr("function")));
}

TEST(LocalWorld, KeepsThreadsAndContexts) {
  LocalWorld world = World(3);
  EXPECT_EQ(world.size(), 3);
  std::vector<std::set<std::thread::id>> threads(3);
  std::vector<std::set<Context*>> contexts(3);
  for (int call = 0; call < 100; ++call) {
    DT_ASSERT_OK(world.Run([&](Context& context) {
      threads[context.rank()].insert(std::this_thread::get_id());
      contexts[context.rank()].insert(&context);
      return call % 2 == 0 ? context.communicator().Barrier("even") : absl::OkStatus();
    }));
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(threads[rank].size(), 1);
    EXPECT_FALSE(threads[rank].contains(std::this_thread::get_id()));
    EXPECT_EQ(contexts[rank].size(), 1);
  }
}

// What ranks make in one call, the next one goes on with; so do redistributions that are on their
// way. The caller may look at it, and drop it.
TEST(LocalWorld, TensorsGoFromCallToCall) {
  LocalWorld world = World(2);
  std::vector<DistributedTensor> x(2), whole(2), sum(2);
  DT_ASSERT_OK(world.Run([&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(x[context.rank()], Numbers(context));
    DT_RETURN_IF_ERROR(x[context.rank()].set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(whole[context.rank()],
                        x[context.rank()].Redistribute({Replicate()}, {.async = true}));
    return absl::OkStatus();
  }));
  EXPECT_EQ(whole[1].ToString(), "[3] f32 on [\"dp\"=2] as []");
  for (int step = 0; step < 3; ++step) {
    DT_ASSERT_OK(world.Run([&](Context& context) -> absl::Status {
      const int rank = context.rank();
      EXPECT_THAT(ToGlobal<float>(whole[rank]), IsOkAndHolds(std::vector<float>{1, 2, 3}));
      DT_ASSIGN_OR_RETURN(sum[rank], Sum(Mul(x[rank], x[rank]), {0}));
      return Backward(sum[rank]);
    }));
  }
  DT_ASSERT_OK(world.Run([&](Context& context) -> absl::Status {
    EXPECT_THAT(ToGlobal<float>(x[context.rank()].grad()),
                IsOkAndHolds(std::vector<float>{6, 12, 18}));
    return absl::OkStatus();
  }));
  whole.clear();
  sum.clear();
  DT_EXPECT_OK(world.Run([](Context& context) { return Numbers(context).status(); }));
}

// A refusal is the same on all ranks, which are at the same point of their program.
// The caller looks between two calls, where no rank can help.
TEST(LocalWorld, WhatARunHasBegunIsDoneWhenItReturns) {
  const ContextOptions overlaps = {.overlap = {.chunks = 2, .min_bytes = 0}};
  auto world = LocalWorld::Create(2, Silent(10), overlaps);
  DT_ASSERT_OK(world.status());
  std::vector<DistributedTensor> begun(2), late(2);
  for (int call = 0; call < 3; ++call) {
    DT_ASSERT_OK(world->Run([&](Context& context) -> absl::Status {
      const int rank = context.rank();
      DT_ASSIGN_OR_RETURN(const auto x, Numbers(context));
      DT_ASSIGN_OR_RETURN(begun[rank], x.Redistribute({Replicate()}, {.async = true}));
      DT_ASSIGN_OR_RETURN(const auto y, Numbers(context));
      DT_ASSIGN_OR_RETURN(late[rank], y.Redistribute({Replicate()}, {.on_use = true}));
      return absl::OkStatus();
    }));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(ToHost<float>(begun[rank].local()), IsOkAndHolds(std::vector<float>{1, 2, 3}));
      EXPECT_THAT(ToHost<float>(late[rank].local()), IsOkAndHolds(std::vector<float>{1, 2, 3}));
    }
  }
}

TEST(LocalWorld, GoesOnAfterAnErrorOnAllRanks) {
  LocalWorld world = World(2);
  const auto refuse = [](Context& context) {
    return Full(context, Pair(), {Shard(7)}, {3}, DType::kF32, 1).status();
  };
  EXPECT_THAT(world.Run(refuse), StatusIs(Code::kInvalidArgument, HasSubstr("rank 0: ")));
  DT_EXPECT_OK(world.failure());
  DT_EXPECT_OK(world.Run([](Context& context) { return Gathered(context).status(); }));
}

TEST(LocalWorld, FailsAfterAnErrorOnSomeRanks) {
  LocalWorld world = World(3);
  std::vector<DistributedTensor> kept(3);
  const absl::Status status = world.Run([&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(kept[context.rank()], Full(context, DeviceMesh::Parse("a=3").value(),
                                                   {Shard(0)}, {3}, DType::kF32, 5));
    return context.rank() == 1 ? absl::DataLossError("bad block") : absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(Code::kDataLoss, "rank 1: bad block"));
  EXPECT_EQ(world.failure(), status);
  bool called = false;
  EXPECT_EQ(world.Run([&](Context&) {
    called = true;
    return absl::OkStatus();
  }),
            status);
  EXPECT_FALSE(called);
  EXPECT_THAT(ToHost<float>(kept[2].local()), IsOkAndHolds(std::vector<float>{5}));
  DT_EXPECT_OK(World(3).Run([](Context& context) { return context.communicator().Barrier("b"); }));
}

TEST(LocalWorld, AnExceptionIsTheErrorOfItsRank) {
  LocalWorld world = World(2, Silent());
  const absl::Status status = world.Run([](Context& context) -> absl::Status {
    if (context.rank() == 1) throw std::runtime_error("no such weather");
    return Gathered(context).status();
  });
  EXPECT_THAT(status,
              StatusIs(Code::kInternal, AllOf(HasSubstr("rank 1: "), HasSubstr("no such weather"),
                                              HasSubstr("Redistribute"))));
  EXPECT_EQ(world.Run([](Context&) { return absl::OkStatus(); }), status);
}

TEST(LocalWorld, ARankThatReturnsEarlyIsNamed) {
  LocalWorld world = World(2, Silent());
  DT_ASSERT_OK(world.Run([](Context& context) { return context.communicator().Barrier("first"); }));
  EXPECT_THAT(world.Run([](Context& context) {
    return context.rank() == 0 ? absl::OkStatus() : context.communicator().Barrier("second");
  }),
              StatusIs(Code::kAborted,
                       HasSubstr("rank 0: returned while rank 1 waits for it in op \"second\"")));
}

TEST(LocalWorld, RunsOneFunctionAtATime) {
  LocalWorld world = World(2);
  DT_EXPECT_OK(world.Run([&](Context&) {
    EXPECT_THAT(world.Run([](Context&) { return absl::OkStatus(); }),
                StatusIs(Code::kFailedPrecondition, HasSubstr("another run")));
    return absl::OkStatus();
  }));
  DT_EXPECT_OK(world.Run([](Context&) { return absl::OkStatus(); }));
}

// Worlds in worlds, of other sizes, while others wait.
TEST(LocalWorld, WorldsDoNotMeet) {
  LocalWorld one = World(2), other = World(3);
  std::thread beside([&] {
    for (int i = 0; i < 20; ++i) {
      DT_EXPECT_OK(other.Run([](Context& context) { return context.communicator().Barrier("o"); }));
    }
  });
  for (int i = 0; i < 20; ++i) {
    DT_EXPECT_OK(one.Run([](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(LocalWorld inner, LocalWorld::Create(2));
      DT_RETURN_IF_ERROR(inner.Run([](Context& within) { return Gathered(within).status(); }));
      return Gathered(context).status();
    }));
  }
  beside.join();
}

// --- On threads of the caller's.

// Calls fn(rank of the world) on a thread for each.
void OnThreads(LocalWorld& world, const std::function<void(LocalRank)>& fn) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto taken = world.Take(rank);
      DT_ASSERT_OK(taken.status());
      EXPECT_EQ(taken->context().rank(), rank);
      fn(*std::move(taken));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalWorld, TheCallersThreadsTakeRanks) {
  LocalWorld world = World(2);
  OnThreads(world, [](LocalRank rank) {
    EXPECT_THAT(Gathered(rank.context()), IsOkAndHolds(std::vector<float>{1, 2, 3}));
    DT_EXPECT_OK(rank.Leave(absl::OkStatus()));
    DT_EXPECT_OK(rank.Leave(absl::OkStatus()));
  });
  DT_EXPECT_OK(world.failure());
}

TEST(LocalWorld, ARankIsTakenOnce) {
  LocalWorld world = World(2);
  EXPECT_THAT(world.Take(2), StatusIs(Code::kInvalidArgument, HasSubstr("no rank 2 of 2")));
  {
    DT_ASSERT_OK_AND_ASSIGN(const LocalRank rank, world.Take(1));
    EXPECT_THAT(world.Take(1), StatusIs(Code::kFailedPrecondition, HasSubstr("taken before")));
  }
  EXPECT_THAT(world.Take(1), StatusIs(Code::kFailedPrecondition, HasSubstr("taken before")));
  EXPECT_THAT(world.Run([](Context&) { return absl::OkStatus(); }),
              StatusIs(Code::kFailedPrecondition, HasSubstr("rank 1 was taken")));
  LocalWorld runs = World(2);
  DT_ASSERT_OK(runs.Run([](Context&) { return absl::OkStatus(); }));
  EXPECT_THAT(runs.Take(0), StatusIs(Code::kFailedPrecondition, HasSubstr("since Run")));
}

TEST(LocalWorld, PeersHearOfARankThatLeaves) {
  for (const bool with_error : {false, true}) {
    LocalWorld world = World(2);
    OnThreads(world, [&](LocalRank rank) {
      if (rank.context().rank() == 1) {
        const absl::Status error = absl::DataLossError("bad block");
        rank.Leave(with_error ? error : absl::OkStatus()).IgnoreError();
        return;
      }
      const absl::Status got = Gathered(rank.context()).status();
      EXPECT_THAT(got.message(),
                  HasSubstr(with_error ? "rank 1: bad block" : "rank 1: returned while rank 0"));
      EXPECT_EQ(rank.Leave(absl::OkStatus()), got);
      EXPECT_EQ(world.failure(), got);
    });
  }
}

TEST(LocalWorld, PeersHearOfAnExceptionThatEndsARank) {
  LocalWorld world = World(2);
  OnThreads(world, [](LocalRank rank) {
    if (rank.context().rank() == 0) {
      EXPECT_THAT(Gathered(rank.context()),
                  StatusIs(Code::kInternal, HasSubstr("rank 1: an exception ended")));
      return;
    }
    try {
      const LocalRank own = std::move(rank);
      throw std::runtime_error("no such weather");
    } catch (const std::runtime_error&) {
    }
  });
}

TEST(LocalWorld, RanksMayOutliveIt) {
  std::vector<std::unique_ptr<LocalRank>> ranks(2);
  {
    LocalWorld world = World(2);
    OnThreads(world, [&](LocalRank rank) {
      const int number = rank.context().rank();
      ranks[number] = std::make_unique<LocalRank>(std::move(rank));
    });
  }
  std::vector<std::thread> threads;
  std::vector<DistributedTensor> kept(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      kept[rank] = *Numbers(ranks[rank]->context());
      DT_EXPECT_OK(ToGlobal<float>(kept[rank]).status());
      ranks[rank] = nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The Context is still there, and its world is over.
  EXPECT_EQ(kept[0].context().rank(), 0);
  EXPECT_THAT(ToHost<float>(kept[1].local()), IsOkAndHolds(std::vector<float>{3}));
  EXPECT_THAT(ToGlobal<float>(kept[0]),
              StatusIs(Code::kFailedPrecondition, HasSubstr("the world is over")));
}

TEST(LocalWorld, ADeviceThatRunsLate) {
  LocalWorld world = World(2, {.device = Device::Kind::kDeferred, .max_delay_us = 50});
  std::vector<DistributedTensor> kept(2);
  for (int call = 0; call < 5; ++call) {
    DT_ASSERT_OK(world.Run([&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(kept[context.rank()], Numbers(context));
      DT_ASSIGN_OR_RETURN(kept[context.rank()], Add(kept[context.rank()], kept[context.rank()]));
      return absl::OkStatus();
    }));
  }
  world = World(1);
  EXPECT_THAT(ToHost<float>(kept[0].local()), IsOkAndHolds(std::vector<float>{2, 4}));
}

// --- Alone.

TEST(SingleRank, NeedsNothingAroundIt) {
  DT_ASSERT_OK_AND_ASSIGN(LocalRank rank, SingleRank());
  DT_ASSERT_OK_AND_ASSIGN(LocalRank other, SingleRank());
  EXPECT_EQ(rank.context().world_size(), 1);
  const auto values = [](Context& context) {
    return ToGlobal<float>(*MatMul(Full(context, DeviceMesh(), {}, {1, 3}, DType::kF32, 2),
                                   Full(context, DeviceMesh(), {}, {3, 1}, DType::kF32, 5)));
  };
  EXPECT_THAT(values(rank.context()), IsOkAndHolds(std::vector<float>{30}));
  // It goes with whoever has it.
  std::thread([&, moved = std::move(other)]() mutable {
    EXPECT_THAT(values(moved.context()), IsOkAndHolds(std::vector<float>{30}));
    DT_EXPECT_OK(moved.Leave(absl::OkStatus()));
  }).join();
  EXPECT_THAT(rank.Leave(absl::DataLossError("bad block")),
              StatusIs(Code::kDataLoss, "rank 0: bad block"));
}

// --- Pinned.

std::set<int> CoresOfThisThread() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::set<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.insert(core);
  }
  return cores;
}

TEST(LocalWorld, WorldsPinToCoresOfTheirOwn) {
  const std::set<int> all = CoresOfThisThread();
  const int n = static_cast<int>(all.size());
  std::vector<LocalWorld> worlds;
  std::set<int> used;
  for (int i = 0; i < n; ++i) {
    ASSERT_TRUE(CanPin(1));
    worlds.push_back(World(1, {.pin_threads = true}));
    DT_EXPECT_OK(worlds.back().Run([&](Context&) {
      const std::set<int> mine = CoresOfThisThread();
      EXPECT_EQ(mine.size(), 1);
      used.insert(mine.begin(), mine.end());
      return absl::OkStatus();
    }));
  }
  EXPECT_EQ(used, all);
  EXPECT_FALSE(CanPin(1));
  EXPECT_THAT(LocalWorld::Create(1, {.pin_threads = true}),
              StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("1 ranks need a core each"),
                                                       HasSubstr("leave pin_threads off"))));
  EXPECT_THAT(RunRanks(1, [](Context&) { return absl::OkStatus(); }, {.pin_threads = true}),
              StatusIs(Code::kResourceExhausted, HasSubstr("pin_threads")));
  DT_EXPECT_OK(World(1).Run([&](Context&) {
    EXPECT_EQ(CoresOfThisThread(), all);
    return absl::OkStatus();
  }));
  worlds.clear();
  EXPECT_TRUE(CanPin(n));
  EXPECT_FALSE(CanPin(n + 1));
  EXPECT_FALSE(CanPin(0));
  EXPECT_FALSE(CanPin(-1));
  EXPECT_EQ(CoresOfThisThread(), all);
  EXPECT_THAT(World(1, {.pin_threads = true}).Take(0),
              StatusIs(Code::kInvalidArgument, HasSubstr("pin_threads")));
}

}  // namespace
}  // namespace dtensor
