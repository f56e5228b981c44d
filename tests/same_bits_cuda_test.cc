// Law 5 on GPUs: models that are trained again and again from one state have the same bits after
// two steps, whichever rank is late.
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/digest.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/training.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

#ifndef DTENSOR_SAME_BITS_RUNS  // fewer over fakes, which are slow
#define DTENSOR_SAME_BITS_RUNS 100
#endif
constexpr int kRuns = DTENSOR_SAME_BITS_RUNS;
constexpr int kRanks = 2, kSteps = 2;
// So many rows that cuDNN, where it is there, serves attention in bf16 without dropout.
constexpr int64_t kBatch = 2, kSequence = 64, kVocab = 24;

struct Model {
  std::string name, mesh;
  std::function<std::unique_ptr<Module>()> make;
};

// RMS norms, rotary positions, grouped heads; its layers are split.
std::unique_ptr<Module> MakeTransformer() {
  TransformerConfig config = SmallTransformer();
  config.vocab = kVocab;
  config.dim = 64;
  config.heads = 4;
  config.kv_heads = 2;
  return std::make_unique<Transformer>(config);
}

// Layer norms, biases, and dropout of tokens, sums and attention's weights.
std::unique_ptr<Module> MakeGpt2() {
  Gpt2Config config;
  config.vocab = kVocab;
  config.positions = kSequence;
  config.dim = 64;
  config.layers = 1;
  config.heads = 4;
  config.hidden = 64;
  return std::make_unique<Gpt2>(config);
}

// What a run ends with on one rank: the loss of each step, and a digest of each parameter's
// elements there, by name.
using Bits = std::vector<std::pair<std::string, uint64_t>>;

absl::StatusOr<uint64_t> BitsOf(const Tensor& tensor) {
  Digest digest;
  DT_RETURN_IF_ERROR(AddElements(tensor, digest));
  return digest.value();
}

// One step on the same batch each time. Returns the loss.
TensorOr Step(Context& context, const DeviceMesh& mesh, Module& model, AdamW& adamw) {
  const TensorOr ids = StepTokens(context, mesh, {kBatch, kSequence}, 7, kVocab);
  const TensorOr targets = StepTokens(context, mesh, {kBatch, kSequence}, 5, kVocab);
  DT_ASSIGN_OR_RETURN(const DistributedTensor loss, CrossEntropyMean(model(ids), targets));
  DT_RETURN_IF_ERROR(Backward(loss));
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_RETURN_IF_ERROR(adamw.Step(0.05));
  adamw.ClearGradients();
  return loss.Detach();
}

// A run from its beginning: first values and dropout are those of `seed`.
absl::StatusOr<Bits> Train(Context& context, const Model& tested, DType dtype, uint64_t seed) {
  context.random() = {.seed = seed};
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(tested.mesh));
  const std::unique_ptr<Module> model = tested.make();
  model->SetDType(dtype);
  DT_RETURN_IF_ERROR(
      PlanFor(mesh, /*sequence_parallel=*/true).Apply(*model, context, mesh, {.seed = seed}));
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model->Parameters(), {.master_weights = true}));
  Bits bits;
  for (int step = 0; step < kSteps; ++step) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Step(context, mesh, *model, adamw));
    DT_ASSIGN_OR_RETURN(const uint64_t of_loss, BitsOf(loss.local()));
    bits.emplace_back(absl::StrCat("the loss of step ", step), of_loss);
  }
  absl::Status status;
  model->VisitParameters([&](const std::string& path, Parameter& parameter) {
    const absl::StatusOr<uint64_t> of_parameter = BitsOf(parameter.tensor.local());
    status.Update(of_parameter.status());
    if (of_parameter.ok()) bits.emplace_back(path, *of_parameter);
  });
  DT_RETURN_IF_ERROR(status);
  return bits;
}

// The first thing whose bits are others, or "".
std::string FirstDifference(const Bits& a, const Bits& b) {
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i] != b[i]) return b[i].first;
  }
  return "";
}

class SameBits : public testing::TestWithParam<std::tuple<Model, DType>> {};

TEST_P(SameBits, EachRunFromOneState) {
  if (const auto gpus = CountGpus(); !gpus.ok()) GTEST_SKIP() << gpus.status();
  const auto& [model, dtype] = GetParam();
  const RunOptions options = {.device = Device::Kind::kCuda, .seed = 1, .max_delay_us = 100};
  DT_EXPECT_OK(RunRanks(
      kRanks,
      [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const Bits first, Train(context, model, dtype, /*seed=*/3));
        int others = 0;
        for (int run = 1; run < kRuns; ++run) {
          DT_ASSIGN_OR_RETURN(const Bits again, Train(context, model, dtype, /*seed=*/3));
          const std::string difference = FirstDifference(first, again);
          if (difference.empty() || ++others > 1) continue;
          ADD_FAILURE() << "rank " << context.rank() << ", run " << run << " of " << kRuns
                        << " has other bits than the first, beginning with " << difference;
        }
        EXPECT_EQ(others, 0) << "of " << kRuns << " runs have other bits than the first";
        // Without this the runs above might compare nothing.
        DT_ASSIGN_OR_RETURN(const Bits other, Train(context, model, dtype, /*seed=*/4));
        EXPECT_EQ(FirstDifference(first, other), first[0].first);
        EXPECT_NE(first[0].second, first[1].second) << "a step changed no loss";
        return absl::OkStatus();
      },
      options));
}

INSTANTIATE_TEST_SUITE_P(
    All, SameBits,
    testing::Combine(testing::Values(Model{"Transformer", "tp=2", MakeTransformer},
                                     Model{"Gpt2", "dp=2", MakeGpt2}),
                     testing::Values(DType::kF32, DType::kBF16)),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param).name, "_", ToString(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace dtensor
