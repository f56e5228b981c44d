// Gradients of bf16 and f16 leaves that are kept and reduced in f32.
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kTiny = 0x1p-12;  // 1 + kTiny is 1 in bf16 and in f16

const char* const kMeshes[] = {"tp=1", "tp=2", "dp=2,tp=2"};

// A leaf x of ones [3, 2], replicated or split over the last axis.
using Body = absl::Status (*)(Context&, DistributedTensor x);
void WithLeaf(Body body) {
  for (const char* text : kMeshes) {
    const DeviceMesh mesh = DeviceMesh::Parse(text).value();
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const Placement last : {Replicate(), Shard(0)}) {
        SCOPED_TRACE(testing::Message() << text << " " << ToString(dtype) << last.ToString());
        DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
          Placements placements(mesh.num_axes(), Replicate());
          placements.back() = last;
          DT_ASSIGN_OR_RETURN(DistributedTensor x,
                              Full(context, mesh, placements, {3, 2}, dtype, 1));
          DT_RETURN_IF_ERROR(x.set_requires_grad(true));
          return body(context, x);
        }));
      }
    }
  }
}

absl::StatusOr<std::vector<double>> Wide(const DistributedTensor& tensor) {
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
  return ToGlobal<double>(wide);
}

// d loss / d x = factor everywhere.
absl::Status AddGradient(const DistributedTensor& x, double factor) {
  return Backward(Sum(Scale(x, factor), {0, 1}));
}

TEST(GradDType, SmallContributionsAddUpOverBackwardCalls) {
  WithLeaf([](Context&, DistributedTensor x) -> absl::Status {
    DT_RETURN_IF_ERROR(x.set_grad_dtype(DType::kF32));
    EXPECT_EQ(x.grad_dtype(), DType::kF32);
    DT_RETURN_IF_ERROR(AddGradient(x, 1));
    for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(AddGradient(x, kTiny));
    EXPECT_EQ(x.grad().dtype(), DType::kF32);
    DT_RETURN_IF_ERROR(ReduceGradients({x}));
    EXPECT_THAT(Wide(x.grad()), IsOkAndHolds(Each(1 + 3 * kTiny)));
    return absl::OkStatus();
  });
}

TEST(GradDType, InTheirOwnTypeTheyAreLost) {
  WithLeaf([](Context&, DistributedTensor x) -> absl::Status {
    EXPECT_EQ(x.grad_dtype(), x.dtype());
    DT_RETURN_IF_ERROR(AddGradient(x, 1));
    for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(AddGradient(x, kTiny));
    EXPECT_EQ(x.grad().dtype(), x.dtype());
    EXPECT_THAT(Wide(x.grad()), IsOkAndHolds(Each(1)));
    return absl::OkStatus();
  });
}

TEST(GradDType, SmallContributionsAddUpInOneBackward) {
  WithLeaf([](Context&, DistributedTensor x) -> absl::Status {
    DT_RETURN_IF_ERROR(x.set_grad_dtype(DType::kF32));
    TensorOr loss = Sum(x, {0, 1});
    for (int i = 0; i < 3; ++i) loss = Add(loss, Sum(Scale(x, kTiny), {0, 1}));
    DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = true}));
    EXPECT_THAT(Wide(x.grad()), IsOkAndHolds(Each(1 + 3 * kTiny)));
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> gradients, GradientsOf(loss, {x}));
    EXPECT_EQ(gradients[0].dtype(), DType::kF32);
    EXPECT_THAT(Wide(gradients[0]), IsOkAndHolds(Each(1 + 3 * kTiny)));
    return absl::OkStatus();
  });
}

// x [2] is replicated and meets rows of y [2, 2], one on each rank: the gradient is Partial, its
// terms are 1 and kTiny.
absl::StatusOr<DistributedTensor> PartialGradient(Context& context, bool wide) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
  DT_ASSIGN_OR_RETURN(DistributedTensor x,
                      Full(context, mesh, {Replicate()}, {2}, DType::kBF16, 1));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  if (wide) DT_RETURN_IF_ERROR(x.set_grad_dtype(DType::kF32));
  DT_ASSIGN_OR_RETURN(
      const DistributedTensor rows,
      Distribute<float>(context, mesh, {Shard(0)}, {2, 2},
                        {{1, 1, static_cast<float>(kTiny), static_cast<float>(kTiny)}}));
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(Cast(rows, DType::kBF16), x), {0, 1})));
  EXPECT_TRUE(x.grad().layout().is_partial());
  return x;
}

int64_t BytesReceived(Context& context) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) bytes += traffic.bytes;
  return bytes;
}

void ExpectReduced(bool wide, const ReduceGradientsOptions& options, DType dtype, double value,
                   int64_t bytes) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, PartialGradient(context, wide));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(ReduceGradients({x}, options));
    EXPECT_EQ(BytesReceived(context), bytes);
    EXPECT_EQ(x.grad().layout(), x.layout());
    EXPECT_EQ(x.grad().dtype(), dtype);
    EXPECT_THAT(Wide(x.grad()), IsOkAndHolds(Each(value)));
    return absl::OkStatus();
  }));
}

TEST(ReduceGradients, OfWideGradientsInF32) {
  ExpectReduced(true, {}, DType::kF32, 1 + kTiny, 2 * 4);
  ExpectReduced(false, {}, DType::kBF16, 1, 2 * 2);
  ExpectReduced(false, {.terms_in_leaf_dtype = true}, DType::kBF16, 1, 2 * 2);
}

// Each term travels in 16 bits; their sum is not rounded to them.
TEST(ReduceGradients, OfTermsInTheLeafsType) {
  ExpectReduced(true, {.terms_in_leaf_dtype = true}, DType::kF32, 1 + kTiny, 2 * 2);
}

TEST(GradDType, RefusesOtherTypes) {
  WithLeaf([](Context&, DistributedTensor x) -> absl::Status {
    EXPECT_THAT(x.set_grad_dtype(DType::kF64),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("has no gradient of type f64; take its own type, or f32")));
    EXPECT_THAT(DistributedTensor().set_grad_dtype(DType::kF32),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("undefined")));
    DT_ASSIGN_OR_RETURN(DistributedTensor result, Scale(x, 2));
    EXPECT_THAT(result.set_grad_dtype(DType::kF32),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no leaf; Detach()")));
    DT_RETURN_IF_ERROR(AddGradient(x, 1));
    EXPECT_THAT(x.set_grad_dtype(DType::kF32),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ClearGrad() first")));
    x.ClearGrad();
    DT_RETURN_IF_ERROR(x.set_grad_dtype(DType::kF32));
    return x.set_grad_dtype(x.dtype());
  });
}

}  // namespace
}  // namespace dtensor
