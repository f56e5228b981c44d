// Which trace a communicator tells about its exchanges: one at a time, while that trace needs them.
#include <functional>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// On four ranks: of two, terms are reduced in one round.
DeviceMesh Tp4() { return *DeviceMesh::Parse("tp=4"); }

TensorOr Zeros(Context& context, absl::Span<const Placement> placements, const Dims& shape) {
  return Full(context, Tp4(), placements, shape, DType::kF32, 0);
}

absl::Status Gather(Context& context) {
  return Zeros(context, {Shard(0)}, {4, 8})->Redistribute({Replicate()}).status();
}

// The exchanges in a trace.
std::vector<TraceEvent> ExchangesOf(const Context& context) {
  const RankTrace trace = context.trace();
  std::vector<TraceEvent> exchanges;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::kExchange) exchanges.push_back(event);
  }
  return exchanges;
}

// Two rounds: it is reduced and scattered, then gathered.
TensorOr BeginTwoRounds(Context& context) {
  const Dims shape = {512, 512};
  DT_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(context.device(), DType::kF32, shape));
  DT_ASSIGN_OR_RETURN(const DistributedTensor partial,
                      FromLocal(context, Tp4(), {Partial()}, shape, std::move(term)));
  return partial.Redistribute({Replicate()}, {.async = true});
}

// On each rank, with a second Context on the communicator of the first.
void WithTwoContexts(const std::function<absl::Status(Context&, Context&)>& fn) {
  DT_EXPECT_OK(RunRanks(4, [&](Context& first) {
    Context second(first.communicator(), first.device());
    return fn(first, second);
  }));
}

TEST(TraceObserver, AnotherContextThatEndsLeavesTheTraceAlone) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    {
      Context other(context.communicator(), context.device());
      other.StartTrace();
      DT_RETURN_IF_ERROR(Gather(other));
      EXPECT_EQ(ExchangesOf(other).size(), 1u);
      context.StartTrace();
    }
    DT_RETURN_IF_ERROR(Gather(context));
    EXPECT_EQ(ExchangesOf(context).size(), 1u);
    return absl::OkStatus();
  }));
}

// The second round belongs to an event of the first Context's, which the second one's trace has
// not.
TEST(TraceObserver, WhatAnotherBeganIsNotTakenForItsOwn) {
  WithTwoContexts([](Context& first, Context& second) -> absl::Status {
    first.StartTrace();
    for (int i = 0; i < 5; ++i) DT_RETURN_IF_ERROR(Gather(first));
    const TensorOr sum = BeginTwoRounds(first);
    DT_RETURN_IF_ERROR(sum.status());
    second.StartTrace();
    sum->local();  // waits
    const std::vector<TraceEvent> seen = ExchangesOf(second);
    EXPECT_EQ(seen.size(), 1u);
    EXPECT_TRUE(!seen.empty() && seen[0].parent == -1);
    return absl::OkStatus();
  });
}

// What the first missed meanwhile does not confuse it.
TEST(TraceObserver, MayReturnToTheFirst) {
  WithTwoContexts([](Context& first, Context& second) -> absl::Status {
    first.StartTrace();
    {
      const TensorOr sum = BeginTwoRounds(first);
      DT_RETURN_IF_ERROR(sum.status());
      second.StartTrace();
      sum->local();
    }
    first.StartTrace();
    const size_t before = ExchangesOf(first).size();
    DT_RETURN_IF_ERROR(Gather(first));
    const std::vector<TraceEvent> seen = ExchangesOf(first);
    EXPECT_EQ(seen.size(), before + 1);
    EXPECT_TRUE(seen.back().complete());
    EXPECT_EQ(ExchangesOf(second).size(), 1u);
    return absl::OkStatus();
  });
}

TEST(TraceObserver, LeavesWhenNothingIsOnItsWay) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    const Communicator& communicator = context.communicator();
    EXPECT_EQ(communicator.observer(), nullptr);
    context.StartTrace();
    EXPECT_NE(communicator.observer(), nullptr);
    context.StopTrace();
    EXPECT_EQ(communicator.observer(), nullptr);
    context.StartTrace();
    const TensorOr sum = BeginTwoRounds(context);
    DT_RETURN_IF_ERROR(sum.status());
    context.StopTrace();
    EXPECT_NE(communicator.observer(), nullptr) << "the first round is on its way";
    sum->local();
    EXPECT_EQ(communicator.observer(), nullptr);
    EXPECT_EQ(context.tracer()->Open(TraceKind::kSpan, "late"), -1);
    EXPECT_EQ(ExchangesOf(context).size(), 1u);
    EXPECT_EQ(context.trace().dropped, 0);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
