#include "dtensor/parallel_plans/pipeline.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_again.h"
#include "dtensor/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

// A chain of stages, each with a weight of its own. Two tensors cross from each stage to the next.
struct Chain {
  static absl::StatusOr<Chain> Create(Context& context, const DeviceMesh& mesh, int64_t stages) {
    Chain chain;
    for (int64_t s = 0; s < stages; ++s) {
      DT_ASSIGN_OR_RETURN(chain.meshes.emplace_back(), mesh.At("pp", s));
      DT_ASSIGN_OR_RETURN(chain.weights.emplace_back(),
                          RandomNormal(context, Layout::Replicated(chain.meshes.back(), 2), {4, 4},
                                       {.seed = static_cast<uint64_t>(s), .dtype = DType::kF64}));
      DT_RETURN_IF_ERROR(chain.weights.back().set_requires_grad(true));
    }
    return chain;
  }
  TensorOr Loss(Context& context, int64_t micro_batch) const {
    DT_ASSIGN_OR_RETURN(auto x, Full(context, Layout::Replicated(meshes[0], 2), {3, 4}, DType::kF64,
                                     0.1 * static_cast<double>(micro_batch + 1)));
    DistributedTensor y = x;
    for (size_t s = 0; s < meshes.size(); ++s) {
      const Layout here = Layout::Replicated(meshes[s], 2);
      DT_ASSIGN_OR_RETURN(x, x.Redistribute(here));
      DT_ASSIGN_OR_RETURN(y, y.Redistribute(here));
      const TensorOr z = MatMul(Add(x, y), weights[s]);
      DT_ASSIGN_OR_RETURN(y, Scale(z, 0.5));
      DT_ASSIGN_OR_RETURN(x, Tanh(z));
    }
    return Sum(Mul(x, y), {0, 1});
  }
  std::vector<DeviceMesh> meshes;
  std::vector<DistributedTensor> weights;
};

absl::StatusOr<std::vector<double>> Everywhere(const DistributedTensor& x, const DeviceMesh& mesh) {
  DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute(Layout::Replicated(mesh, x.ndim())));
  return ToGlobal<double>(whole);
}

// The gradients of both schedules have the same bits.
TEST(RunPipeline, HasTheGradientsOfTheSumOfAllLosses) {
  for (const auto& [text, stages] : {std::pair("pp=1", 1), std::pair("pp=2,dp=2", 2),
                                     std::pair("pp=3", 3), std::pair("dp=2,pp=4", 4)}) {
    for (const int64_t micro_batches : {1, 2, 3, 7}) {
      const DeviceMesh mesh = *DeviceMesh::Parse(text);
      DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, stages));
        DT_ASSIGN_OR_RETURN(const Chain other, Chain::Create(context, mesh, stages));
        DT_ASSIGN_OR_RETURN(const Chain reference, Chain::Create(context, mesh, stages));
        const auto sum_of = [&](const Chain& one, PipelineSchedule schedule) {
          return RunPipeline(context, mesh, "pp", micro_batches,
                             [&](int64_t i) { return one.Loss(context, i); },
                             {.schedule = schedule});
        };
        DT_ASSIGN_OR_RETURN(const auto sum, sum_of(chain, PipelineSchedule::k1F1B));
        DT_ASSIGN_OR_RETURN(const auto same, sum_of(other, PipelineSchedule::kZeroBubble));
        TensorOr expected = reference.Loss(context, 0);
        for (int64_t i = 1; i < micro_batches; ++i) {
          expected = Add(expected, reference.Loss(context, i));
        }
        DT_RETURN_IF_ERROR(Backward(expected));
        EXPECT_FALSE(sum.requires_grad());
        EXPECT_EQ(*Everywhere(sum, mesh), *Everywhere(expected->Detach(), mesh));
        EXPECT_EQ(*Everywhere(sum, mesh), *Everywhere(same, mesh));
        for (int64_t s = 0; s < stages; ++s) {
          DT_ASSIGN_OR_RETURN(const auto got, Everywhere(chain.weights[s].grad(), mesh));
          DT_ASSIGN_OR_RETURN(const auto equal, Everywhere(other.weights[s].grad(), mesh));
          DT_ASSIGN_OR_RETURN(const auto want, Everywhere(reference.weights[s].grad(), mesh));
          EXPECT_EQ(got, equal) << text << ' ' << s << ' ' << micro_batches;
          EXPECT_THAT(got, testing::Pointwise(testing::DoubleNear(1e-13), want))
              << text << ' ' << s;
        }
        return absl::OkStatus();
      }));
    }
  }
}

TEST(RunPipeline, SaysWhichStepIsNext) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=3");
  DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 3));
    for (const PipelineSchedule schedule :
         {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
      std::vector<PipelineStep> steps;
      const PipelineOptions options = {
          .schedule = schedule,
          .on_step = [&](const PipelineStep& step) { steps.push_back(step); }};
      DT_RETURN_IF_ERROR(
          RunPipeline(
              context, mesh, "pp", 4, [&](int64_t i) { return chain.Loss(context, i); }, options)
              .status());
      EXPECT_EQ(steps, PipelineSteps(schedule, context.rank(), 3, 4));
    }
    return absl::OkStatus();
  }));
}

// The second stage receives only when it has heard that the first has sent and gone on.
TEST(RunPipeline, AStageDoesNotWaitUntilTheNextOneReceives) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
  std::promise<void> first_is_done;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 2));
    if (context.rank() == 1) {
      EXPECT_EQ(first_is_done.get_future().wait_for(std::chrono::seconds(30)),
                std::future_status::ready);
    }
    DT_ASSIGN_OR_RETURN(const auto x,
                        Full(context, Layout::Replicated(chain.meshes[0], 1), {8}, DType::kF32, 3));
    DT_ASSIGN_OR_RETURN(const auto there, x.Redistribute(Layout::Replicated(chain.meshes[1], 1)));
    if (context.rank() == 0) {
      first_is_done.set_value();
    } else {
      EXPECT_THAT(*ToGlobal<float>(there), testing::Each(3));
    }
    // A write to what it has sent waits until that was received.
    DT_RETURN_IF_ERROR(BeforeWrite(x));
    return kernels::Fill(context.device(), x.local(), 5);
  }));
}

// Ranks run it again at different places among the micro-batches, so what it makes is not counted.
TEST(RunPipeline, AFunctionThatRunsAgainMayMakeTensors) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 2));
    const auto loss = [&](int64_t i) -> TensorOr {
      DT_ASSIGN_OR_RETURN(auto x, Full(context, Layout::Replicated(chain.meshes[0], 2), {3, 4},
                                       DType::kF64, static_cast<double>(i)));
      for (int s = 0; s < 2; ++s) {
        const Layout here = Layout::Replicated(chain.meshes[s], 2);
        const auto block = [&context, &chain, here,
                            s](absl::Span<const DistributedTensor> z) -> TensorsOr {
          const TensorOr one = Full(context, here, {3, 4}, DType::kF64, 1);
          DT_ASSIGN_OR_RETURN(auto y, Tanh(MatMul(Add(z[0], one), chain.weights[s])));
          return std::vector<DistributedTensor>{std::move(y)};
        };
        DT_ASSIGN_OR_RETURN(x, x.Redistribute(here));
        DT_ASSIGN_OR_RETURN(const auto y, Recompute({x}, block));
        x = y[0];
      }
      return Sum(x, {0, 1});
    };
    return RunPipeline(context, mesh, "pp", 4, loss).status();
  }));
}

// The first stage of three keeps what it saved of three micro-batches at a time, the last one of
// one, where the sum of all losses keeps all ten.
TEST(RunPipeline, KeepsAsManyMicroBatchesAsThereAreStages) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=3");
  const int64_t rows = 1 << 10, kept = rows * 64 * 4;  // of each micro-batch, by Tanh
  for (const int stage : {0, 1, 2}) {
    DT_EXPECT_OK(Simulate(stage, 3, [&](Context& context) -> absl::Status {
      const auto loss = [&](int64_t) -> TensorOr {
        DT_ASSIGN_OR_RETURN(const DeviceMesh first, mesh.At("pp", 0));
        TensorOr x = Full(context, Layout::Replicated(first, 2), {rows, 64}, DType::kF32, 1);
        DT_RETURN_IF_ERROR(x->set_requires_grad(true));
        for (int s = 0; s < 3; ++s) {
          DT_ASSIGN_OR_RETURN(const DeviceMesh here, mesh.At("pp", s));
          DT_ASSIGN_OR_RETURN(const auto moved, x->Redistribute(Layout::Replicated(here, 2)));
          x = Tanh(moved);
        }
        return Sum(x, {0, 1});
      };
      context.device().ResetPeak();
      DT_RETURN_IF_ERROR(RunPipeline(context, mesh, "pp", 10, loss).status());
      const int64_t peak = context.device().memory().peak_bytes;
      // The leaf or what was received, and the result of Tanh; and gradients on the way.
      EXPECT_LE(peak, (2 * (3 - stage) + 2) * kept + (1 << 12)) << stage;
      context.device().ResetPeak();
      TensorOr sum = loss(0);
      for (int i = 1; i < 10; ++i) sum = Add(sum, loss(i));
      DT_RETURN_IF_ERROR(Backward(sum));
      EXPECT_GE(context.device().memory().peak_bytes, 10 * kept) << stage;
      return absl::OkStatus();
    }));
  }
}

TEST(RunPipeline, RefusesWhatCannotBe) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
    const auto none = [](int64_t) -> TensorOr { return absl::AbortedError("mine"); };
    const auto refuses = [](const TensorOr& result, const std::string& words) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
    };
    refuses(RunPipeline(context, mesh, "tp", 2, none), "no axis");
    refuses(RunPipeline(context, mesh, "pp", 0, none), "0 micro-batches");
    refuses(RunPipeline(context, mesh, "pp", int64_t{1} << 50, none), "up to 2^20");
    refuses(RunPipeline(context, mesh, "pp", 2,
                        [&](int64_t) { return RunPipeline(context, mesh, "pp", 2, none); }),
            "in the loss of another on \"pp\"");
    refuses(RunPipeline(context, mesh, "pp", 1, none, {.bucket_bytes = -1}), "-1 bytes");
    refuses(RunPipeline(context, mesh, "pp", 1, [](int64_t) { return DistributedTensor(); }),
            "the loss is undefined");
    DT_RETURN_IF_ERROR(RunRanks(1, [&](Context& other) -> absl::Status {
      refuses(RunPipeline(context, mesh, "", 1,
                          [&](int64_t) { return Full(other, {}, {}, {}, DType::kF32, 0); }),
              "belongs to another Context");
      return absl::OkStatus();
    }));
    if (context.rank() == 1) {
      refuses(RunPipeline(context, *mesh.At("pp", 0), "pp", 1, none), "rank 1 is not on");
    }
    EXPECT_THAT(RunPipeline(context, mesh, "pp", 1, none),
                StatusIs(absl::StatusCode::kAborted, "mine"));
    EXPECT_FALSE(context.defers_sends());
    return absl::OkStatus();
  }));
}

// Gradient accumulation: what one micro-batch saved is gone when the next one begins, and a refusal
// of a later one, which meets all ranks alike, leaves the world as it is.
TEST(RunPipeline, WithoutStagesOneMicroBatchComesAfterTheOther) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto weight, RandomNormal(context, Layout::Replicated(mesh, 1), {6},
                                                  {.seed = 1, .dtype = DType::kF64}));
    DT_RETURN_IF_ERROR(weight.set_requires_grad(true));
    const auto loss = [&](int64_t i) -> TensorOr {
      DT_ASSIGN_OR_RETURN(const auto x, Full(context, mesh, {Shard(0)}, {6}, DType::kF64, i + 1));
      return Sum(Mul(Mul(x, weight), weight), {0});
    };
    int64_t begun = 0;
    const auto counted = [&](int64_t i) -> TensorOr {
      EXPECT_EQ(i, begun++);
      EXPECT_EQ(weight.grad().defined(), i > 0);  // Backward of the one before is over
      return loss(i);
    };
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto sum, RunPipeline(context, mesh, "", 3, counted));
    EXPECT_EQ(begun, 3);
    DT_RETURN_IF_ERROR(ReduceGradients({weight}));
    int64_t calls = 0;
    for (const auto& [key, traffic] : context.communicator().traffic()) calls += traffic.calls;
    EXPECT_EQ(calls, 1);  // of all three together
    DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<double>(weight.grad()));
    DT_ASSIGN_OR_RETURN(const auto w, ToGlobal<double>(weight.Detach()));
    double want = 0;
    for (int i = 0; i < 6; ++i) {
      EXPECT_NEAR(gradient[i], 2 * 6 * w[i], 1e-12);
      want += 6 * w[i] * w[i];
    }
    EXPECT_NEAR((*Everywhere(sum, mesh))[0], want, 1e-12);
    const auto refused = RunPipeline(context, mesh, "", 3, [&](int64_t i) -> TensorOr {
      if (i == 1) return absl::InvalidArgumentError("no more");
      return loss(i);
    });
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no more")));
    return RunPipeline(context, mesh, "", 1, loss).status();
  }));
}

// Both stages refuse alike, and what the first had put off is not sent to anybody.
TEST(RunPipeline, GoesOnAfterARefusal) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 2));
    const auto loss = [&](int64_t i) { return chain.Loss(context, i); };
    {
      const NoGrad no_grad(context);
      EXPECT_THAT(
          RunPipeline(context, mesh, "pp", 2, loss),
          StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing was recorded")));
    }
    DT_RETURN_IF_ERROR(RunPipeline(context, mesh, "pp", 2, loss).status());
    EXPECT_TRUE(chain.weights[0].grad().defined());
    return absl::OkStatus();
  }));
}

// An exception of the program passes through; the world has failed, since others may wait.
TEST(RunPipeline, EndsTheWorldWithAnException) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
  const absl::Status status = RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 2));
    const auto loss = [&](int64_t i) {
      if (i == 1 && context.rank() == 1) throw std::runtime_error("not now");
      return chain.Loss(context, i);
    };
    if (context.rank() == 0) return RunPipeline(context, mesh, "pp", 3, loss).status();
    EXPECT_THROW(RunPipeline(context, mesh, "pp", 3, loss).IgnoreError(), std::runtime_error);
    EXPECT_FALSE(context.defers_sends());
    return context.FinishLateSends();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               HasSubstr("rank 1: threw an exception: not now")));
}

// Its gradient moves forward, where those of activations move back.
TEST(RunPipeline, AWeightMayBeStoredInALaterStage) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 2));
    const Layout first = Layout::Replicated(chain.meshes[0], 2);
    const Layout second = Layout::Replicated(chain.meshes[1], 2);
    const DistributedTensor& shared = chain.weights[1];
    const auto loss = [&](int64_t i) -> TensorOr {
      DT_ASSIGN_OR_RETURN(const auto x, Full(context, first, {4, 4}, DType::kF64, 0.1 * (i + 1)));
      DT_ASSIGN_OR_RETURN(const auto copy, RedistributeKept(shared, first));
      DT_ASSIGN_OR_RETURN(const auto h, Tanh(MatMul(MatMul(x, copy), chain.weights[0])));
      return Sum(MatMul(h.Redistribute(second), shared), {0, 1});
    };
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(RunPipeline(context, mesh, "pp", 4, loss).status());
    int64_t calls = 0;
    for (const auto& [key, traffic] : context.communicator().traffic()) calls += traffic.calls;
    EXPECT_EQ(calls, 1 + 4 * 3);  // the weight once; an activation and two gradients each
    DT_ASSIGN_OR_RETURN(const auto got, Everywhere(shared.grad(), mesh));
    DistributedTensor same = shared;
    same.ClearGrad();
    TensorOr sum = loss(0);
    for (int64_t i = 1; i < 4; ++i) sum = Add(sum, loss(i));
    DT_RETURN_IF_ERROR(Backward(sum));
    DT_ASSIGN_OR_RETURN(const auto want, Everywhere(shared.grad(), mesh));
    EXPECT_THAT(got, testing::Pointwise(testing::DoubleNear(1e-13), want));
    return absl::OkStatus();
  }));
}

// A copy is made again for each write, and for nothing else.
TEST(RedistributeKept, FollowsWrites) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 2));
    const DistributedTensor& weight = chain.weights[0];
    const Layout there = Layout::Replicated(chain.meshes[1], 2);
    for (const double value : {1.0, 2.0}) {
      DT_RETURN_IF_ERROR(BeforeWrite(weight));
      DT_RETURN_IF_ERROR(kernels::Fill(context.device(), weight.local(), value));
      for (int i = 0; i < 3; ++i) {
        context.communicator().ResetTraffic();
        DT_ASSIGN_OR_RETURN(const auto copy, RedistributeKept(weight, there));
        EXPECT_TRUE(copy.mesh() == there.mesh() && !copy.requires_grad());
        if (context.rank() == 1) {
          EXPECT_EQ(context.communicator().traffic().empty(), i > 0);
          EXPECT_THAT(*ToGlobal<double>(copy.Detach()), testing::Each(value));
        }
      }
    }
    DT_ASSIGN_OR_RETURN(const auto result, Scale(weight, 2));
    EXPECT_THAT(RedistributeKept(result, there),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("recorded operator")));
    return absl::OkStatus();
  }));
}

// The first micro-batch may be refused, and the world goes on. A later one leaves stages at
// different steps, so the world fails, with that reason on all ranks.
TEST(RunPipeline, ARefusalIsHeardByAllRanks) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=3");
  for (const int64_t refused : {0, 1, 2, 3}) {
    std::vector<absl::Status> heard(3);
    const absl::Status status = RunRanks(3, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 3));
      const auto loss = [&](int64_t i) -> TensorOr {
        if (i == refused) return absl::InvalidArgumentError("mine");
        return chain.Loss(context, i);
      };
      const PipelineSchedule schedule =
          refused % 2 == 0 ? PipelineSchedule::k1F1B : PipelineSchedule::kZeroBubble;
      heard[context.rank()] =
          RunPipeline(context, mesh, "pp", 4, loss, {.schedule = schedule}).status();
      const auto other = [&](int64_t i) { return chain.Loss(context, i); };
      return RunPipeline(context, mesh, "pp", 4, other).status();
    });
    EXPECT_EQ(status.ok(), refused == 0) << status;
    for (const absl::Status& one : heard) {
      EXPECT_THAT(one, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mine"))) << refused;
    }
  }
}

// Stage 0 gives stage 2 something, too. Nobody hangs, and the reason is told.
TEST(RunPipeline, AConnectionThatSkipsAStageFailsOnAllRanks) {
  const DeviceMesh mesh = *DeviceMesh::Parse("pp=3");
  std::vector<absl::Status> heard(3);
  const absl::Status status = RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Chain chain, Chain::Create(context, mesh, 3));
    heard[context.rank()] = RunPipeline(context, mesh, "pp", 4, [&](int64_t) -> TensorOr {
                              DT_ASSIGN_OR_RETURN(const auto x, Tanh(chain.weights[0]));
                              const Layout middle = Layout::Replicated(chain.meshes[1], 2);
                              const Layout last = Layout::Replicated(chain.meshes[2], 2);
                              DT_ASSIGN_OR_RETURN(const auto y, Tanh(x.Redistribute(middle)));
                              return Sum(Mul(x.Redistribute(last), y.Redistribute(last)), {0, 1});
                            }).status();
    return heard[context.rank()];
  });
  EXPECT_FALSE(status.ok());
  for (const absl::Status& one : heard) EXPECT_EQ(one.message(), heard[0].message());
  EXPECT_THAT(heard[0].message(), testing::AnyOf(HasSubstr("disagree"), HasSubstr("cycle")));
}

}  // namespace
}  // namespace dtensor
