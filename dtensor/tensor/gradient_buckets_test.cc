// Buckets: gradients that are reduced during Backward equal those of ReduceGradients after it, bit
// for bit, with as many collectives as their bytes require.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<std::vector<float>>;

constexpr int kLayers = 6;
constexpr int64_t kDim = 8, kBytes = kDim * kDim * sizeof(float);

// Weights, the first of which is used again at the end; one that nobody uses; a mesh of which both
// axes split rows of the batch, or one the batch and one the features.
struct Model {
  DeviceMesh mesh;
  std::vector<DistributedTensor> weights;
  DistributedTensor x;
};

absl::StatusOr<Model> MakeModel(Context& context, const std::string& mesh, DType dtype) {
  Model model;
  DT_ASSIGN_OR_RETURN(model.mesh, DeviceMesh::Parse(mesh));
  const Layout whole = Layout::Replicated(model.mesh, 2);
  for (uint64_t i = 0; i <= kLayers; ++i) {
    DT_ASSIGN_OR_RETURN(auto w, RandomNormal(context, whole, {kDim, kDim},
                                             {.seed = 1 + i, .stddev = 0.4, .dtype = dtype}));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    model.weights.push_back(std::move(w));
  }
  DT_ASSIGN_OR_RETURN(model.x, RandomNormal(context, whole, {7, kDim}, {.dtype = dtype}));
  return model;
}

// The batch is split by the first axis; before layer 2 features are split by the last, if there
// are two, whose weight then has a gradient that is Partial over both.
TensorOr Forward(const Model& model, bool recompute) {
  DT_ASSIGN_OR_RETURN(const Layout rows, model.x.layout().WithAxes({0}, Shard(0)));
  TensorOr h = model.x.Redistribute(rows);
  for (int i = 0; i < kLayers; ++i) {
    const DistributedTensor& w = model.weights[i];
    if (i == 2 && model.mesh.num_axes() > 1) {
      DT_RETURN_IF_ERROR(h.status());
      DT_ASSIGN_OR_RETURN(const Layout both, h->layout().WithAxes({1}, Shard(0)));
      h = h->Redistribute(both);
    }
    const auto layer = [w](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, Silu(MatMul(x[0], w)));
      return std::vector<DistributedTensor>{std::move(y)};
    };
    DT_RETURN_IF_ERROR(h.status());
    if (recompute && i % 2 == 0) {
      DT_ASSIGN_OR_RETURN(const auto y, Recompute({*h}, layer));
      h = y[0];
    } else {
      DT_ASSIGN_OR_RETURN(const auto y, layer({*h}));
      h = y[0];
    }
  }
  return Sum(MatMul(h, model.weights[0]), {0, 1});
}

struct Case {
  std::string mesh = "dp=2";
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  bool recompute = false;
  int micro_batches = 1;      // of which the last reduces,
  bool each_reduces = false;  // or each
};

struct Outcome {
  Values gradients;
  int64_t in_backward = 0, after = 0;  // calls
};

int64_t Calls(Context& context) {
  int64_t calls = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) calls += traffic.calls;
  context.communicator().ResetTraffic();
  return calls;
}

absl::Status RunCase(Context& context, const Case& c, int64_t bytes, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(Model model, MakeModel(context, c.mesh, c.dtype));
  for (DistributedTensor& w : model.weights) DT_RETURN_IF_ERROR(w.set_grad_dtype(c.grad_dtype));
  Outcome mine;
  for (int micro = 1; micro <= c.micro_batches; ++micro) {
    const TensorOr loss = Forward(model, c.recompute);
    DT_RETURN_IF_ERROR(loss.status());
    Calls(context);
    const bool reduces = micro == c.micro_batches || c.each_reduces;
    DT_RETURN_IF_ERROR(Backward(loss, {.bucket_bytes = reduces ? bytes : 0}));
    mine.in_backward = Calls(context);
    if (reduces) DT_RETURN_IF_ERROR(ReduceGradients(model.weights));
    mine.after = Calls(context);
  }
  EXPECT_FALSE(model.weights[kLayers].grad().defined());
  for (int i = 0; i < kLayers; ++i) {
    const DistributedTensor gradient = model.weights[i].grad();
    EXPECT_EQ(gradient.layout(), model.weights[i].layout());
    EXPECT_EQ(gradient.dtype(), c.grad_dtype);
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const auto floats, Cast(gradient, DType::kF32));
    DT_ASSIGN_OR_RETURN(auto values, ToGlobal<float>(floats));
    mine.gradients.push_back(std::move(values));
  }
  if (context.rank() == 0) outcome = std::move(mine);
  return absl::OkStatus();
}

Outcome On(const Case& c, int64_t bytes) {
  Outcome outcome;
  DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(c.mesh)->size(), [&](Context& context) {
    return RunCase(context, c, bytes, outcome);
  })) << c.mesh;
  return outcome;
}

TEST(GradientBuckets, GiveTheBitsOfOneReductionAtTheEnd) {
  for (const Case& c :
       {Case{.mesh = "dp=1"}, Case{}, Case{.mesh = "dp=3"}, Case{.mesh = "dp=2,cp=2"},
        Case{.mesh = "dp=1,cp=2"}, Case{.dtype = DType::kBF16, .grad_dtype = DType::kBF16},
        Case{.dtype = DType::kBF16, .grad_dtype = DType::kF32}, Case{.recompute = true},
        Case{.mesh = "dp=2,cp=2", .recompute = true}, Case{.micro_batches = 3},
        Case{.mesh = "dp=2,cp=2", .micro_batches = 2},
        Case{.dtype = DType::kBF16, .micro_batches = 2},
        Case{.micro_batches = 3, .each_reduces = true},
        Case{.recompute = true, .micro_batches = 2, .each_reduces = true}}) {
    const Outcome at_end = On(c, 0);
    for (const int64_t bytes : {int64_t{1}, kBytes, 2 * kBytes + 1, kBucketBytes}) {
      const Outcome run = On(c, bytes);
      EXPECT_EQ(run.gradients, at_end.gradients) << c.mesh << " " << bytes;
      EXPECT_EQ(run.after, 0) << "nothing is left to reduce";
    }
  }
}

// Weights 5, 4, ... 1 are complete in this order, and then 0, whose two uses are the first and the
// last.
TEST(GradientBuckets, AreBegunWhenTheyAreFull) {
  const Outcome at_end = On({}, 0);
  EXPECT_EQ(at_end.in_backward, 0);
  EXPECT_EQ(at_end.after, 1);
  for (const bool recompute : {false, true}) {
    const Case c{.recompute = recompute};
    EXPECT_EQ(On(c, 1).in_backward, 6);
    EXPECT_EQ(On(c, kBytes).in_backward, 6);
    EXPECT_EQ(On(c, kBytes + 1).in_backward, 3);
    EXPECT_EQ(On(c, 4 * kBytes).in_backward, 2);
    EXPECT_EQ(On(c, kBucketBytes).in_backward, 1);
  }
}

TEST(GradientBuckets, HaveOneForEachSetOfAxes) {
  const Case c{.mesh = "dp=2,cp=2"};
  const Outcome at_end = On(c, 0), run = On(c, kBucketBytes);
  EXPECT_EQ(run.in_backward, at_end.in_backward + at_end.after);
}

// The function does not use its second operand, so the way through that one brings nothing.
TEST(GradientBuckets, ReduceWhatWaitsForAnOperatorThatGetsNoGradient) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Model model, MakeModel(context, "dp=2", DType::kF32));
    DT_ASSIGN_OR_RETURN(const Layout rows, model.x.layout().WithAxes({0}, Shard(0)));
    DT_ASSIGN_OR_RETURN(const auto x, model.x.Redistribute(rows));
    DT_ASSIGN_OR_RETURN(const auto used, MatMul(x, model.weights[0]));
    DT_ASSIGN_OR_RETURN(const auto unused, MatMul(x, model.weights[0]));
    const auto first = [](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, Silu(x[0]));
      return std::vector<DistributedTensor>{std::move(y)};
    };
    DT_ASSIGN_OR_RETURN(const auto y, Recompute({used, unused}, first));
    DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0, 1}), {.bucket_bytes = 1}));
    EXPECT_EQ(model.weights[0].grad().layout(), model.weights[0].layout());
    return absl::OkStatus();
  }));
}

TEST(GradientBuckets, AreNoneOfGradientsOf) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Model model, MakeModel(context, "dp=2", DType::kF32));
    DT_RETURN_IF_ERROR(Backward(Forward(model, false)));  // leaves gradients that are Partial
    const auto gradient = [&](int64_t bytes) -> absl::StatusOr<std::vector<float>> {
      DT_ASSIGN_OR_RETURN(const auto loss, Forward(model, false));
      Calls(context);
      DT_ASSIGN_OR_RETURN(const auto gradients,
                          GradientsOf(loss, {model.weights[1]}, {.bucket_bytes = bytes}));
      EXPECT_EQ(Calls(context), 0);
      EXPECT_TRUE(gradients[0].layout().is_partial());
      return ToGlobal<float>(gradients[0]);
    };
    DT_ASSIGN_OR_RETURN(const auto without, gradient(0));
    DT_ASSIGN_OR_RETURN(const auto with, gradient(1));
    EXPECT_EQ(with, without);
    return absl::OkStatus();
  }));
}

// A leaf that a function gives back, at which gradients arrive in two layouts, with one before.
TEST(GradientBuckets, TakeALeafOnceThatGetsTwoLayoutsAlongOneEdge) {
  const auto run = [](int64_t bytes, std::vector<float>& gradient, int64_t& calls) {
    return RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Model model, MakeModel(context, "dp=2", DType::kF32));
      const DistributedTensor& w = model.weights[0];
      DT_ASSIGN_OR_RETURN(const Layout rows, model.x.layout().WithAxes({0}, Shard(0)));
      DT_ASSIGN_OR_RETURN(const auto x, model.x.Redistribute(rows));
      const auto itself = [](absl::Span<const DistributedTensor> operands) -> TensorsOr {
        return std::vector<DistributedTensor>{operands[0]};
      };
      for (const bool last : {false, true}) {
        DT_ASSIGN_OR_RETURN(const auto y, Recompute({w}, itself));
        TensorOr loss = Sum(MatMul(x, y[0]), {0, 1});
        if (last) loss = Add(loss, Sum(Silu(y[0]), {0, 1}));
        DT_RETURN_IF_ERROR(loss.status());
        Calls(context);
        DT_RETURN_IF_ERROR(Backward(loss, {.bucket_bytes = last ? bytes : 0}));
        if (context.rank() == 0 && last) calls = Calls(context);
      }
      EXPECT_EQ(w.grad().layout(), w.layout());
      DT_ASSIGN_OR_RETURN(auto values, ToGlobal<float>(w.grad()));
      if (context.rank() == 0) gradient = std::move(values);
      return absl::OkStatus();
    });
  };
  std::vector<float> at_end, with;
  int64_t calls = 0, with_calls = 0;
  DT_ASSERT_OK(run(0, at_end, calls));
  DT_ASSERT_OK(run(1, with, with_calls));
  EXPECT_EQ(with, at_end);
  EXPECT_EQ(with_calls, 1);
}

TEST(GradientBuckets, TakeALeafThatWantsNoGradientAnyMore) {
  for (const bool recompute : {false, true}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Model model, MakeModel(context, "dp=2", DType::kF32));
      std::vector<std::vector<float>> gradients;
      for (const bool wanted : {true, false}) {
        DistributedTensor w = model.weights[1];  // outside of the functions that run again
        DT_RETURN_IF_ERROR(w.set_requires_grad(true));
        DT_ASSIGN_OR_RETURN(const auto loss, Forward(model, recompute));
        DT_RETURN_IF_ERROR(w.set_requires_grad(wanted));
        DT_RETURN_IF_ERROR(Backward(loss, {.bucket_bytes = 1}));
        DT_ASSIGN_OR_RETURN(auto values, ToGlobal<float>(w.grad()));
        gradients.push_back(std::move(values));
        w.ClearGrad();
      }
      EXPECT_EQ(gradients[1], gradients[0]);
      return absl::OkStatus();
    }));
  }
}

// Of a leaf that has a gradient, and that three functions read which run again.
TEST(GradientBuckets, AddWhatALeafHasOnce) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Model model, MakeModel(context, "dp=2", DType::kF32));
    DistributedTensor w = model.weights[0], first = model.weights[1];
    std::vector<float> gradients[2];
    const auto layer = [w](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, Silu(MatMul(x[0], w)));
      return std::vector<DistributedTensor>{std::move(y)};
    };
    for (const bool reduces : {false, true}) {
      w.ClearGrad();
      DT_RETURN_IF_ERROR(Backward(Forward(model, false)));  // leaves what is Partial
      DT_ASSIGN_OR_RETURN(const auto x, model.x.Redistribute({Shard(0)}));
      DT_ASSIGN_OR_RETURN(DistributedTensor h, MatMul(x, first));
      for (int i = 0; i < 3; ++i) {
        DT_ASSIGN_OR_RETURN(const auto y, Recompute({h}, layer));
        h = y[0];
      }
      DT_RETURN_IF_ERROR(Backward(Sum(h, {0, 1}), {.bucket_bytes = reduces}));
      DT_ASSIGN_OR_RETURN(gradients[reduces], ToGlobal<float>(w.grad()));
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_NEAR(gradients[1][i], gradients[0][i], 1e-4);
    }
    return absl::OkStatus();
  }));
}

TEST(GradientBuckets, RefuseANegativeSizeBeforeAnythingRuns) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Model model, MakeModel(context, "dp=2", DType::kF32));
    DT_ASSIGN_OR_RETURN(const auto loss, Forward(model, false));
    EXPECT_THAT(
        Backward(loss, {.bucket_bytes = -1}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a bucket of -1 bytes cannot be")));
    for (const DistributedTensor& w : model.weights) EXPECT_FALSE(w.grad().defined());
    return Backward(loss, {.bucket_bytes = 1});
  }));
}

}  // namespace
}  // namespace dtensor
