#include "dtensor/executor.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layouts_for_testing.h"
#include "dtensor/regions.h"
#include "dtensor/runtime/comm/run_ranks.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A function, for lambdas with DT_ASSIGN_OR_RETURN: a macro would put all of them on one line.
void ExpectOk(const absl::Status& status) { DT_EXPECT_OK(status); }

DeviceMesh Mesh(absl::string_view text) { return DeviceMesh::Parse(text).value(); }

// All global indices of a region, in local order, as row-major numbers.
std::vector<int64_t> GlobalNumbers(const Region& region, absl::Span<const int64_t> shape) {
  std::vector<int64_t> numbers = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t number : numbers) {
      for (int64_t i = 0; i < region[d].size(); ++i)
        next.push_back(number * shape[d] + region[d].At(i));
    }
    numbers = std::move(next);
  }
  return numbers;
}

// A whole number below 23 for each element and term; sums, products and averages of up to 8 are
// exact in every type.
int64_t TermValue(const Layout& layout, int64_t number, absl::Span<const int> coordinate) {
  int64_t term = 0;
  for (int axis : layout.partial_axes())
    term = term * layout.mesh().axis_size(axis) + coordinate[axis];
  if (!layout.is_partial()) return (5 * number + 1) % 23;
  if (layout.partial_op() == ReduceOp::kProduct) return 1 + (number + term) % 2;
  if (layout.partial_op() == ReduceOp::kAvg) return layout.mesh().size() * ((number + term) % 4);
  return (number + 5 * term) % 23;
}

int64_t Combine(ReduceOp op, int64_t a, int64_t b) {
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (op == ReduceOp::kMin) return std::min(a, b);
  return op == ReduceOp::kProduct ? a * b : a + b;
}

// The element of the tensor, or of the term that stays at `coordinate`.
int64_t ReducedValue(const Layout& from, const Layout& to, int64_t number,
                     absl::InlinedVector<int, 4> coordinate) {
  AxisList reduced;
  for (int axis : from.partial_axes()) {
    if (to.use(axis) != Layout::AxisUse::kPartial) reduced.push_back(axis);
  }
  const std::vector<int> group = from.mesh().Group(from.mesh().RankAt(coordinate), reduced);
  int64_t value = TermValue(from, number, from.mesh().Coordinate(group[0]));
  for (size_t i = 1; i < group.size(); ++i) {
    value = Combine(from.partial_op(), value,
                    TermValue(from, number, from.mesh().Coordinate(group[i])));
  }
  const bool average = from.is_partial() && from.partial_op() == ReduceOp::kAvg;
  return average ? value / static_cast<int64_t>(group.size()) : value;
}

// Which elements of a rank's result, row-major, the plan writes; Verify() proves that of the others
// one of the ranks with which it shares a term has them.
std::vector<bool> Written(const RedistributionPlan& plan, int rank) {
  const Dims shape = plan.to().LocalShape(plan.shape(), rank);
  std::vector<bool> written(NumElements(shape), false);
  for (int s = 0; s < std::max<int>(1, static_cast<int>(plan.steps().size())); ++s) {
    for (const Transfer& box : plan.Receives(s, rank)) {
      std::vector<int64_t> offsets = {0};
      for (size_t d = 0; d < shape.size(); ++d) {
        std::vector<int64_t> next;
        const Piece& piece = box.dims[d];
        for (int64_t offset : offsets) {
          for (int64_t i = 0; i < piece.size(); ++i) {
            next.push_back(offset * shape[d] + piece.dst + i / piece.length * piece.dst_stride +
                           i % piece.length);
          }
        }
        offsets = next;
      }
      for (int64_t offset : offsets) written[offset] = true;
    }
  }
  return written;
}

template <typename T>
T FromInt(int64_t value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value > 11;  // ascending, as max and min ask for
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

template <typename T>
T Identity(ReduceOp op) {
  using Limits = std::numeric_limits<std::conditional_t<std::is_arithmetic_v<T>, T, float>>;
  if (op == ReduceOp::kSum) return FromInt<T>(0);
  if (op == ReduceOp::kProduct) return FromInt<T>(1);
  const bool high = op == ReduceOp::kMin;
  if (Limits::has_infinity) return T(high ? Limits::infinity() : -Limits::infinity());
  return T(high ? Limits::max() : Limits::lowest());
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a == b;
  } else {
    if (a.size() != b.size()) return false;
    return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  }
}

template <typename T>
absl::StatusOr<Tensor> ToDevice(Device& device, const std::vector<T>& values,
                                absl::Span<const int64_t> shape) {
  // vector<bool> has no data().
  auto array = std::make_unique<T[]>(values.size());
  std::copy(values.begin(), values.end(), array.get());
  return FromHost<T>(device, absl::MakeConstSpan(array.get(), values.size()), shape);
}

template <typename T>
absl::StatusOr<Tensor> SourceOf(const RedistributionPlan& plan, int rank, Device& device) {
  const auto coordinate = plan.from().mesh().Coordinate(rank);
  std::vector<T> values;
  for (int64_t number :
       GlobalNumbers(Regions(plan.from(), plan.shape(), coordinate), plan.shape())) {
    values.push_back(FromInt<T>(TermValue(plan.from(), number, coordinate)));
  }
  return ToDevice<T>(device, values, plan.from().LocalShape(plan.shape(), rank));
}

template <typename T>
std::vector<T> Expected(const RedistributionPlan& plan, int rank) {
  const auto coordinate = plan.from().mesh().Coordinate(rank);
  std::vector<T> values;
  const std::vector<bool> written = Written(plan, rank);
  for (int64_t number : GlobalNumbers(Regions(plan.to(), plan.shape(), coordinate), plan.shape())) {
    values.push_back(written[values.size()]
                         ? FromInt<T>(ReducedValue(plan.from(), plan.to(), number, coordinate))
                         : Identity<T>(plan.to().partial_op()));
  }
  return values;
}

absl::Status CheckTraffic(const RankPlan& plan, const Communicator& communicator) {
  int64_t calls = 0, bytes = 0, expected_calls = 0;
  for (const auto& [key, traffic] : communicator.traffic()) {
    calls += traffic.calls;
    bytes += traffic.bytes;
  }
  for (const RedistributionStep& step : plan.plan().steps()) {
    expected_calls += !step.continues && step.kind != CollectiveKind::kSlice;
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
};

absl::StatusOr<Tensor> Carry(const Way& way, const std::shared_ptr<const RankPlan>& plan,
                             Tensor source, Communicator& communicator) {
  if (!way.in_two_halves) return Execute(*plan, source, communicator, "Test");
  DT_ASSIGN_OR_RETURN(const auto pending,
                      PendingRedistribution::Begin(plan, source, communicator, "Test"));
  source = Tensor();
  DT_ASSIGN_OR_RETURN(const Tensor once, pending->Wait());
  return pending->Wait();
}

template <typename T>
absl::Status RunPair(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                     DType dtype, const Way& way, Communicator& communicator, Device& device) {
  DT_ASSIGN_OR_RETURN(RedistributionPlan plan,
                      RedistributionPlan::Create(from, to, shape, dtype, way.options));
  const int rank = communicator.rank();
  const auto rank_plan = std::make_shared<const RankPlan>(plan, rank);
  DT_ASSIGN_OR_RETURN(Tensor source, SourceOf<T>(plan, rank, device));
  communicator.ResetTraffic();
  // The executor may not rely on the source after that.
  DT_ASSIGN_OR_RETURN(const Tensor result, Carry(way, rank_plan, std::move(source), communicator));
  DT_RETURN_IF_ERROR(CheckTraffic(*rank_plan, communicator));
  if (result.shape() != rank_plan->local_to()) return absl::InternalError("wrong local shape");
  const bool right = VisitDType(plan.result_dtype(), [&](auto zero) {
    using U = decltype(zero);
    const absl::StatusOr<std::vector<U>> values = ToHost<U>(result);
    return values.ok() && SameBits(*values, Expected<U>(plan, rank));
  });
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(plan.ToString(), ": rank ", rank, " has wrong values"));
}

// All pairs of layouts, in one world.
absl::Status RunAllPairs(absl::string_view mesh_text, const std::vector<Dims>& shapes, ReduceOp op,
                         const std::vector<Order>& orders, DType dtype,
                         const RunOptions& options = {}, const Way& way = {}) {
  const DeviceMesh mesh = Mesh(mesh_text);
  return RunLocalRanks(
      mesh.size(),
      [&](Communicator& communicator, Device& device) -> absl::Status {
        for (const Dims& shape : shapes) {
          const std::vector<Layout> layouts = AllLayouts(mesh, shape, op, orders);
          for (const Layout& from : layouts) {
            for (const Layout& to : layouts) {
              DT_RETURN_IF_ERROR(VisitDType(dtype, [&](auto zero) {
                return RunPair<decltype(zero)>(from, to, shape, dtype, way, communicator, device);
              }));
            }
          }
        }
        return absl::OkStatus();
      },
      options);
}

const std::vector<Dims> kShapes = {{}, {0}, {1}, {2}, {5}, {8}, {3, 4}, {5, 2}, {2, 3, 2}};

TEST(ExecutorTest, EveryPairOnOneAxis) {
  for (absl::string_view mesh : {"a=1", "a=2", "a=3", "a=4"}) {
    DT_EXPECT_OK(RunAllPairs(mesh, kShapes, ReduceOp::kSum, AllOrders(), DType::kF32)) << mesh;
  }
}

TEST(ExecutorTest, EveryPairOnTwoAxes) {
  for (absl::string_view mesh : {"a=2,b=2", "a=2,b=3", "a=3,b=1"}) {
    DT_EXPECT_OK(RunAllPairs(mesh, {{}, {1}, {5}, {6}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(),
                             DType::kF32))
        << mesh;
  }
}

TEST(ExecutorTest, EveryPairOnThreeAxes) {
  DT_EXPECT_OK(
      RunAllPairs("a=2,b=2,c=2", {{}, {3}, {8}}, ReduceOp::kSum, ContiguousOrder(), DType::kF32));
}

// Other owners, gathers in stages, in two halves, to another type: the same values.
TEST(ExecutorTest, EveryWay) {
  std::vector<Way> ways = {{{.objective = Objective::kBusiest}},
                           {{.objective = Objective::kLatency}},
                           {{}, true},
                           {{.dtype = DType::kBF16}},
                           {{.dtype = DType::kF16}, true}};
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
TEST(ExecutorTest, RandomPairs) {
  const char* given = std::getenv("DTENSOR_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::cerr << "DTENSOR_SEED=" << seed << std::endl;
  std::mt19937_64 random(seed);
  const std::vector<std::string> meshes = {"a=5",     "a=12",        "a=3,b=4",
                                           "a=2,b=5", "a=2,b=3,c=2", "a=2,b=1,c=2,d=2",
                                           "a=7",     "a=2,b=2,c=3", "a=4,b=3"};
  const std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
  for (int world = 0; world < 30; ++world) {
    const DeviceMesh mesh = Mesh(meshes[random() % meshes.size()]);
    Dims shape;
    for (uint64_t d = random() % 4; d > 0; --d) shape.push_back(random() % 14);
    const ReduceOp op = ops[random() % ops.size()];
    Way way;
    way.options.objective = static_cast<Objective>(random() % 3);
    way.in_two_halves = random() % 2 == 0;
    const auto layout = [&] {
      const auto all = AllPlacements(static_cast<int>(shape.size()), op, AllOrders());
      while (true) {
        Placements placements;
        for (int a = 0; a < mesh.rank_of_axes(); ++a)
          placements.push_back(all[random() % all.size()]);
        if (auto made = Layout::FromPlacements(mesh, placements, shape); made.ok()) return *made;
      }
    };
    std::vector<Layout> layouts;
    for (int i = 0; i < 12; ++i) layouts.push_back(layout());
    DT_ASSERT_OK(
        RunLocalRanks(mesh.size(), [&](Communicator& communicator, Device& device) -> absl::Status {
          for (size_t i = 1; i < layouts.size(); ++i) {
            DT_RETURN_IF_ERROR(RunPair<float>(layouts[i - 1], layouts[i], shape, DType::kF32, way,
                                              communicator, device));
          }
          return absl::OkStatus();
        }));
  }
}

TEST(ExecutorTest, SlowEveryPairUpToRankThree) {
  for (absl::string_view mesh : {"a=2", "a=3", "a=4", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"}) {
    const std::vector<Dims> shapes = {{},     {1},    {7},       {8},      {4, 6},
                                      {3, 5}, {1, 7}, {2, 3, 4}, {3, 1, 5}};
    DT_EXPECT_OK(RunAllPairs(mesh, shapes, ReduceOp::kSum, ContiguousOrder(), DType::kF32)) << mesh;
  }
}

TEST(ExecutorTest, EveryOrderOnTwoAxes) {
  DT_EXPECT_OK(RunAllPairs("a=2,b=2", {{7}, {8}}, ReduceOp::kMax, AllOrders(), DType::kI32));
}

TEST(ExecutorTest, EveryTypeAndOp) {
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

TEST(ExecutorTest, OnADeviceThatRunsLater) {
  RunOptions options;
  options.device = Device::Kind::kDeferred;
  options.max_delay_us = 20;
  options.seed = 1;
  DT_EXPECT_OK(RunAllPairs("a=3", {{}, {5}, {3, 4}}, ReduceOp::kSum, ContiguousOrder(), DType::kF32,
                           options));
  DT_EXPECT_OK(
      RunAllPairs("a=2,b=2", {{5}}, ReduceOp::kMin, ContiguousOrder(), DType::kI64, options));
}

TEST(ExecutorTest, WithRandomDelays) {
  for (uint64_t seed : {1, 2}) {
    RunOptions options;
    options.max_delay_us = 100;
    options.seed = seed;
    DT_EXPECT_OK(
        RunAllPairs("a=2,b=2", {{5}}, ReduceOp::kSum, ContiguousOrder(), DType::kF32, options));
  }
}

RedistributionPlan Plan(const DeviceMesh& mesh, absl::string_view from, absl::string_view to,
                        Dims shape, DType dtype = DType::kF32) {
  return RedistributionPlan::Create(Layout::Parse(mesh, from).value(),
                                    Layout::Parse(mesh, to).value(), shape, dtype)
      .value();
}

// Floats whose sum depends on the order of its terms.
std::vector<float> UnevenFloats(int64_t n, int rank) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) {
    const float scale[] = {1e8f, 1.0f, -1e8f, 3.0f, 1e-3f};
    values.push_back(scale[(i + rank) % 5] * (1.0f + 0.1f * static_cast<float>(i)));
  }
  return values;
}

TEST(ExecutorTest, TermsAddInAscendingOrderWhateverThePlan) {
  for (const auto& [mesh_text, from, to] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"a=4", "[] P(sum: a)", "[]"},         // owners, then a gather
           {"a=4", "[] P(sum: a)", "[a]"},        // owners alone
           {"a=2", "[] P(sum: a)", "[]"},         // each rank adds all terms
           {"a=2,b=2", "[] P(sum: a,b)", "[]"},   // both axes at once
           {"a=4,b=2", "[] P(sum: a)", "[]"}}) {  // replicas help
    const DeviceMesh mesh = Mesh(mesh_text);
    const RedistributionPlan plan = Plan(mesh, from, to, {10});
    ExpectOk(
        RunLocalRanks(mesh.size(), [&](Communicator& communicator, Device& device) -> absl::Status {
          const int rank = communicator.rank();
          const auto term_of = [&](int r) {
            return UnevenFloats(10, mesh.rank_of_axes() == 2 && mesh.axis_size(0) == 4 ? r / 2 : r);
          };
          const int terms = mesh_text == "a=4,b=2" ? 4 : mesh.size();
          std::vector<float> sum(10, 0);
          for (int term = 0; term < terms; ++term) {
            const std::vector<float> more = UnevenFloats(10, term);
            for (int i = 0; i < 10; ++i) sum[i] = term == 0 ? more[i] : sum[i] + more[i];
          }
          DT_ASSIGN_OR_RETURN(const Tensor source, ToDevice<float>(device, term_of(rank), {10}));
          DT_ASSIGN_OR_RETURN(const Tensor result,
                              Execute(RankPlan(plan, rank), source, communicator, "Test"));
          DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(result));
          std::vector<float> expected;
          for (int64_t number : GlobalNumbers(
                   Regions(plan.to(), plan.shape(), mesh.Coordinate(rank)), plan.shape())) {
            expected.push_back(sum[number]);
          }
          return SameBits(values, expected) ? absl::OkStatus()
                                            : absl::InternalError(plan.ToString());
        }));
  }
}

TEST(ExecutorTest, CoalescedHasTheBitsOfSeparateAndCountsOnce) {
  const DeviceMesh mesh = Mesh("a=4");
  for (absl::string_view to : {"[] []", "[a] []"}) {
    std::vector<RedistributionPlan> plans;
    for (const Dims& shape : {Dims{8, 2}, Dims{5, 3}, Dims{1, 4}}) {
      plans.push_back(Plan(mesh, "[] [] P(sum: a)", to, shape));
    }
    ExpectOk(RunLocalRanks(4, [&](Communicator& communicator, Device& device) -> absl::Status {
      const int rank = communicator.rank();
      std::vector<std::unique_ptr<RankPlan>> rank_plans;
      std::vector<const RankPlan*> pointers;
      std::vector<Tensor> sources;
      std::vector<std::vector<float>> separate;
      for (const RedistributionPlan& plan : plans) {
        rank_plans.push_back(std::make_unique<RankPlan>(plan, rank));
        pointers.push_back(rank_plans.back().get());
        const int64_t n = NumElements(plan.shape());
        DT_ASSIGN_OR_RETURN(Tensor source,
                            ToDevice<float>(device, UnevenFloats(n, rank), plan.shape()));
        sources.push_back(std::move(source));
        DT_ASSIGN_OR_RETURN(const Tensor one,
                            Execute(*pointers.back(), sources.back(), communicator, "Test"));
        DT_ASSIGN_OR_RETURN(std::vector<float> values, ToHost<float>(one));
        separate.push_back(std::move(values));
      }
      const TrafficTable before = communicator.traffic();
      communicator.ResetTraffic();
      DT_ASSIGN_OR_RETURN(const std::vector<Tensor> joined,
                          ExecuteCoalesced(pointers, sources, communicator, "Test"));
      for (size_t i = 0; i < joined.size(); ++i) {
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(joined[i]));
        if (!SameBits(values, separate[i]))
          return absl::InternalError("coalescing changed the bits");
      }
      for (const auto& [key, traffic] : communicator.traffic()) {
        if (traffic.calls != 1 || before.at(key).calls != 3)
          return absl::InternalError("wrong calls");
        if (traffic.bytes != before.at(key).bytes) return absl::InternalError("wrong bytes");
      }
      return absl::OkStatus();
    }));
  }
}

// Two on their way in unlike groups, one dropped unread, one finished by a later exchange of its
// ranks: all of them end, and every result asked for is right.
TEST(ExecutorTest, SeveralOnTheirWay) {
  const DeviceMesh mesh = Mesh("a=2,b=2");
  const auto plan_of = [&](absl::string_view from, absl::string_view to) {
    return Plan(mesh, from, to, {8});
  };
  const RedistributionPlan over_a = plan_of("[a]", "[]"), over_b = plan_of("[b]", "[]"),
                           sum_a = plan_of("[] P(sum: a)", "[]");
  for (const Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    ExpectOk(RunLocalRanks(
        4,
        [&](Communicator& communicator, Device& device) -> absl::Status {
          const int rank = communicator.rank();
          const auto begin = [&](const RedistributionPlan& plan)
              -> absl::StatusOr<std::unique_ptr<PendingRedistribution>> {
            DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf<float>(plan, rank, device));
            return PendingRedistribution::Begin(std::make_shared<RankPlan>(plan, rank), source,
                                                communicator, "Test");
          };
          const auto check = [&](const RedistributionPlan& plan,
                                 PendingRedistribution& pending) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const Tensor result, pending.Wait());
            DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(result));
            return SameBits(values, Expected<float>(plan, rank))
                       ? absl::OkStatus()
                       : absl::InternalError(plan.ToString());
          };
          DT_ASSIGN_OR_RETURN(auto first, begin(over_a));
          DT_ASSIGN_OR_RETURN(auto second, begin(over_b));
          DT_ASSIGN_OR_RETURN(auto third, begin(sum_a));  // finishes the first
          DT_RETURN_IF_ERROR(check(over_b, *second));
          DT_RETURN_IF_ERROR(check(over_a, *first));
          third.reset();
          DT_ASSIGN_OR_RETURN(auto last, begin(over_a));
          return check(over_a, *last);
        },
        {.device = kind, .max_delay_us = 50}));
  }
}

TEST(ExecutorTest, OneThatFailsOnItsWay) {
  const DeviceMesh mesh = Mesh("a=2");
  const RedistributionPlan plan = Plan(mesh, "[a]", "[]", {8});
  const absl::Status status =
      RunLocalRanks(2, [&](Communicator& communicator, Device& device) -> absl::Status {
        const int rank = communicator.rank();
        DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf<float>(plan, rank, device));
        DT_ASSIGN_OR_RETURN(const auto pending,
                            PendingRedistribution::Begin(std::make_shared<RankPlan>(plan, rank),
                                                         source, communicator, "Test"));
        if (rank == 1) return communicator.Fail(absl::DataLossError("no disk"));
        EXPECT_THAT(pending->Wait().status().message(), HasSubstr("rank 1: no disk"));
        return pending->Wait().status();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: no disk")));
}

TEST(ExecutorTest, CoalescingRefusesUnlikePlans) {
  const DeviceMesh mesh = Mesh("a=2");
  const RankPlan gather(Plan(mesh, "[a]", "[]", {4}), 0),
      reduce(Plan(mesh, "[] P(sum: a)", "[]", {4}), 0);
  const RankPlan largest(Plan(mesh, "[] P(max: a)", "[]", {4}), 0);
  const std::unique_ptr<Communicator> communicator = MakeSimulatedCommunicator(0, 2);
  const std::unique_ptr<Device> device = MakeMetaDevice();
  const std::vector<Tensor> sources(2, Tensor::Empty(*device, DType::kF32, {4}).value());
  for (const RankPlan* other : {&gather, &largest}) {
    EXPECT_THAT(
        ExecuteCoalesced({&reduce, other}, sources, *communicator, "Test"),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be one collective")));
  }
  EXPECT_THAT(ExecuteCoalesced({&reduce}, sources, *communicator, "Test"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 plans for 2 tensors")));
  EXPECT_THAT(ExecuteCoalesced({}, {}, *communicator, "Test"), IsOk());
}

// A square swap of axes: two of the four ranks have their result already.
TEST(ExecutorTest, ARankThatReceivesItselfKeepsItsSource) {
  const DeviceMesh mesh = Mesh("a=2,b=2");
  const RedistributionPlan plan = Plan(mesh, "[a] [b]", "[b] [a]", {4, 6});
  ExpectOk(RunLocalRanks(4, [&](Communicator& communicator, Device& device) -> absl::Status {
    const int rank = communicator.rank();
    DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf<float>(plan, rank, device));
    DT_ASSIGN_OR_RETURN(const Tensor result,
                        Execute(RankPlan(plan, rank), source, communicator, "Test"));
    EXPECT_EQ(result.raw() == source.raw(), rank == 0 || rank == 3);
    DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(result));
    EXPECT_EQ(values, Expected<float>(plan, rank));
    return absl::OkStatus();
  }));
}

TEST(ExecutorTest, SourcesMayHaveAnyStrides) {
  const DeviceMesh mesh = Mesh("a=2");
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"[] []", "[a] []"},
                                                        {"[] []", "[a:zigzag] []"},
                                                        {"[a] []", "[] [a]"},
                                                        {"[a] []", "[] []"}}) {
    const RedistributionPlan plan = Plan(mesh, from, to, {8, 6});
    ExpectOk(RunLocalRanks(2, [&](Communicator& communicator, Device& device) -> absl::Status {
      const RankPlan rank_plan(plan, communicator.rank());
      DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf<float>(plan, communicator.rank(), device));
      DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(source.Transpose(0, 1)));
      DT_ASSIGN_OR_RETURN(const Tensor transposed,
                          ToDevice<float>(device, values, {source.size(1), source.size(0)}));
      DT_ASSIGN_OR_RETURN(const Tensor result,
                          Execute(rank_plan, transposed.Transpose(0, 1), communicator, "Test"));
      DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToHost<float>(result));
      return SameBits(got, Expected<float>(plan, communicator.rank()))
                 ? absl::OkStatus()
                 : absl::InternalError(plan.ToString());
    }));
  }
}

TEST(ExecutorTest, SharesStorageWhereAndOnlyWhereThePlanIsAView) {
  const DeviceMesh mesh = Mesh("a=2");
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Communicator> communicator = MakeSimulatedCommunicator(1, 2);
  const auto shares = [&](absl::string_view from, absl::string_view to) {
    const RankPlan plan(Plan(mesh, from, to, {8}), 1);
    const Tensor source = Tensor::Empty(*device, DType::kF32, plan.local_from()).value();
    return Execute(plan, source, *communicator, "Test").value().SharesStorageWith(source);
  };
  EXPECT_TRUE(shares("[]", "[]"));
  EXPECT_TRUE(shares("[]", "[a]"));
  EXPECT_TRUE(shares("[]", "[] P(avg: a)"));
  EXPECT_FALSE(shares("[]", "[a:zigzag]"));
  EXPECT_FALSE(shares("[]", "[] P(sum: a)"));
  EXPECT_FALSE(shares("[a]", "[] P(sum: a)"));
  EXPECT_FALSE(shares("[a]", "[]"));
}

TEST(ExecutorTest, HoldsNoMoreThanTheResult) {
  const DeviceMesh mesh = Mesh("a=4");
  for (absl::string_view to : {"[] []", "[a] []"}) {
    const RedistributionPlan plan = Plan(mesh, "[] [] P(sum: a)", to, {64, 16});
    ExpectOk(RunLocalRanks(4, [&](Communicator& communicator, Device& device) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf<float>(plan, communicator.rank(), device));
      device.ResetPeak();
      const int64_t before = device.memory().live_bytes;
      DT_ASSIGN_OR_RETURN(const Tensor result, Execute(RankPlan(plan, communicator.rank()), source,
                                                       communicator, "Test"));
      if (device.memory().peak_bytes == before + result.bytes()) return absl::OkStatus();
      return absl::InternalError(
          absl::StrCat(device.memory().peak_bytes - before, " B at the peak"));
    }));
  }
}

// The same program on a meta device predicts what the run counts.
TEST(ExecutorTest, SimulationCountsWhatTheRunCounts) {
  const DeviceMesh mesh = Mesh("a=2,b=2");
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"[a] [b]", "[b] [a]"}, {"[b] [] P(sum: a)", "[] []"}, {"[] [] P(sum: a,b)", "[] []"}}) {
    const RedistributionPlan plan = Plan(mesh, from, to, {5, 3});
    std::vector<TrafficTable> counted(4);
    ExpectOk(RunLocalRanks(4, [&](Communicator& communicator, Device& device) -> absl::Status {
      const int rank = communicator.rank();
      DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf<float>(plan, rank, device));
      DT_ASSIGN_OR_RETURN(const Tensor result,
                          Execute(RankPlan(plan, rank), source, communicator, "Test"));
      counted[rank] = communicator.traffic();
      return absl::OkStatus();
    }));
    for (int rank = 0; rank < 4; ++rank) {
      const std::unique_ptr<Communicator> simulated = MakeSimulatedCommunicator(rank, 4);
      const std::unique_ptr<Device> meta = MakeMetaDevice();
      const RankPlan rank_plan(plan, rank);
      const Tensor source = Tensor::Empty(*meta, DType::kF32, rank_plan.local_from()).value();
      DT_ASSERT_OK(Execute(rank_plan, source, *simulated, "Test"));
      EXPECT_EQ(simulated->traffic(), counted[rank]) << plan.ToString();
    }
  }
}

TEST(ExecutorTest, AWrongLocalShapeIsRefusedOnAllRanksAndTheWorldGoesOn) {
  const DeviceMesh mesh = Mesh("a=2");
  const RedistributionPlan plan = Plan(mesh, "[a]", "[]", {6});
  ExpectOk(RunLocalRanks(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    const RankPlan rank_plan(plan, communicator.rank());
    DT_ASSIGN_OR_RETURN(const Tensor wrong, Tensor::Empty(device, DType::kF32, {4}));
    EXPECT_THAT(Execute(rank_plan, wrong, communicator, "Redistribute"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("Redistribute"), HasSubstr("[4] f32"), HasSubstr("[3]"))));
    DT_ASSIGN_OR_RETURN(const Tensor type, Tensor::Empty(device, DType::kF64, {3}));
    EXPECT_THAT(Execute(rank_plan, type, communicator, "Redistribute"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("f64")));
    EXPECT_THAT(Execute(rank_plan, Tensor(), communicator, "Redistribute"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("undefined")));
    EXPECT_TRUE(communicator.traffic().empty());
    DT_ASSIGN_OR_RETURN(const Tensor right, SourceOf<float>(plan, communicator.rank(), device));
    return Execute(rank_plan, right, communicator, "Redistribute").status();
  }));
}

TEST(ExecutorTest, OneRankThatRefusesFailsTheOthers) {
  const DeviceMesh mesh = Mesh("a=3");
  const RedistributionPlan plan = Plan(mesh, "[a]", "[]", {6});
  const absl::Status status =
      RunLocalRanks(3, [&](Communicator& communicator, Device& device) -> absl::Status {
        const int64_t n = communicator.rank() == 1 ? 5 : 2;
        DT_ASSIGN_OR_RETURN(const Tensor source, Tensor::Empty(device, DType::kF32, {n}));
        const absl::Status mine =
            Execute(RankPlan(plan, communicator.rank()), source, communicator, "Redistribute")
                .status();
        EXPECT_FALSE(mine.ok()) << communicator.rank();
        return mine;
      });
  EXPECT_FALSE(status.ok());
}

TEST(ExecutorTest, UnlikePlansFailOnEveryRank) {
  const DeviceMesh mesh = Mesh("a=2");
  const absl::Status status =
      RunLocalRanks(2, [&](Communicator& communicator, Device& device) -> absl::Status {
        const Dims shape = {communicator.rank() == 0 ? 4 : 6};
        const RankPlan plan(Plan(mesh, "[a]", "[]", shape), communicator.rank());
        DT_ASSIGN_OR_RETURN(const Tensor source,
                            Tensor::Empty(device, DType::kF32, plan.local_from()));
        const absl::Status mine = Execute(plan, source, communicator, "Redistribute").status();
        EXPECT_FALSE(mine.ok()) << communicator.rank();
        return mine;
      });
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace dtensor
