// Every pair of layouts on small meshes and shapes, executed in every way, against the oracle.
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/chunk_schedule.h"
#include "dtensor/redistribution/chunked_move.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/testing/shared_ranks.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/indexed_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

DeviceMesh Mesh(absl::string_view text) { return DeviceMesh::Parse(text).value(); }

absl::Status CheckTraffic(const RankRedistributionPlan& plan, const Communicator& communicator) {
  int64_t calls = 0, bytes = 0, expected_calls = 0;
  for (const auto& [key, traffic] : communicator.traffic()) {
    calls += traffic.calls;
    bytes += traffic.bytes;
  }
  for (const RedistributionRound& round : plan.plan().rounds()) {
    expected_calls += !round.continues && round.kind != CollectiveKind::kSlice;
  }
  const int64_t expected_bytes = plan.plan().BytesReceived(communicator.rank());
  if (calls == expected_calls && bytes == expected_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(plan.plan().ToString(), ": rank ", communicator.rank(),
                                          " counted ", calls, " calls, ", bytes, " B; expected ",
                                          expected_calls, ", ", expected_bytes));
}

struct Way {
  RedistributionOptions options;
  bool in_two_halves = false;
  int chunks = 0;            // above 0: in chunks, where the plan's schedule can
  bool by_messages = false;  // no rank reads another's memory
  bool by_arenas = false;    // as processes of one host do
  MessageOptions messages = SmallPieces();
};

// As a product would: what is reduced gets its rows when their step comes, and what is gathered is
// read, into the result's copy, when its step says that it is there.
absl::StatusOr<Tensor> CarryInChunks(std::shared_ptr<const ChunkSchedule> schedule,
                                     const std::shared_ptr<const RankRedistributionPlan>& plan,
                                     const Tensor& source, Communicator& communicator) {
  if (communicator.rank() == 0) DT_RETURN_IF_ERROR(schedule->Verify());
  const RankChunks chunks(schedule, plan, communicator.rank());
  Device& device = source.device();
  const int dim = schedule->dim();
  DT_ASSIGN_OR_RETURN(const Tensor moved, Tensor::Empty(device, source.dtype(), plan->local_to()));
  const bool gathers = schedule->gathers();
  DT_ASSIGN_OR_RETURN(
      const Tensor other,
      Tensor::Empty(device, source.dtype(), gathers ? plan->local_to() : plan->local_from()));
  const Tensor &from = gathers ? moved : source, &to = other;
  const auto copy = [&](absl::Span<const RowRange> rows) -> absl::Status {
    for (const RowRange& range : rows) {
      if (range.end > from.size(dim)) return absl::InternalError(schedule->ToString());
      DT_RETURN_IF_ERROR(kernels::Copy(device, from.Narrow(dim, range.begin, range.size()),
                                       to.Narrow(dim, range.begin, range.size())));
    }
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(
      MoveInChunks(chunks, gathers ? source : other, moved, communicator, "Test", copy));
  return gathers ? other : moved;
}

absl::StatusOr<Tensor> Carry(const Way& way,
                             const std::shared_ptr<const RankRedistributionPlan>& plan,
                             Tensor source, Communicator& communicator) {
  if (way.chunks > 0) {
    auto schedule = ChunkSchedule::Create(plan->plan(), way.chunks);
    if (schedule != nullptr) return CarryInChunks(std::move(schedule), plan, source, communicator);
  }
  if (!way.in_two_halves) return ExecutePlan(*plan, source, communicator, "Test");
  DT_ASSIGN_OR_RETURN(const auto pending,
                      PendingRedistribution::Begin(plan, source, communicator, "Test"));
  source = Tensor();
  DT_ASSIGN_OR_RETURN(const Tensor once, pending->Wait());
  return pending->Wait();
}

absl::Status RunPair(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                     DType dtype, const Way& way, Communicator& communicator, Device& device,
                     Digest& seen) {
  RedistributionOptions options = way.options;
  options.staging_bytes = communicator.staging_bytes();
  DT_ASSIGN_OR_RETURN(RedistributionPlan plan,
                      RedistributionPlan::Create(from, to, shape, dtype, options));
  const int rank = communicator.rank();
  const auto rank_plan = std::make_shared<const RankRedistributionPlan>(plan, rank);
  const IndexedData data(plan);
  if (rank == 0) DT_RETURN_IF_ERROR(data.CheckKeepers());
  DT_ASSIGN_OR_RETURN(Tensor source, data.Source(rank, device));
  communicator.ResetTraffic();
  device.ResetPeak();
  // The executor may not rely on the source after that.
  DT_ASSIGN_OR_RETURN(const Tensor result, Carry(way, rank_plan, std::move(source), communicator));
  DT_RETURN_IF_ERROR(CheckTraffic(*rank_plan, communicator));
  if (const int64_t peak = device.memory().peak_bytes; peak > plan.PeakBytes() && way.chunks == 0) {
    return absl::InternalError(absl::StrCat(plan.ToString(), ": rank ", rank, " had ", peak,
                                            " bytes, and PeakBytes() is ", plan.PeakBytes()));
  }
  DT_RETURN_IF_ERROR(AddElements(result, seen));
  return CheckResult(plan, rank, result);
}

// All pairs of layouts, in one world.
absl::Status RunAllPairs(absl::string_view mesh_text, const std::vector<Dims>& shapes,
                         const std::vector<ReduceOp>& ops, const std::vector<ShardOrder>& orders,
                         DType dtype, const RunOptions& options = {}, const Way& way = {}) {
  const DeviceMesh mesh = Mesh(mesh_text);
  const auto run = [&](Communicator& communicator, Device& device) -> absl::StatusOr<uint64_t> {
    Digest seen;
    for (const Dims& shape : shapes) {
      const std::vector<Layout> layouts = AllLayouts(mesh, shape, ops, orders);
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          DT_RETURN_IF_ERROR(RunPair(from, to, shape, dtype, way, communicator, device, seen));
        }
      }
    }
    return seen.value();
  };
  if (way.by_messages) {
    SocketRanks sockets(mesh.size());
    return RunLocalRanks(
        mesh.size(),
        [&](Communicator& threads, Device& device) {
          SocketRank rank = sockets.Make(threads, device, way.messages);
          return run(rank.communicator(), device).status();
        },
        options);
  }
  if (way.by_arenas) {
    SharedRanks arenas(mesh.size());
    return RunLocalRanks(
        mesh.size(),
        [&](Communicator& threads, Device&) {
          SharedRank rank = arenas.Make(threads, options.max_delay_us);
          return run(rank.communicator(), rank.device()).status();
        },
        options);
  }
  if (!SuiteHasRanks(mesh.size(), options)) return absl::OkStatus();
  return OnSuiteRanks(
             mesh.size(),
             [&](Context& context) { return run(context.communicator(), context.device()); },
             options)
      .status();
}

absl::Status RunAllPairs(absl::string_view mesh, const std::vector<Dims>& shapes, ReduceOp op,
                         const std::vector<ShardOrder>& orders, DType dtype,
                         const RunOptions& options = {}, const Way& way = {}) {
  return RunAllPairs(mesh, shapes, std::vector<ReduceOp>{op}, orders, dtype, options, way);
}

const std::vector<Dims> kShapes = {{}, {0}, {1}, {2}, {5}, {8}, {3, 4}, {5, 2}, {2, 3, 2}};

TEST(ExecutorPairsTest, EveryPairOnOneAxis) {
  for (absl::string_view mesh : {"a=1", "a=2", "a=3", "a=4"}) {
    DT_EXPECT_OK(RunAllPairs(mesh, kShapes, ReduceOp::kSum, AllOrders(), DType::kF32)) << mesh;
  }
}

TEST(ExecutorPairsTest, EveryPairOnTwoAxes) {
  for (absl::string_view mesh : {"a=2,b=2", "a=2,b=3", "a=3,b=1"}) {
    DT_EXPECT_OK(RunAllPairs(mesh, {{}, {1}, {5}, {6}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(),
                             DType::kF32))
        << mesh;
  }
}

// What each rank can tell of its peers' boxes is enough for transports with two sides.
TEST(ExecutorPairsTest, EveryPairByMessages) {
  const Way by_messages = {.by_messages = true};
  for (absl::string_view mesh : {"a=2", "a=3"}) {
    DT_EXPECT_OK(
        RunAllPairs(mesh, kShapes, ReduceOp::kSum, AllOrders(), DType::kF32, {}, by_messages));
  }
  for (absl::string_view mesh : {"a=2,b=2", "a=2,b=3"}) {
    for (const MessageOptions& messages : {SmallPieces(), MessageOptions()}) {
      DT_EXPECT_OK(RunAllPairs(mesh, {{}, {1}, {5}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(),
                               DType::kF32, {}, {.by_messages = true, .messages = messages}));
    }
  }
  DT_EXPECT_OK(RunAllPairs("a=3", {{3, 4}}, ReduceOp::kSum, AllOrders(), DType::kF32,
                           {.device = Device::Kind::kDeferred, .max_delay_us = 20}, by_messages));
  for (const RedistributionOptions& options :
       {RedistributionOptions{.objective = RedistributionObjective::kBusiest},
        RedistributionOptions{.in_place = true}, RedistributionOptions{.dtype = DType::kBF16}}) {
    DT_EXPECT_OK(RunAllPairs("a=2,b=2", {{5}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(),
                             DType::kF32, {}, {.options = options, .by_messages = true}));
  }
}

// And processes of one host carry them out as threads do.
TEST(ExecutorPairsTest, EveryPairByArenas) {
  for (absl::string_view mesh : {"a=2", "a=3"}) {
    DT_EXPECT_OK(RunAllPairs(mesh, kShapes, ReduceOp::kSum, AllOrders(), DType::kF32, {},
                             {.by_arenas = true}));
  }
  DT_EXPECT_OK(RunAllPairs("a=2,b=2", {{}, {1}, {5}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(),
                           DType::kF32, {}, {.by_arenas = true}));
  DT_EXPECT_OK(RunAllPairs("a=3", {{3, 4}}, ReduceOp::kSum, AllOrders(), DType::kF32,
                           {.max_delay_us = 20}, {.in_two_halves = true, .by_arenas = true}));
}

// What is gathered or scattered arrives chunk by chunk, by each kind of transport.
TEST(ExecutorPairsTest, EveryPairInChunks) {
  for (const int chunks : {1, 2, 3}) {
    DT_EXPECT_OK(RunAllPairs("a=3", kShapes, ReduceOp::kSum, AllOrders(), DType::kF32, {},
                             {.chunks = chunks}));
  }
  DT_EXPECT_OK(RunAllPairs("a=2,b=2", {{1}, {6}, {5, 2}}, ReduceOp::kSum, ContiguousOrder(),
                           DType::kF32, {}, {.chunks = 2}));
  DT_EXPECT_OK(RunAllPairs("a=4", {{6}, {5, 3}}, ReduceOp::kSum, AllOrders(), DType::kF32,
                           {.device = Device::Kind::kDeferred, .max_delay_us = 20}, {.chunks = 3}));
  DT_EXPECT_OK(RunAllPairs("a=3", {{8}, {3, 4}}, ReduceOp::kSum, AllOrders(), DType::kF32, {},
                           {.chunks = 2, .by_messages = true}));
  DT_EXPECT_OK(RunAllPairs("a=3", {{8}, {3, 4}}, ReduceOp::kSum, AllOrders(), DType::kF32,
                           {.max_delay_us = 20}, {.chunks = 2, .by_arenas = true}));
}

// Bytes are counted where they move, so a plan that says another number is found out.
TEST(ExecutorPairsTest, CountsWhatMovesAndNotWhatAPlanSays) {
  const DeviceMesh mesh = Mesh("a=2");
  for (const bool by_messages : {false, true}) {
    SocketRanks sockets(2);
    DT_EXPECT_OK(RunLocalRanks(2, [&](Communicator& world, Device& device) -> absl::Status {
      SocketRank rank = sockets.Make(world, device);
      Communicator& communicator = by_messages ? rank.communicator() : world;
      const auto plan = [&](int64_t size) {
        return RedistributionPlan::Create(Layout::Parse(mesh, "[a]").value(),
                                          Layout::Replicated(mesh, 1), {size}, DType::kF32, {})
            .value();
      };
      const RankRedistributionPlan honest(plan(6), world.rank()), liar(plan(8), world.rank());
      DT_ASSIGN_OR_RETURN(const Tensor source,
                          IndexedData(honest.plan()).Source(world.rank(), device));
      DT_RETURN_IF_ERROR(ExecutePlan(honest, source, communicator, "Test").status());
      EXPECT_THAT(CheckTraffic(liar, communicator),
                  StatusIs(absl::StatusCode::kInternal, HasSubstr("12 B; expected 1, 16")));
      return CheckTraffic(honest, communicator);
    }));
  }
}

TEST(ExecutorPairsTest, EveryPairOnThreeAxes) {
  DT_EXPECT_OK(
      RunAllPairs("a=2,b=2,c=2", {{}, {3}, {8}}, ReduceOp::kSum, ContiguousOrder(), DType::kF32));
}

// Other owners, gathers in stages, in two halves, in chunks, to another type: the same values.
TEST(ExecutorPairsTest, EveryWay) {
  std::vector<Way> ways = {{{.objective = RedistributionObjective::kBusiest}},
                           {{.objective = RedistributionObjective::kLatency}},
                           {{}, true},
                           {{.in_place = true}},
                           {{.in_place = true}, true},
                           {{.dtype = DType::kBF16}},
                           {{.dtype = DType::kF16}, true},
                           {.chunks = 2},
                           {.chunks = 3},
                           {{.sums_in_any_order = true}},
                           {{.in_place = true, .sums_in_any_order = true}, true}};
  for (absl::string_view slow : {"a", "b"}) {
    ways.emplace_back().options.links.Set(std::string(slow), {10, 0.1});
    ways.push_back({ways.back().options, true});
  }
  for (const Device::Kind device : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    for (const Way& way : ways) {
      for (absl::string_view mesh : {"a=2,b=3", "a=2,b=2"}) {
        DT_EXPECT_OK(RunAllPairs(mesh, {{}, {5}, {6}, {2, 3}}, ReduceOp::kSum, ContiguousOrder(),
                                 DType::kF32, {.device = device, .max_delay_us = 20}, way))
            << mesh << " " << ToString(way.options.objective) << way.in_two_halves;
      }
    }
  }
}

// Anything to anything: meshes of up to 12 ranks, of which three or more share a core. The seed is
// printed; DTENSOR_SEED sets it.
TEST(ExecutorPairsTest, RandomPairs) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::string> meshes = {"a=5",     "a=12",        "a=3,b=4",
                                           "a=2,b=5", "a=2,b=3,c=2", "a=2,b=1,c=2,d=2",
                                           "a=7",     "a=2,b=2,c=3", "a=4,b=3"};
  // A sum times 1/7 is rounded.
  const std::vector<std::string> of_exact_averages = {"a=4", "a=8", "a=2,b=4", "a=2,b=1,c=2,d=2"};
  const std::vector<ReduceOp> all_ops[] = {
      {ReduceOp::kSum}, SumAndAverage(), {ReduceOp::kMax}, {ReduceOp::kMin}};
  for (int world = 0; world < 30; ++world) {
    const std::vector<ReduceOp>& ops = all_ops[random() % std::size(all_ops)];
    const auto& fitting = &ops == &all_ops[1] ? of_exact_averages : meshes;
    const DeviceMesh mesh = Mesh(fitting[random() % fitting.size()]);
    Dims shape;
    for (uint64_t d = random() % 4; d > 0; --d) shape.push_back(random() % 14);
    Way way;
    way.options.objective = static_cast<RedistributionObjective>(random() % 3);
    way.in_two_halves = random() % 2 == 0;
    const auto layout = [&] {
      const auto all = AllPlacements(static_cast<int>(shape.size()), ops, AllOrders());
      return DrawLayout(mesh, shape, [&] { return all[random() % all.size()]; });
    };
    std::vector<Layout> layouts;
    for (int i = 0; i < 12; ++i) layouts.push_back(layout());
    DT_ASSERT_OK(
        RunLocalRanks(mesh.size(), [&](Communicator& communicator, Device& device) -> absl::Status {
          Digest seen;
          for (size_t i = 1; i < layouts.size(); ++i) {
            DT_RETURN_IF_ERROR(RunPair(layouts[i - 1], layouts[i], shape, DType::kF32, way,
                                       communicator, device, seen));
          }
          return absl::OkStatus();
        }));
  }
}

TEST(ExecutorPairsTest, SlowEveryPairUpToRankThree) {
  for (absl::string_view mesh : {"a=2", "a=3", "a=4", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"}) {
    const std::vector<Dims> shapes = {{},     {1},    {7},       {8},      {4, 6},
                                      {3, 5}, {1, 7}, {2, 3, 4}, {3, 1, 5}};
    DT_EXPECT_OK(RunAllPairs(mesh, shapes, ReduceOp::kSum, ContiguousOrder(), DType::kF32)) << mesh;
  }
}

TEST(ExecutorPairsTest, EveryOrderOnTwoAxes) {
  DT_EXPECT_OK(RunAllPairs("a=2,b=2", {{7}, {8}}, ReduceOp::kMax, AllOrders(), DType::kI32));
}

TEST(ExecutorPairsTest, EveryTypeAndOp) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64,
                      DType::kBool}) {
    for (ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
      if (op == ReduceOp::kAvg && !IsFloat(dtype)) continue;
      if (dtype == DType::kBool && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) continue;
      for (absl::string_view mesh : {"a=3", "a=2,b=2"}) {
        DT_EXPECT_OK(RunAllPairs(mesh, {{}, {5}, {2, 3}}, op, ContiguousOrder(), dtype))
            << mesh << " " << ToString(dtype) << " " << ToString(op);
      }
    }
  }
}

// Sums of the oracle's data have one value in any order.
TEST(ExecutorPairsTest, EveryTypeInAnyOrder) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (absl::string_view mesh : {"a=3", "a=4", "a=2,b=2"}) {
      DT_EXPECT_OK(RunAllPairs(mesh, {{8}, {4, 3}}, ReduceOp::kSum, ContiguousOrder(), dtype, {},
                               {{.sums_in_any_order = true}}))
          << mesh << " " << ToString(dtype);
    }
  }
}

// A sum over some axes of averages over others; and either becomes the other where it stays.
TEST(ExecutorPairsTest, SumsBesideAverages) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (absl::string_view mesh : {"a=3", "a=2,b=2"}) {
      DT_EXPECT_OK(RunAllPairs(mesh, {{5}}, SumAndAverage(), ContiguousOrder(), dtype))
          << mesh << " " << ToString(dtype);
    }
  }
  DT_EXPECT_OK(
      RunAllPairs("a=2,b=3", {{}, {2, 3}}, SumAndAverage(), ContiguousOrder(), DType::kF32));
  Way way;
  for (const RedistributionObjective objective :
       {RedistributionObjective::kBusiest, RedistributionObjective::kLatency}) {
    way.options.objective = objective;
    DT_EXPECT_OK(RunAllPairs("a=2,b=2", {{5}}, SumAndAverage(), ContiguousOrder(), DType::kF32,
                             {.device = Device::Kind::kDeferred}, way));
  }
  way = {{.in_place = true}, true};
  way.options.links.Set("b", {10, 0.1});
  DT_EXPECT_OK(
      RunAllPairs("a=2,b=2", {{5}}, SumAndAverage(), ContiguousOrder(), DType::kF32, {}, way));
}

TEST(ExecutorPairsTest, OnADeviceThatRunsLater) {
  RunOptions options;
  options.device = Device::Kind::kDeferred;
  options.max_delay_us = 20;
  options.seed = 1;
  DT_EXPECT_OK(RunAllPairs("a=3", {{}, {5}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(), DType::kF32,
                           options));
  DT_EXPECT_OK(
      RunAllPairs("a=2,b=2", {{5}}, ReduceOp::kMin, ContiguousOrder(), DType::kI64, options));
}

TEST(ExecutorPairsTest, WithRandomDelays) {
  for (uint64_t seed : {1, 2}) {
    RunOptions options;
    options.max_delay_us = 100;
    options.seed = seed;
    DT_EXPECT_OK(
        RunAllPairs("a=2,b=2", {{5}}, ReduceOp::kSum, ContiguousOrder(), DType::kF32, options));
  }
}

}  // namespace
}  // namespace dtensor
