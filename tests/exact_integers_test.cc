// Law 4, its first half (the second: error_bound_test.cc): if every intermediate is an integer
// that f32 holds exactly, every mesh and every plan give the same bits, forward, backward and after
// steps of gradient descent with a rate that is a power of two.
#include <string>
#include <vector>

#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kBatch = 4, kSequence = 6, kDim = 8, kHidden = 12, kVocab = 10;

// x = embedding(ids); y = x + down(up(x) * gate(x)): a decoder block's products and sums, without
// what rounds.
class Net : public Module {
 public:
  Net()
      : embedding_(kVocab, kDim, 1),
        up_(kDim, kHidden, 1),
        gate_(kDim, kHidden, 1),
        down_(kHidden, kDim, 1) {
    AddChild("embedding", &embedding_);
    AddChild("up", &up_);
    AddChild("gate", &gate_);
    AddChild("down", &down_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override {
    const TensorOr x = embedding_(ids);
    return Add(x, down_(Mul(up_(x), gate_(x))));
  }

 private:
  EmbeddingLayer embedding_;
  LinearLayer up_, gate_, down_;
};

struct Bits {
  std::vector<double> output;
  std::vector<std::vector<double>> parameters;
  friend bool operator==(const Bits&, const Bits&) = default;
};

// Small integers in place of the random first values.
absl::Status SetIntegers(Net& net, Context& context) {
  int salt = 1;
  absl::Status status;
  net.VisitParameters([&](const std::string&, Parameter& parameter) {
    std::vector<double> values(NumElements(parameter.shape));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>((i * 7 + salt) % 3) - 1;
    ++salt;
    const Layout layout = parameter.tensor.layout();
    TensorOr tensor =
        Cast(Distribute<double>(context, layout, parameter.shape, values), parameter.dtype);
    if (!tensor.ok()) return status.Update(tensor.status());
    parameter.tensor = *tensor;
    status.Update(parameter.tensor.set_requires_grad(true));
    parameter.tensor.set_pinned(true);
  });
  return status;
}

// w - 2^-6 * gradient.
absl::Status Descend(Net& net, Context& context) {
  DT_RETURN_IF_ERROR(ReduceGradients(net.Parameters()));
  const NoGrad no_grad(context);
  absl::Status status;
  net.VisitParameters([&](const std::string&, Parameter& parameter) {
    const TensorOr next = Sub(parameter.tensor, Scale(parameter.tensor.grad(), 1.0 / 64));
    if (!next.ok()) return status.Update(next.status());
    parameter.tensor = next->Detach();
    status.Update(parameter.tensor.set_requires_grad(true));
    parameter.tensor.set_pinned(true);
  });
  return status;
}

absl::StatusOr<std::vector<double>> Read(const DistributedTensor& tensor) {
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
  return ToGlobal<double>(wide);
}

// One step in f32; two in f64, which holds the second step's products.
absl::StatusOr<Bits> RunOn(const std::string& mesh_text, const ParallelPlan& plan, DType dtype,
                           uint64_t delays) {
  Bits bits;
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  RunOptions options;
  options.seed = delays;
  options.max_delay_us = delays > 0 ? 50 : 0;
  DT_RETURN_IF_ERROR(RunRanks(
      mesh.size(),
      [&](Context& context) -> absl::Status {
        Net net;
        net.SetDType(dtype);
        DT_RETURN_IF_ERROR(plan.Apply(net, context, mesh, {.allow_uneven = true}));
        DT_RETURN_IF_ERROR(SetIntegers(net, context));
        std::vector<int32_t> ids(kBatch * kSequence);
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 3 % kVocab);
        Bits mine;
        for (int step = 0; step < (dtype == DType::kF64 ? 2 : 1); ++step) {
          DT_ASSIGN_OR_RETURN(const DistributedTensor y,
                              net(Distribute<int32_t>(context, Layout::Replicated(mesh, 2),
                                                      {kBatch, kSequence}, ids)));
          DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1, 2})));
          DT_RETURN_IF_ERROR(Descend(net, context));
          DT_ASSIGN_OR_RETURN(mine.output, Read(y));
        }
        for (const DistributedTensor& parameter : net.Parameters()) {
          DT_ASSIGN_OR_RETURN(mine.parameters.emplace_back(), Read(parameter));
        }
        if (context.rank() == 0) bits = std::move(mine);
        return absl::OkStatus();
      },
      options));
  return bits;
}

ParallelPlan Plan(bool tp, Placement residual, bool dp) {
  ParallelPlan plan;
  if (tp) {
    plan.Add({"embedding", Rowwise("tp", residual)});
    plan.Add({"{up,gate}", Colwise("tp")});
    plan.Add({"down", Rowwise("tp", residual)});
  }
  if (dp) plan.Add({"", DataParallel("dp")});
  return plan;
}

void ExpectSameBits(DType dtype) {
  DT_ASSERT_OK_AND_ASSIGN(const Bits reference,
                          RunOn("tp=1", Plan(false, Replicate(), false), dtype, 0));
  EXPECT_NE(reference.parameters[0][0], reference.parameters[0][1]);
  for (const uint64_t delays : {0, 7}) {
    for (const Placement residual : {Replicate(), Shard(1)}) {
      for (const std::string mesh :
           {"tp=2", "tp=3", "tp=4", "dp=2,tp=2", "tp=2,dp=2", "dp=3,tp=2"}) {
        const bool dp = mesh.find("dp") != std::string::npos;
        DT_ASSERT_OK_AND_ASSIGN(const Bits bits,
                                RunOn(mesh, Plan(true, residual, dp), dtype, delays));
        EXPECT_TRUE(bits == reference)
            << mesh << " " << residual.ToString() << " delays " << delays;
      }
    }
    for (const std::string mesh : {"dp=2", "dp=3", "dp=4"}) {
      DT_ASSERT_OK_AND_ASSIGN(const Bits bits,
                              RunOn(mesh, Plan(false, Replicate(), true), dtype, delays));
      EXPECT_TRUE(bits == reference) << mesh;
    }
  }
}

TEST(ExactIntegers, TheSameBitsOnEveryMeshAndPlanInF32) { ExpectSameBits(DType::kF32); }
TEST(ExactIntegers, TheSameBitsOnEveryMeshAndPlanInF64) { ExpectSameBits(DType::kF64); }

}  // namespace
}  // namespace dtensor
