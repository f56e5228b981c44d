#include "dtensor/redistribution/plan_executor.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/indexed_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A function, for lambdas with DT_ASSIGN_OR_RETURN: a macro would put all of them on one line.
void ExpectOk(const absl::Status& status) { DT_EXPECT_OK(status); }

DeviceMesh Mesh(absl::string_view text) { return DeviceMesh::Parse(text).value(); }

absl::StatusOr<Tensor> SourceOf(const RedistributionPlan& plan, int rank, Device& device) {
  return IndexedData(plan).Source(rank, device);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
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
            return UnevenFloats(10, mesh.num_axes() == 2 && mesh.axis_size(0) == 4 ? r / 2 : r);
          };
          const int terms = mesh_text == "a=4,b=2" ? 4 : mesh.size();
          std::vector<float> sum(10, 0);
          for (int term = 0; term < terms; ++term) {
            const std::vector<float> more = UnevenFloats(10, term);
            for (int i = 0; i < 10; ++i) sum[i] = term == 0 ? more[i] : sum[i] + more[i];
          }
          DT_ASSIGN_OR_RETURN(const Tensor source, FromHost<float>(device, term_of(rank), {10}));
          DT_ASSIGN_OR_RETURN(const Tensor result, ExecutePlan(RankRedistributionPlan(plan, rank),
                                                               source, communicator, "Test"));
          DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(result));
          std::vector<float> expected;
          const Region region = Regions(plan.to(), plan.shape(), mesh.Coordinate(rank));
          for (int64_t i = 0; i < region[0].size(); ++i) expected.push_back(sum[region[0].At(i)]);
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
      std::vector<std::shared_ptr<const RankRedistributionPlan>> rank_plans;
      std::vector<const RankRedistributionPlan*> pointers;
      std::vector<Tensor> sources;
      std::vector<std::vector<float>> separate;
      for (const RedistributionPlan& plan : plans) {
        rank_plans.push_back(std::make_shared<RankRedistributionPlan>(plan, rank));
        pointers.push_back(rank_plans.back().get());
        const int64_t n = NumElements(plan.shape());
        DT_ASSIGN_OR_RETURN(Tensor source,
                            FromHost<float>(device, UnevenFloats(n, rank), plan.shape()));
        sources.push_back(std::move(source));
        DT_ASSIGN_OR_RETURN(const Tensor one,
                            ExecutePlan(*pointers.back(), sources.back(), communicator, "Test"));
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
      const TrafficTable at_once = communicator.traffic();
      communicator.ResetTraffic();
      DT_ASSIGN_OR_RETURN(const auto pending, PendingRedistribution::BeginCoalesced(
                                                  rank_plans, sources, communicator, "Test"));
      DT_RETURN_IF_ERROR(pending->Wait().status());
      EXPECT_EQ(communicator.traffic(), at_once);
      for (size_t i = 0; i < separate.size(); ++i) {
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(pending->result(i)));
        EXPECT_TRUE(SameBits(values, separate[i])) << i;
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
            DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf(plan, rank, device));
            return PendingRedistribution::Begin(
                std::make_shared<RankRedistributionPlan>(plan, rank), source, communicator, "Test");
          };
          const auto check = [&](const RedistributionPlan& plan,
                                 PendingRedistribution& pending) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const Tensor result, pending.Wait());
            return CheckResult(plan, rank, result);
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
        DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf(plan, rank, device));
        DT_ASSIGN_OR_RETURN(
            const auto pending,
            PendingRedistribution::Begin(std::make_shared<RankRedistributionPlan>(plan, rank),
                                         source, communicator, "Test"));
        if (rank == 1) return communicator.Fail(absl::DataLossError("no disk"));
        EXPECT_THAT(pending->Wait().status().message(), HasSubstr("rank 1: no disk"));
        return pending->Wait().status();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: no disk")));
}

TEST(ExecutorTest, CoalescingRefusesUnlikePlans) {
  const DeviceMesh mesh = Mesh("a=2");
  const RankRedistributionPlan gather(Plan(mesh, "[a]", "[]", {4}), 0),
      reduce(Plan(mesh, "[] P(sum: a)", "[]", {4}), 0);
  const RankRedistributionPlan largest(Plan(mesh, "[] P(max: a)", "[]", {4}), 0);
  const std::unique_ptr<Communicator> communicator = MakeSimulatedCommunicator(0, 2);
  const std::unique_ptr<Device> device = MakeMetaDevice();
  const std::vector<Tensor> sources(2, Tensor::Empty(*device, DType::kF32, {4}).value());
  for (const RankRedistributionPlan* other : {&gather, &largest}) {
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
    DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf(plan, rank, device));
    DT_ASSIGN_OR_RETURN(const Tensor result, ExecutePlan(RankRedistributionPlan(plan, rank), source,
                                                         communicator, "Test"));
    EXPECT_EQ(result.raw() == source.raw(), rank == 0 || rank == 3);
    return CheckResult(plan, rank, result);
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
      const RankRedistributionPlan rank_plan(plan, communicator.rank());
      DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf(plan, communicator.rank(), device));
      DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(source.Transpose(0, 1)));
      DT_ASSIGN_OR_RETURN(const Tensor transposed,
                          FromHost<float>(device, values, {source.size(1), source.size(0)}));
      DT_ASSIGN_OR_RETURN(const Tensor result,
                          ExecutePlan(rank_plan, transposed.Transpose(0, 1), communicator, "Test"));
      return CheckResult(plan, communicator.rank(), result);
    }));
  }
}

TEST(ExecutorTest, SharesStorageWhereAndOnlyWhereThePlanIsAView) {
  const DeviceMesh mesh = Mesh("a=2");
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Communicator> communicator = MakeSimulatedCommunicator(1, 2);
  const auto shares = [&](absl::string_view from, absl::string_view to) {
    const RankRedistributionPlan plan(Plan(mesh, from, to, {8}), 1);
    const Tensor source = Tensor::Empty(*device, DType::kF32, plan.local_from()).value();
    return ExecutePlan(plan, source, *communicator, "Test").value().SharesStorageWith(source);
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
      DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf(plan, communicator.rank(), device));
      device.ResetPeak();
      const int64_t before = device.memory().live_bytes;
      DT_ASSIGN_OR_RETURN(const Tensor result,
                          ExecutePlan(RankRedistributionPlan(plan, communicator.rank()), source,
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
      DT_ASSIGN_OR_RETURN(const Tensor source, SourceOf(plan, rank, device));
      DT_ASSIGN_OR_RETURN(const Tensor result, ExecutePlan(RankRedistributionPlan(plan, rank),
                                                           source, communicator, "Test"));
      counted[rank] = communicator.traffic();
      return absl::OkStatus();
    }));
    for (int rank = 0; rank < 4; ++rank) {
      const std::unique_ptr<Communicator> simulated = MakeSimulatedCommunicator(rank, 4);
      const std::unique_ptr<Device> meta = MakeMetaDevice();
      const RankRedistributionPlan rank_plan(plan, rank);
      const Tensor source = Tensor::Empty(*meta, DType::kF32, rank_plan.local_from()).value();
      DT_ASSERT_OK(ExecutePlan(rank_plan, source, *simulated, "Test"));
      EXPECT_EQ(simulated->traffic(), counted[rank]) << plan.ToString();
    }
  }
}

TEST(ExecutorTest, AWrongLocalShapeIsRefusedOnAllRanksAndTheWorldGoesOn) {
  const DeviceMesh mesh = Mesh("a=2");
  const RedistributionPlan plan = Plan(mesh, "[a]", "[]", {6});
  ExpectOk(RunLocalRanks(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    const RankRedistributionPlan rank_plan(plan, communicator.rank());
    DT_ASSIGN_OR_RETURN(const Tensor wrong, Tensor::Empty(device, DType::kF32, {4}));
    EXPECT_THAT(ExecutePlan(rank_plan, wrong, communicator, "Redistribute"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("Redistribute"), HasSubstr("[4] f32"), HasSubstr("[3]"))));
    DT_ASSIGN_OR_RETURN(const Tensor type, Tensor::Empty(device, DType::kF64, {3}));
    EXPECT_THAT(ExecutePlan(rank_plan, type, communicator, "Redistribute"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("f64")));
    EXPECT_THAT(ExecutePlan(rank_plan, Tensor(), communicator, "Redistribute"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("undefined")));
    EXPECT_TRUE(communicator.traffic().empty());
    DT_ASSIGN_OR_RETURN(const Tensor right, SourceOf(plan, communicator.rank(), device));
    return ExecutePlan(rank_plan, right, communicator, "Redistribute").status();
  }));
}

TEST(ExecutorTest, OneRankThatRefusesFailsTheOthers) {
  const DeviceMesh mesh = Mesh("a=3");
  const RedistributionPlan plan = Plan(mesh, "[a]", "[]", {6});
  const absl::Status status =
      RunLocalRanks(3, [&](Communicator& communicator, Device& device) -> absl::Status {
        const int64_t n = communicator.rank() == 1 ? 5 : 2;
        DT_ASSIGN_OR_RETURN(const Tensor source, Tensor::Empty(device, DType::kF32, {n}));
        const absl::Status mine = ExecutePlan(RankRedistributionPlan(plan, communicator.rank()),
                                              source, communicator, "Redistribute")
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
        const RankRedistributionPlan plan(Plan(mesh, "[a]", "[]", shape), communicator.rank());
        DT_ASSIGN_OR_RETURN(const Tensor source,
                            Tensor::Empty(device, DType::kF32, plan.local_from()));
        const absl::Status mine = ExecutePlan(plan, source, communicator, "Redistribute").status();
        EXPECT_FALSE(mine.ok()) << communicator.rank();
        return mine;
      });
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace dtensor
