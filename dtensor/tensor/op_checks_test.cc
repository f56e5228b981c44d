// Wrong operators and impossible gradients: each is an error that names the operator, never a wrong
// number or a crash.
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

using Body = std::function<absl::Status(Context&, const DeviceMesh&)>;

// On ranks of a mesh. The world may end by it.
absl::Status OnMesh(const char* text, const Body& body) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(text));
  return RunRanks(mesh.size(), [&](Context& context) { return body(context, mesh); });
}

TensorOr Leaf(Context& context, const DeviceMesh& mesh, const char* layout, Dims shape,
              std::vector<double> values, bool wanted = true) {
  DT_ASSIGN_OR_RETURN(const Layout parsed, Layout::Parse(mesh, layout));
  DT_ASSIGN_OR_RETURN(auto leaf, Place(context, parsed, shape, DType::kF64, values, /*seed=*/3));
  DT_RETURN_IF_ERROR(leaf.set_requires_grad(wanted));
  return leaf;
}

// --- Definitions.

absl::Status CopyForward(const OpCall& call) {
  return kernels::Unary(call.device(), kernels::UnaryOp::kCopy, call.operands[0], call.results[0]);
}
absl::Status CopyBackward(const GradCall& call) {
  return kernels::Unary(call.device(), kernels::UnaryOp::kCopy, call.result_gradients[0],
                        call.gradients[0]);
}

OpDef Foreign() {
  return {.name = "Foreign",
          .rule = "... -> ...",
          .host = {CopyForward, CopyBackward},
          .saved_operands = 0b1};
}

OpDef OfTwo() {
  OpDef op = Foreign();
  op.rule = "..., ... -> ...";
  return op;
}

absl::Status Applied(const OpDef& op, size_t operands = 1) {
  absl::Status status;
  DT_EXPECT_OK(OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const TensorOr x = Leaf(context, mesh, "[tp] []", {2, 6}, std::vector<double>(12, 1));
    const std::vector<const TensorOr*> all(operands, &x);
    const absl::Status got = Dispatch(op, all, {}).status();
    if (context.rank() == 0) status = got;
    return ToGlobal<double>(*x).status();  // the Context is usable
  }));
  return status;
}

TEST(OpDef, IsCheckedWhenItIsFirstUsed) {
  const auto refused = [](const char* words) {
    return StatusIs(kInvalidArgument, AllOf(HasSubstr("Foreign: "), HasSubstr(words)));
  };
  DT_EXPECT_OK(Applied(Foreign()));
  OpDef op = Foreign();
  op.rule = nullptr;
  EXPECT_THAT(Applied(op), refused("no rule"));
  op.rule = "a b";
  EXPECT_THAT(Applied(op), refused("exactly one '->'"));
  op.rule = "m k -> m q";
  EXPECT_THAT(Applied(op), refused("how large 'q' is"));
  op.rule = "m (h g) -> m h g";
  EXPECT_THAT(Applied(op), refused("how large 'h' is"));
  op.rule = "m k n -> m";
  EXPECT_THAT(Applied(op), refused("2 dimensions where the rule has 3"));
  op = Foreign();
  op.host.forward = nullptr;
  EXPECT_THAT(Applied(op), refused("no forward"));
  op.name = OpDef().name;
  EXPECT_THAT(Applied(op), StatusIs(kInvalidArgument, HasSubstr("without a name")));
  op = Foreign();
  op.describe = [](absl::Span<const Dims>, AttrsView) -> absl::StatusOr<RuleText> {
    return RuleText{"m k -> m", {{"q", 3}}};
  };
  EXPECT_THAT(Applied(op), refused("size of 'q', which the rule lacks"));
  op = Foreign();
  op.choose_layouts = [](const LayoutChoiceRequest& request) -> absl::StatusOr<LayoutChoice> {
    return LayoutChoice{{Layout::Replicated(request.operands[0]->mesh(), 1)}, {}};
  };
  EXPECT_THAT(Applied(op), refused("choose_layouts"));
}

struct Factor {
  double value = 0;
  auto fields() const { return std::tie(value); }
};

TEST(OpDef, TakesAttributesOfItsTypeAlone) {
  const OpDef none = Foreign();
  OpDef some = Foreign();
  some.attrs = &kAttrsType<Factor>;
  OnMesh("one=1", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const TensorOr x = Leaf(context, mesh, "[]", {3}, {1, 2, 3});
    EXPECT_THAT(Dispatch(none, {&x}, Factor{2}),
                StatusIs(kInvalidArgument, HasSubstr("Foreign: got attributes (some)")));
    EXPECT_THAT(Dispatch(some, {&x}), StatusIs(kInvalidArgument, HasSubstr("names (some)")));
    DT_EXPECT_OK(Dispatch(some, {&x}, Factor{2}));
    return absl::OkStatus();
  }).IgnoreError();
}

TEST(OpDef, TakesItsTypesAlone) {
  OpDef op = Foreign();
  op.types = {DType::kF32, DType::kI32};
  EXPECT_THAT(Applied(op), StatusIs(kInvalidArgument, HasSubstr("Foreign: takes f32 or i32, got")));
  op.operand_types = {TypeSet::Integers()};
  EXPECT_THAT(Applied(op),
              StatusIs(kInvalidArgument, HasSubstr("Foreign: takes operands of i32 or i64, got")));
  op.operand_types = {TypeSet::Floats()};
  DT_EXPECT_OK(Applied(op));
  OpDef two = OfTwo();  // the sets that are not given say nothing, and hide nothing
  two.operand_types = {TypeSet(), TypeSet::Integers()};
  EXPECT_THAT(Applied(two, 2),
              StatusIs(kInvalidArgument, HasSubstr("takes operands of any type, then i32 or i64")));
}

TEST(OpDef, HasOperands) {
  EXPECT_THAT(Applied(Foreign(), 0), StatusIs(kInvalidArgument, HasSubstr("Foreign: got 0")));
  EXPECT_THAT(Applied(Foreign(), 33), StatusIs(kInvalidArgument, HasSubstr("1 to 32")));
  EXPECT_THAT(Applied(Foreign(), 32), StatusIs(kInvalidArgument, HasSubstr("takes 1")));
}

// The error of a Backward through `op` applied to two leaves (or one).
absl::Status Walked(const OpDef& op, int operands = 1) {
  absl::Status status;
  OnMesh("one=1", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const TensorOr x = Leaf(context, mesh, "[]", {3}, {1, 2, 3});
    const TensorOr y = Leaf(context, mesh, "[]", {3}, {1, 2, 3});
    const TensorOr* both[] = {&x, &y};
    const TensorOr z = Dispatch(op, absl::MakeConstSpan(both).first(operands), {});
    status = z.ok() ? Backward(Sum(z, {0})) : z.status();
    return absl::OkStatus();
  }).IgnoreError();  // that of the world that ended
  return status;
}

TEST(OpDef, ABackwardThatWritesNothingIsAnErrorAndNoZeros) {
  const auto fails = [](const char* words) {
    return StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("Foreign: "), HasSubstr(words)));
  };
  DT_EXPECT_OK(Walked(Foreign()));
  OpDef op = Foreign();
  op.host.backward = [](const GradCall&) { return absl::OkStatus(); };
  EXPECT_THAT(Walked(op), fails("wrote no gradient of operand 0"));
  op.sets_gradients = true;
  EXPECT_THAT(Walked(op), fails("wrote no gradient of operand 0"));
  op = OfTwo();
  EXPECT_THAT(Walked(op, 2), fails("wrote no gradient of operand 1"));
  op = Foreign();
  op.sets_gradients = true;
  op.host.backward = [](const GradCall& call) {
    call.gradients[0] = call.result_gradients[0].Narrow(0, 0, 1);
    return absl::OkStatus();
  };
  EXPECT_THAT(Walked(op), fails("set one of shape [1]"));
}

TEST(OpDef, ABackwardThatReadsWhatIsNotSavedIsAnError) {
  const auto fails = [](const char* words) {
    return StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("Foreign: "), HasSubstr(words)));
  };
  OpDef op = Foreign();
  op.host.backward = [](const GradCall& call) {
    EXPECT_EQ(call.operands[0].data<double>()[2], 0);
    return CopyBackward(call);
  };
  op.saved_operands = 0;
  EXPECT_THAT(Walked(op), fails("read operand 0, which OpDef::saved_operands does not name"));
  op.host.backward = [](const GradCall& call) {
    EXPECT_EQ(call.results[0].data<double>()[2], 0);
    return CopyBackward(call);
  };
  EXPECT_THAT(Walked(op), fails("read result 0, which OpDef::saved_results does not name"));
  op.host.backward = [](const GradCall& call) {
    EXPECT_EQ(call.operands[7].ndim(), 0);
    return CopyBackward(call);
  };
  EXPECT_THAT(Walked(op), fails("read operand 7"));
}

TEST(OpDef, AViewThatSetsNoResultIsAnError) {
  OpDef op = Foreign();
  op.view = true;
  op.host.forward = [](const OpCall&) { return absl::OkStatus(); };
  EXPECT_THAT(Walked(op), StatusIs(absl::StatusCode::kInternal, HasSubstr("left it undefined")));
}

TEST(OpDef, GradientsMayBeStrided) {
  OpDef op = Foreign();
  op.host.backward = [](const GradCall& call) {
    EXPECT_THAT(call.result_gradients[0].strides(), ElementsAre(0));
    return CopyBackward(call);
  };
  DT_EXPECT_OK(Walked(op));
}

// Whatever the error of a user's function says, and once.
TEST(OpDef, AFailureNamesTheOperator) {
  OpDef op = Foreign();
  op.host.forward = [](const OpCall&) -> absl::Status { return absl::DataLossError("bad block"); };
  EXPECT_THAT(Walked(op), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("Foreign: bad block")));
  op = Foreign();
  op.host.backward = [](const GradCall&) -> absl::Status {
    return absl::DataLossError("Foreign's bad block");
  };
  EXPECT_THAT(Walked(op),
              StatusIs(absl::StatusCode::kDataLoss, testing::Not(HasSubstr("Foreign: "))));
}

TEST(OpDef, BackwardNamesTheOperatorThatHasNone) {
  OpDef op = Foreign();
  op.host.backward = nullptr;
  EXPECT_THAT(Walked(op),
              StatusIs(kFailedPrecondition, HasSubstr("the operator Foreign has no backward")));
  DT_EXPECT_OK(OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const TensorOr x = Leaf(context, mesh, "[tp]", {2}, {1, 2});
    // Beside what is recorded, too, however far behind; but where it is meant as a constant.
    const TensorOr passed = Dispatch(op, {&x}, {});
    DT_ASSIGN_OR_RETURN(const DistributedTensor moved, passed->Redistribute({Replicate()}));
    const TensorOr later = passed->Redistribute({Replicate()}, {.async = true});
    const TensorOr planned = passed->Redistribute({Replicate()}, {.plan = RedistributionOptions()});
    const auto twice = [](absl::Span<const DistributedTensor> given) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(auto y, Scale(given[0], 2));
      return std::vector<DistributedTensor>{y, given[0]};
    };
    DT_ASSIGN_OR_RETURN(const auto again, Recompute({*passed}, twice));
    for (const TensorOr& loss :
         {Sum(Add(passed, x), {0}), Sum(Add(Scale(moved, 2), x), {0}),
          Sum(Add(Scale(later, 2), x), {0}), Sum(Add(planned, x), {0}), Sum(Add(again[0], x), {0}),
          Sum(Add(again[1], x), {0}), Sum(Where(Greater(passed, x), x, Mul(x, passed)), {0})}) {
      EXPECT_THAT(Backward(loss), StatusIs(kFailedPrecondition,
                                           HasSubstr("part of what led to the loss: the operator "
                                                     "Foreign has no backward; Detach()")));
      EXPECT_FALSE(x->grad().defined());
    }
    DT_RETURN_IF_ERROR([&]() -> absl::Status {  // what is made without recording is a constant
      TensorOr constant;
      {
        const NoGrad no_grad(context);
        constant = passed->Redistribute({Replicate()});
      }
      return GradientsOf(Sum(Mul(constant, x), {0}), {*x}).status();
    }());
    const TensorOr constant_x = x->Detach();
    const TensorOr mask = Cast(Greater(Dispatch(op, {&x}, {}), constant_x), DType::kF64);
    DT_RETURN_IF_ERROR(
        Backward(Sum(AddN({Dispatch(op, {&constant_x}, {}), x, Mul(mask, x)}), {0})));
    DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x->grad()));
    EXPECT_THAT(gradient, Each(1));
    DT_ASSIGN_OR_RETURN(const auto constant, Leaf(context, mesh, "[tp]", {2}, {1, 2}, false));
    EXPECT_THAT(Backward(Sum(constant, {0})),
                StatusIs(kFailedPrecondition, HasSubstr("nothing was recorded")));
    return absl::OkStatus();
  }));
}

TEST(OpDef, HasFunctionsForEveryDeviceOrForSome) {
  OpDef op = Foreign();
  op.every_device = op.host;
  EXPECT_THAT(Applied(op), StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("Foreign: "), HasSubstr("every device"))));
  op.host = {};
  DT_EXPECT_OK(Applied(op));
}

// A device without the function that a call takes refuses the call, and nothing else.
TEST(OpDef, IsRefusedOnADeviceForWhichItHasNoFunction) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  OpDef op = Foreign();
  op.cuda.forward = std::exchange(op.host.forward, nullptr);
  EXPECT_THAT(
      Applied(op),
      StatusIs(kUnimplemented, AllOf(HasSubstr("Foreign: "), HasSubstr("no forward for cpu"),
                                     HasSubstr("[2, 6] f64"), HasSubstr("on another device"))));
  OpDef half = Foreign();
  half.cuda = half.host;
  half.host.backward = nullptr;
  DT_EXPECT_OK(OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const TensorOr x = Leaf(context, mesh, "[tp]", {2}, {1, 2});
    EXPECT_THAT(Dispatch(half, {&x}, {}),
                StatusIs(kUnimplemented, HasSubstr("no backward for cpu")));
    const TensorOr constant = x->Detach();
    DT_RETURN_IF_ERROR(Dispatch(half, {&constant}, {}).status());
    const NoGrad off(context);
    return Dispatch(half, {&x}, {}).status();
  }));
}

// --- Gradients that no sum gives.

auto NoGradient(const char* op, const char* reduction) {
  return StatusIs(kInvalidArgument,
                  AllOf(HasSubstr(std::string(op) + ": a gradient is wanted of "),
                        HasSubstr(std::string("P(") + reduction + ": tp)"), HasSubstr("Detach()")));
}

TEST(PartialByAnotherOp, IsNotReducedWhereAGradientIsWanted) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* op : {"max", "min", "product"}) {
      const std::string layout = std::string("[] P(") + op + ": tp)";
      DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, layout.c_str(), {2}, {3, 4}));
      DT_ASSIGN_OR_RETURN(auto w, Leaf(context, mesh, "[]", {2}, {5, 6}));
      context.communicator().ResetTraffic();
      EXPECT_THAT(x.Redistribute({Replicate()}), NoGradient("Redistribute", op));
      EXPECT_THAT(x.Redistribute({Shard(0)}, {.async = true}), NoGradient("Redistribute", op));
      EXPECT_THAT(Mul(x, w), NoGradient("Mul", op));
      EXPECT_THAT(Sum(x, {0}), NoGradient("Sum", op));
      EXPECT_THAT(Silu(Reshape(x, {2, 1})), NoGradient("Silu", op));
      EXPECT_TRUE(context.communicator().traffic().empty());
      // Where none is wanted, or it does not go there, the values are reduced.
      DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(x));
      EXPECT_THAT(values, ElementsAre(3, 4));
      DT_EXPECT_OK(ArgMax(x, 0));
      DT_RETURN_IF_ERROR(Backward(Sum(Mul(x.Detach(), w), {0})));
      DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(w.grad()));
      EXPECT_THAT(gradient, ElementsAre(3, 4));
      const NoGrad no_grad(context);
      DT_EXPECT_OK(Mul(x, w));
      DT_EXPECT_OK(x.Redistribute({Replicate()}));
    }
    return absl::OkStatus();
  }));
}

// What was reduced before a gradient was wanted, or while nothing was recorded, is remembered.
TEST(PartialByAnotherOp, IsNotReducedByWhatIsRemembered) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, "[] P(max: tp)", {2}, {3, 4}, false));
    DT_ASSIGN_OR_RETURN(const auto before, x.Redistribute({Replicate()}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    EXPECT_THAT(x.Redistribute({Replicate()}), NoGradient("Redistribute", "max"));
    DT_EXPECT_OK(ArgMax(x, 0));
    EXPECT_THAT(Silu(x), NoGradient("Silu", "max"));
    return absl::OkStatus();
  }));
}

TEST(PartialByAnotherOp, MayMoveOnOtherAxes) {
  DT_EXPECT_OK(OnMesh("dp=2,tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, "[dp] P(max: tp)", {2}, {3, 4}));
    DT_ASSIGN_OR_RETURN(const auto moved, x.Redistribute({Replicate(), Partial(ReduceOp::kMax)}));
    EXPECT_THAT(moved.Redistribute({Replicate(), Replicate()}), NoGradient("Redistribute", "max"));
    return absl::OkStatus();
  }));
}

TEST(PartialByAnotherOp, IsNoLoss) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, "P(max: tp)", {}, {3}));
    EXPECT_THAT(Backward(x), NoGradient("Backward", "max"));
    EXPECT_FALSE(x.grad().defined());
    return absl::OkStatus();
  }));
}

// The largest of each row: its gradient goes there.
absl::Status AmaxForward(const OpCall& call) {
  return kernels::Reduce(call.device(), ReduceOp::kMax, call.operands[0], {1}, call.results[0]);
}
absl::Status AmaxBackward(const GradCall& call) {
  const Tensor &x = call.operands[0], &y = call.results[0], &dy = call.result_gradients[0];
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < x.size(1); ++j) {
      const int64_t at = i * x.size(1) + j;
      call.gradients[0].data<double>()[at] =
          x.data<double>()[at] == y.data<double>()[i] ? dy.data<double>()[i * dy.strides()[0]] : 0;
    }
  }
  return absl::OkStatus();
}

TEST(PartialByAnotherOp, OfARuleHasNoGradientWhereItsLetterIsSharded) {
  const OpDef amax = {.name = "Amax",
                      .rule = "a k:max -> a",
                      .host = {AmaxForward, AmaxBackward},
                      .saved_operands = 0b1,
                      .saved_results = 0b1};
  DT_EXPECT_OK(OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] []", "[tp] []"}) {
      const TensorOr x = Leaf(context, mesh, layout, {2, 2}, {1, 2, 4, 3});
      DT_RETURN_IF_ERROR(Backward(Sum(Dispatch(amax, {&x}, {}), {0})));
      DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x->grad()));
      EXPECT_THAT(gradient, ElementsAre(0, 1, 1, 0));
    }
    const TensorOr x = Leaf(context, mesh, "[] [tp]", {2, 2}, {1, 2, 4, 3});
    const TensorOr y = Dispatch(amax, {&x}, {});
    DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(*y));
    EXPECT_THAT(values, ElementsAre(2, 4));
    EXPECT_THAT(Sum(y, {0}), NoGradient("Sum", "max"));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
