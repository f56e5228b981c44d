// CheckOp distinguishes wrong operators from right ones: each operator here differs from a right
// one by one mistake.
#include "dtensor/testing/check_op.h"

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weighted_sum.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr auto kInternal = absl::StatusCode::kInternal;

absl::Status Checked(const OpDef& op) {
  const OpCase c{.op = &op, .operands = {{.shape = {3, 4}}, {.shape = {4}}}};
  return CheckOp(c, {.meshes = {"a=2"}, .dtypes = {DType::kF64}, .draws = 20});
}

absl::Status Scaled(Device& device, const Tensor& x, double factor) {
  return kernels::Affine(device, x, factor, 0, x);
}

TEST(CheckOp, PassesARightOne) { DT_EXPECT_OK(Checked(kWeightedSum)); }

TEST(CheckOp, FindsAWrongGradient) {
  OpDef op = kWeightedSum;
  op.host.backward = [](const GradCall& call) -> absl::Status {
    DT_RETURN_IF_ERROR(kWeightedSum.host.backward(call));
    return call.wants(1) ? Scaled(call.device(), call.gradients[1], 2) : absl::OkStatus();
  };
  EXPECT_THAT(Checked(op), StatusIs(kInternal, HasSubstr("the gradient of operand 1, element 0")));
}

// A mean over the shard's own elements.
TEST(CheckOp, FindsAKernelThatCountsItsShardAlone) {
  OpDef op = kWeightedSum;
  op.host.forward = [](const OpCall& call) -> absl::Status {
    DT_RETURN_IF_ERROR(kWeightedSum.host.forward(call));
    const double size = static_cast<double>(std::max<int64_t>(1, call.operands[1].size(0)));
    return Scaled(call.device(), call.results[0], 1 / size);
  };
  op.host.backward = nullptr;
  EXPECT_THAT(Checked(op), StatusIs(kInternal, HasSubstr("result 0")));
}

TEST(CheckOp, FindsALinearityThatIsNone) {
  OpDef op = kWeightedSum;
  op.linearity = RuleLinearity::kJoint;
  EXPECT_THAT(Checked(op), StatusIs(kInternal, HasSubstr("P(sum")));
}

// Its backward reads both operands whatever is wanted.
TEST(CheckOp, FindsAGradientThatReadsMoreThanItSays) {
  OpDef op = kWeightedSum;
  op.separate_gradients = {OpDef::kAlone | 0b11, OpDef::kAlone | 0b11};
  DT_EXPECT_OK(Checked(op));
  op.separate_gradients = {OpDef::kAlone | 0b10, OpDef::kAlone | 0b11};
  EXPECT_THAT(Checked(op), StatusIs(kInternal, HasSubstr("read operand 0")));
  op.separate_gradients = {OpDef::kAlone | 0b11, OpDef::kAlone | 0b01};
  EXPECT_THAT(Checked(op), StatusIs(kInternal, HasSubstr("read operand 1")));
  op.separate_gradients = {0b10};  // says nothing
  EXPECT_THAT(Checked(op), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("separate_gradients[0] is no OpDef::kAlone")));
  op.separate_gradients = {OpDef::kAlone | 0b100};
  EXPECT_FALSE(Checked(op).ok());
}

TEST(CheckOp, FindsABackwardThatReadsWhatIsNotSaved) {
  OpDef op = kWeightedSum;
  op.saved_operands = 0b01;
  EXPECT_THAT(Checked(op), StatusIs(kInternal, HasSubstr("read operand 1")));
}

}  // namespace
}  // namespace dtensor
