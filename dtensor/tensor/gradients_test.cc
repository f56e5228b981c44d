// GradientsOf(), retained tapes, and gradients that the caller passes in.
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

const char* const kMeshes[] = {"tp=1", "tp=2", "dp=2,tp=2"};

// x = {1, 2, 3, 4}, split over the last axis of each mesh, and a leaf.
using Body = absl::Status (*)(Context&, DistributedTensor x);
void WithX(Body body) {
  for (const char* text : kMeshes) {
    SCOPED_TRACE(text);
    const DeviceMesh mesh = DeviceMesh::Parse(text).value();
    DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
      Placements placements(mesh.num_axes(), Replicate());
      placements.back() = Shard(0);
      DT_ASSIGN_OR_RETURN(DistributedTensor x,
                          Distribute<float>(context, mesh, placements, {4}, {{1, 2, 3, 4}}));
      DT_RETURN_IF_ERROR(x.set_requires_grad(true));
      return body(context, x);
    }));
  }
}

absl::StatusOr<std::vector<float>> Values(const DistributedTensor& tensor) {
  return ToGlobal<float>(tensor);
}

TEST(Backward, WalksARetainedTapeAgain) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    const TensorOr loss = Sum(Mul(Scale(x, 2), x), {0});
    for (int pass = 1; pass <= 3; ++pass) {
      DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = pass < 3}));
      DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Values(x.grad()));
      EXPECT_THAT(gradient, ElementsAre(4 * pass, 8 * pass, 12 * pass, 16 * pass));
    }
    EXPECT_THAT(Backward(loss, {.retain_graph = true}),
                StatusIs(kFailedPrecondition, HasSubstr("walked by an earlier Backward")));
    return absl::OkStatus();
  });
}

TEST(Backward, RefusesARetainedTapeWhoseTensorsWereWritten) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    const TensorOr loss = Sum(Mul(x, x), {0});
    DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = true}));
    DT_RETURN_IF_ERROR(BeforeWrite(x));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), x.local(), 7));
    EXPECT_THAT(Backward(loss), StatusIs(kFailedPrecondition, HasSubstr("was written after")));
    return absl::OkStatus();
  });
}

TEST(Backward, TakesTheGradientOfWhatIsNoScalar) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Mul(x, x));
    // Wherever it lies.
    for (const bool whole : {false, true}) {
      const Layout layout = whole ? Layout::Replicated(x.mesh(), 1) : x.layout();
      DT_ASSIGN_OR_RETURN(const DistributedTensor dy,
                          Distribute<float>(context, layout, {4}, {{1, 10, 100, 1000}}));
      x.ClearGrad();
      DT_RETURN_IF_ERROR(Backward(y, {.gradient = dy, .retain_graph = true}));
      DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Values(x.grad()));
      EXPECT_THAT(gradient, ElementsAre(2, 40, 600, 8000));
    }
    return absl::OkStatus();
  });
}

TEST(Backward, TakesAPartialGradient) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(DistributedTensor x,
                        Distribute<float>(context, mesh, {Replicate()}, {2}, {{3, 5}}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const DistributedTensor terms,
                        Full(context, mesh, {Replicate()}, {2}, DType::kF32, context.rank() + 1));
    DT_ASSIGN_OR_RETURN(const Layout partial, Layout::FromPlacements(mesh, {Partial()}, {2}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor dy,
                        FromLocal(context, partial, {2}, terms.local()));
    DT_RETURN_IF_ERROR(Backward(Mul(x, x), {.gradient = dy}));
    DT_RETURN_IF_ERROR(ReduceGradients({x}));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Values(x.grad()));
    EXPECT_THAT(gradient, ElementsAre(2 * 3 * 3, 2 * 5 * 3));
    return absl::OkStatus();
  }));
}

// Views and additions hand the gradient on as it is: the leaf's must not be the caller's memory.
TEST(Backward, KeepsNoMemoryOfAGivenGradient) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor dy, Full(context, x.layout(), {4}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(Backward(Add(x, Reshape(x, {4})), {.gradient = dy}));
    DT_RETURN_IF_ERROR(Backward(x, {.gradient = dy}));
    DT_RETURN_IF_ERROR(BeforeWrite(dy));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), dy.local(), 100));
    DT_ASSIGN_OR_RETURN(const std::vector<float> gradient, Values(x.grad()));
    EXPECT_THAT(gradient, ElementsAre(9, 9, 9, 9));
    return absl::OkStatus();
  });
}

TEST(Backward, RefusesAGradientThatDoesNotFit) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    const TensorOr y = Scale(x, 2);
    const auto refuses = [&](const TensorOr& dy, const char* why) {
      DT_RETURN_IF_ERROR(dy.status());
      EXPECT_THAT(Backward(y, {.gradient = *dy}), StatusIs(kInvalidArgument, HasSubstr(why)));
      return absl::OkStatus();
    };
    DT_RETURN_IF_ERROR(refuses(Full(context, Layout::Replicated(x.mesh(), 1), {5}, DType::kF32, 1),
                               "give it the same shape, type and mesh"));
    DT_RETURN_IF_ERROR(
        refuses(Full(context, x.layout(), {4}, DType::kF64, 1), "the gradient is [4] f64"));
    EXPECT_THAT(Backward(y), StatusIs(kInvalidArgument, HasSubstr("or give its gradient")));
    DT_ASSIGN_OR_RETURN(const DistributedTensor dy, Full(context, x.layout(), {4}, DType::kF32, 1));
    return Backward(y, {.gradient = dy});  // nothing ran before the refusals
  });
}

TEST(GradientsOf, OfLeavesAndResultsLeaveGradAlone) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor h, Scale(x, 2));
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Sum(Mul(h, h), {0}));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> gradients,
                        GradientsOf(loss, {h, x, loss, h}));
    EXPECT_FALSE(x.grad().defined());
    EXPECT_THAT(Values(gradients[0]), IsOkAndHolds(ElementsAre(4, 8, 12, 16)));
    EXPECT_THAT(Values(gradients[1]), IsOkAndHolds(ElementsAre(8, 16, 24, 32)));
    EXPECT_THAT(Item(gradients[2]), IsOkAndHolds(1));
    EXPECT_THAT(Values(gradients[3]), IsOkAndHolds(ElementsAre(4, 8, 12, 16)));
    return absl::OkStatus();
  });
}

// Each is a tensor of its own.
TEST(GradientsOf, ShareNoWrites) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor h, Reshape(Scale(x, 2), {4}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Add(h, x));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> gradients,
                        GradientsOf(Sum(y, {0}), {y, h, h}));
    DT_RETURN_IF_ERROR(BeforeWrite(gradients[1]));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), gradients[1].local(), 50));
    EXPECT_THAT(Values(gradients[0]), IsOkAndHolds(ElementsAre(1, 1, 1, 1)));
    EXPECT_THAT(Values(gradients[1]), IsOkAndHolds(ElementsAre(50, 50, 50, 50)));
    EXPECT_THAT(Values(gradients[2]), IsOkAndHolds(ElementsAre(1, 1, 1, 1)));
    return absl::OkStatus();
  });
}

TEST(GradientsOf, WalkOnlyWhatLiesBetween) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor h, Scale(x, 2));
    DT_ASSIGN_OR_RETURN(const DistributedTensor a, Mul(h, h));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> da, GradientsOf(Sum(a, {0}), {h}));
    EXPECT_THAT(Values(da[0]), IsOkAndHolds(ElementsAre(4, 8, 12, 16)));
    // Mul was walked, and Scale below it was not.
    EXPECT_THAT(Backward(Sum(a, {0})), StatusIs(kFailedPrecondition, HasSubstr("Mul was walked")));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> dh, GradientsOf(Sum(h, {0}), {x}));
    EXPECT_THAT(Values(dh[0]), IsOkAndHolds(ElementsAre(2, 2, 2, 2)));
    // `a` was walked, but is where this ends; x may lie below it.
    const TensorOr b = Scale(a, 3);
    EXPECT_THAT(GradientsOf(Sum(b, {0}), {a, x}),
                StatusIs(kFailedPrecondition, HasSubstr("GradientsOf: Mul was walked")));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> db, GradientsOf(Sum(b, {0}), {a}));
    EXPECT_THAT(Values(db[0]), IsOkAndHolds(ElementsAre(3, 3, 3, 3)));
    return absl::OkStatus();
  });
}

TEST(GradientsOf, PassOverWhatWasWrittenOutsideOfTheirWay) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(DistributedTensor w, Full(context, x.layout(), {4}, DType::kF32, 2));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const DistributedTensor wx, Mul(w, x.Detach()));
    const TensorOr loss = Sum(Add(Mul(wx, wx), x), {0});
    DT_RETURN_IF_ERROR(BeforeWrite(w));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), w.local(), 7));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> gradients,
                        GradientsOf(loss, {x}, {.retain_graph = true}));
    EXPECT_THAT(Values(gradients[0]), IsOkAndHolds(ElementsAre(1, 1, 1, 1)));
    DT_RETURN_IF_ERROR(GradientsOf(loss, {wx}, {.retain_graph = true}).status());
    return absl::OkStatus();
  });
}

TEST(GradientsOf, OfWhatWasRedistributedAreItsSources) {
  WithX([](Context&, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor h, Scale(x, 2));
    DT_ASSIGN_OR_RETURN(const DistributedTensor moved,
                        h.Redistribute(Layout::Replicated(x.mesh(), 1)));
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Add(Sum(moved, {0}), Sum(Scale(h, 3), {0})));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> gradients, GradientsOf(loss, {moved}));
    EXPECT_THAT(Values(gradients[0]), IsOkAndHolds(ElementsAre(4, 4, 4, 4)));
    return absl::OkStatus();
  });
}

TEST(GradientsOf, RefuseWhatHasNone) {
  WithX([](Context& context, DistributedTensor x) -> absl::Status {
    DT_ASSIGN_OR_RETURN(DistributedTensor other, Full(context, x.layout(), {4}, DType::kF32, 1));
    const TensorOr loss = Sum(Scale(x, 2), {0});
    EXPECT_THAT(GradientsOf(loss, {x, DistributedTensor()}),
                StatusIs(kInvalidArgument, HasSubstr("GradientsOf: tensor 1 is undefined")));
    EXPECT_THAT(GradientsOf(loss, {other}),
                StatusIs(kInvalidArgument, HasSubstr("wants no gradient")));
    DT_RETURN_IF_ERROR(other.set_requires_grad(true));
    EXPECT_THAT(GradientsOf(loss, {x, other}),
                StatusIs(kFailedPrecondition, HasSubstr("does not depend on tensor 1")));
    EXPECT_THAT(GradientsOf(Scale(x, 2), {x}),
                StatusIs(kInvalidArgument, HasSubstr("GradientsOf: the loss must be one")));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> gradients,
                        GradientsOf(loss, {other, x}, {.allow_unused = true}));
    EXPECT_FALSE(gradients[0].defined());
    EXPECT_THAT(Values(gradients[1]), IsOkAndHolds(ElementsAre(2, 2, 2, 2)));
    // Of nothing that it depends on, nothing is walked.
    const TensorOr again = Sum(Scale(x, 2), {0});
    DT_RETURN_IF_ERROR(GradientsOf(again, {other}, {.allow_unused = true}).status());
    return Backward(again);
  });
}

// A chain of random operators over tensors [4, 3]: gradients of any of them are those of a program
// that begins there, and all leaves together are what Backward gives.
class RandomProgram {
 public:
  RandomProgram(Context& context, const DeviceMesh& mesh, uint64_t seed)
      : context_(context), mesh_(mesh), random_(seed), layouts_(seed) {}

  absl::Status Make() {
    for (int i = 0; i < 3; ++i) {
      DT_ASSIGN_OR_RETURN(DistributedTensor leaf,
                          RandomNormal(context_, AnyLayout(), {4, 3},
                                       {.seed = 5, .stream = uint64_t(i), .dtype = DType::kF64}));
      DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
      tensors.push_back(leaf);
    }
    for (int i = 0; i < 8; ++i) {
      DT_ASSIGN_OR_RETURN(DistributedTensor next, Next(Any(), Any()));
      tensors.push_back(next);
    }
    return absl::OkStatus();
  }
  TensorOr Loss() { return Sum(Mul(tensors.back(), tensors[tensors.size() - 2]), {0, 1}); }

  std::vector<DistributedTensor> tensors;

 private:
  int Draw(int n) { return static_cast<int>(random_() % n); }
  const DistributedTensor& Any() { return tensors[Draw(static_cast<int>(tensors.size()))]; }
  Layout AnyLayout() {
    Placements placements;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      const auto draw = static_cast<int>(layouts_() % 3);
      placements.push_back(draw == 2 ? Replicate() : Shard(draw));
    }
    return Layout::FromPlacements(mesh_, placements, {4, 3}).value();
  }
  TensorOr Next(const DistributedTensor& a, const DistributedTensor& b) {
    switch (Draw(4)) {
      case 0:
        return Scale(Mul(a, b), 0.5);
      case 1:
        return Add(a, Silu(b));
      case 2:
        return a.Redistribute(AnyLayout());
      default:
        return Reshape(Sub(a, b), {4, 3});
    }
  }

  Context& context_;
  const DeviceMesh& mesh_;
  std::mt19937_64 random_, layouts_;  // operators are alike on every mesh
};

absl::StatusOr<std::vector<double>> Reference(Context& context, uint64_t seed, size_t which) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh one, DeviceMesh::Parse("tp=1"));
  RandomProgram program(context, one, seed);
  DT_RETURN_IF_ERROR(program.Make());
  DT_ASSIGN_OR_RETURN(
      const std::vector<DistributedTensor> gradient,
      GradientsOf(program.Loss(), {program.tensors[which]}, {.allow_unused = true}));
  if (!gradient[0].defined()) return std::vector<double>(12, 0);
  return ToGlobal<double>(gradient[0]);
}

absl::Status CompareWithOneRank(Context& context, const DeviceMesh& mesh, uint64_t seed,
                                const std::vector<std::vector<double>>& expected) {
  RandomProgram program(context, mesh, seed);
  DT_RETURN_IF_ERROR(program.Make());
  const TensorOr loss = program.Loss();
  DT_ASSIGN_OR_RETURN(
      const std::vector<DistributedTensor> gradients,
      GradientsOf(loss, program.tensors, {.retain_graph = true, .allow_unused = true}));
  DT_RETURN_IF_ERROR(Backward(loss));
  for (size_t i = 0; i < gradients.size(); ++i) {
    std::vector<double> values(12, 0), stored(12, 0);
    if (gradients[i].defined()) {
      DT_ASSIGN_OR_RETURN(values, ToGlobal<double>(gradients[i]));
    }
    for (int k = 0; k < 12; ++k) EXPECT_NEAR(values[k], expected[i][k], 1e-12) << i;
    if (i >= 3) continue;
    if (program.tensors[i].grad().defined()) {
      DT_ASSIGN_OR_RETURN(stored, ToGlobal<double>(program.tensors[i].grad()));
    }
    EXPECT_EQ(stored, values) << "leaf " << i;
  }
  return absl::OkStatus();
}

TEST(GradientsOf, OfRandomProgramsAreAlikeOnEveryMesh) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    std::vector<std::vector<double>> expected(11);
    DT_ASSERT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
      for (size_t i = 0; i < expected.size(); ++i) {
        DT_ASSIGN_OR_RETURN(expected[i], Reference(context, seed, i));
      }
      return absl::OkStatus();
    }));
    for (const char* text : {"tp=1", "tp=2", "dp=2,tp=2", "tp=5"}) {
      SCOPED_TRACE(absl::StrCat(text, ", seed ", seed));
      const DeviceMesh mesh = DeviceMesh::Parse(text).value();
      DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) {
        return CompareWithOneRank(context, mesh, seed, expected);
      }));
    }
  }
}

// A gradient is its user's as well, who may give its memory away.
TEST(Backward, RefusesToAddToAGradientThatIsNoMore) {
  EXPECT_THAT(
      RunRanks(
          2,
          [](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
            DT_ASSIGN_OR_RETURN(const auto x,
                                Full(context, mesh, {Shard(0)}, {6, 4}, DType::kF32, 2));
            DT_ASSIGN_OR_RETURN(auto w, Full(context, mesh, {Replicate()}, {4, 4}, DType::kF32, 3));
            DT_RETURN_IF_ERROR(w.set_requires_grad(true));
            const auto loss = [&] { return Sum(Linear(x, w), {0, 1}); };
            DT_RETURN_IF_ERROR(Backward(loss()));
            const RedistributeOptions in_place{.plan = RedistributionOptions{.in_place = true}};
            DT_RETURN_IF_ERROR(w.grad().Redistribute({Replicate()}, in_place).status());
            for (const int64_t bucket_bytes : {0, 100}) {
              EXPECT_THAT(
                  Backward(loss(), {.bucket_bytes = bucket_bytes}),
                  StatusIs(kFailedPrecondition, AllOf(HasSubstr("Backward: the gradient of "),
                                                      HasSubstr("ClearGrad() first"))));
            }
            EXPECT_THAT(
                ReduceGradients({w}),
                StatusIs(kFailedPrecondition, AllOf(HasSubstr("ReduceGradients: the gradient of "),
                                                    HasSubstr("ClearGrad() first"))));
            DT_RETURN_IF_ERROR(GradientsOf(loss(), {w}).status());  // adds to none
            w.ClearGrad();
            return Backward(loss());
          }),
      IsOk());
}

}  // namespace
}  // namespace dtensor
