// Modules of several operands and results, biases and buffers, on one rank. On meshes:
// parallel_plans/parallel_linear_test.cc.
#include "dtensor/nn/layers.h"

#include <memory>
#include <string>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::Status OnOneRank(const std::function<absl::Status(Context&)>& fn) { return RunRanks(1, fn); }

TensorOr Of(Context& context, Dims shape, std::vector<float> values) {
  return Distribute<float>(context, DeviceMesh(), {}, shape, values);
}

TEST(LinearLayer, AddsItsBias) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    LinearLayer layer(Parameter::New({2, 2}, ParameterInit::Values({1, 2, 3, 4})),
                      Parameter::New({2}, ParameterInit::Values({10, 20})));
    DT_RETURN_IF_ERROR(layer.Materialize(context, DeviceMesh(), 0));
    DT_ASSIGN_OR_RETURN(const auto y, layer(Of(context, {1, 2}, {1, 1})));
    EXPECT_THAT(ToGlobal<float>(y), IsOkAndHolds(ElementsAre(13, 27)));
    DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1})));
    EXPECT_THAT(ToGlobal<float>(layer.bias()->tensor.grad()), IsOkAndHolds(ElementsAre(1, 1)));
    return absl::OkStatus();
  }));
}

TEST(LinearLayer, ReturnsItsBias) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    LinearLayer layer(2, 3, 0.1, {}, LinearLayer::Bias::kReturned);
    DT_RETURN_IF_ERROR(layer.Materialize(context, DeviceMesh(), 0));
    DT_ASSIGN_OR_RETURN(const auto results, layer.Call({Of(context, {1, 2}, {1, 1})}));
    EXPECT_THAT(results, SizeIs(2));
    EXPECT_EQ(results[1].shape(), Dims({3}));
    EXPECT_THAT(layer(Of(context, {1, 2}, {1, 1})),
                Refuses(AllOf(HasSubstr("2 results (y, bias)"), HasSubstr("not 1"))));
    return absl::OkStatus();
  }));
}

absl::StatusOr<std::vector<double>> ValuesOf(const TensorOr& x) {
  DT_ASSIGN_OR_RETURN(const auto wide, Cast(x, DType::kF64));
  return ToGlobal<double>(wide.Detach());
}

// The sum of 1 and a small weight is not rounded to the weight's type.
TEST(RmsNormLayer, MayAddAnOffsetToItsWeight) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      RmsNormLayer layer(2, /*eps=*/0, /*offset=*/1);
      layer.SetDType(dtype);
      DT_RETURN_IF_ERROR(layer.Materialize(context, DeviceMesh(), 0));
      DT_ASSIGN_OR_RETURN(const auto x, Cast(Of(context, {1, 2}, {64, -64}), dtype));
      DT_ASSIGN_OR_RETURN(const auto first, layer(x));
      EXPECT_EQ(first.dtype(), dtype);
      EXPECT_THAT(ValuesOf(first), IsOkAndHolds(ElementsAre(1, -1)));
      // 1 + 3/512 is between 1 and 1 + 1/128, the next number in bf16.
      DT_ASSIGN_OR_RETURN(const auto weight, Cast(Of(context, {2}, {3.f / 512, 1}), dtype));
      DT_RETURN_IF_ERROR(layer.weight()->Write(weight));
      DT_ASSIGN_OR_RETURN(const auto y, layer(x));
      const double want = dtype == DType::kBF16 ? 1 + 1. / 128 : 1 + 3. / 512;
      EXPECT_THAT(ValuesOf(y), IsOkAndHolds(ElementsAre(want, -2)));
      DT_RETURN_IF_ERROR(Backward(Sum(Cast(y, DType::kF32), {0, 1})));
      EXPECT_EQ(layer.weight()->tensor.grad().dtype(), dtype);
    }
    return absl::OkStatus();
  }));
}

// a - b and b - a.
class Differences : public Module {
 public:
  Differences() {
    SetOperands({"a", "b"});
    SetResults({"ab", "ba"});
  }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> x) override {
    DT_ASSIGN_OR_RETURN(DistributedTensor ab, Sub(x[0], x[1]));
    DT_ASSIGN_OR_RETURN(DistributedTensor ba, Sub(x[1], x[0]));
    return std::vector<DistributedTensor>{std::move(ab), std::move(ba)};
  }
};

// x0 + 2 x1.
class Weighted : public Module {
 public:
  Weighted() { SetOperands({"x0", "x1"}); }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> x) override {
    DT_ASSIGN_OR_RETURN(DistributedTensor y, Add(x[0], Scale(x[1], 2)));
    return std::vector<DistributedTensor>{std::move(y)};
  }
};

// The same and 100 more, which are added in Finish.
class Raised : public Weighted {
 protected:
  TensorOr Finish(const DistributedTensor& y, const Spec&) override { return AddScalar(y, 100); }
};

TEST(Module, HasSeveralOperandsAndResults) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    const TensorOr a = Of(context, {1}, {5}), b = Of(context, {1}, {3});
    Differences differences;
    DT_ASSIGN_OR_RETURN(const auto results, differences.Call({a, b}));
    EXPECT_THAT(ToGlobal<float>(results[0]), IsOkAndHolds(ElementsAre(2)));
    EXPECT_THAT(ToGlobal<float>(results[1]), IsOkAndHolds(ElementsAre(-2)));
    Weighted weighted;
    DT_ASSIGN_OR_RETURN(const auto y, weighted(a, b));
    EXPECT_THAT(ToGlobal<float>(y), IsOkAndHolds(ElementsAre(11)));
    Raised raised;
    DT_ASSIGN_OR_RETURN(const auto more, raised(a, b));
    EXPECT_THAT(ToGlobal<float>(more), IsOkAndHolds(ElementsAre(111)));
    return absl::OkStatus();
  }));
}

TEST(Module, RefusesOtherNumbersOfOperandsAndResults) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    const TensorOr a = Of(context, {1}, {5});
    Differences differences;
    EXPECT_THAT(differences(a), Refuses(HasSubstr("2 operands (a, b), not 1")));
    EXPECT_THAT(differences(a, a),
                Refuses(HasSubstr("2 results (ab, ba), not 1; Call() returns all of them")));
    EXPECT_THAT(differences.Call({a, a, a}), Refuses(HasSubstr("not 3")));
    EXPECT_THAT(differences.Call({a, DistributedTensor()}),
                Refuses(HasSubstr("operand b is undefined")));
    return absl::OkStatus();
  }));
}

// Adds a buffer.
class Shifted : public Module {
 public:
  Shifted() : shift_(Parameter::New({2}, ParameterInit::Values({1, 2}))), linear_(2, 2, 0.1) {
    AddBuffer("shift", shift_);
    AddChild("linear", &linear_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return Add(linear_(x), shift_->tensor); }

 private:
  ParameterPtr shift_;
  LinearLayer linear_;
};

TEST(Module, HasBuffers) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    Shifted model;
    DT_RETURN_IF_ERROR(model.Materialize(context, DeviceMesh(), 0));
    std::vector<std::string> paths;
    model.VisitParameters([&](const std::string& path, Parameter&) { paths.push_back(path); });
    EXPECT_THAT(paths, ElementsAre("shift", "linear.weight"));
    EXPECT_THAT(model.Parameters(), SizeIs(1));
    DT_ASSIGN_OR_RETURN(const auto y, model(Of(context, {1, 2}, {0, 0})));
    EXPECT_THAT(ToGlobal<float>(y), IsOkAndHolds(ElementsAre(1, 2)));
    EXPECT_FALSE(model.own_parameters()[0].parameter->tensor.requires_grad());
    return absl::OkStatus();
  }));
}

// What is refused is refused before any parameter has memory.
TEST(Parameter, RefusesTypesThatHaveNoRandomValuesAndAreNotTrained) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    Sequential model;
    model.Append(std::make_unique<LinearLayer>(2, 2, 0.5));
    const ParameterPtr& weight = model.Append(std::make_unique<LinearLayer>(2, 2, 0.5))->weight();
    weight->dtype = DType::kI64;
    EXPECT_THAT(model.Materialize(context, DeviceMesh(), 0),
                Refuses(AllOf(HasSubstr("1.weight"), HasSubstr("i64"), HasSubstr("trained"))));
    weight->trained = false;
    EXPECT_THAT(model.Materialize(context, DeviceMesh(), 0), Refuses(HasSubstr("at random")));
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      EXPECT_FALSE(parameter.tensor.defined()) << path;
    });
    weight->init = ParameterInit::Constant(1);
    return model.Materialize(context, DeviceMesh(), 0);
  }));
}

TEST(Parameter, RefusesAnotherNumberOfValues) {
  DT_EXPECT_OK(OnOneRank([](Context& context) -> absl::Status {
    LinearLayer layer(Parameter::New({2, 2}, ParameterInit::Values({1, 2, 3})));
    EXPECT_THAT(layer.Materialize(context, DeviceMesh(), 0),
                Refuses(AllOf(HasSubstr("weight"), HasSubstr("[2, 2]"), HasSubstr("3 first"))));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
