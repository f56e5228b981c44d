// A padded batch gives each text what it gives alone, results and gradients, by every plan: BERT
// with KeyLengths.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/key_lengths.h"
#include "dtensor/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kTexts = 4, kSequence = 8, kDim = 8;
constexpr int64_t kLengths[kTexts] = {3, 8, 1, 5};

BertConfig Config() {
  BertConfig config;
  config.vocab = 13, config.positions = kSequence, config.dim = kDim, config.layers = 2;
  config.heads = 2, config.hidden = 12, config.init_stddev = .3, config.norm_eps = 1e-5;
  config.hidden_dropout = config.attention_dropout = 0;
  return config;
}

// Of texts [first, first + count) the first `width` tokens; padding is token 12.
class Batch {
 public:
  Batch(int64_t first, int64_t count, int64_t width)
      : first_(first), count_(count), width_(width) {}

  TensorOr Ids(Context& context, const DeviceMesh& mesh) const {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count_ * width_; ++i) {
      ids.push_back(IsReal(i) ? (5 * Text(i) + 3 * Position(i)) % 12 : 12);
    }
    return Distribute<int64_t>(context, Layout::Replicated(mesh, 2), {count_, width_}, ids);
  }
  TensorOr Types(Context& context, const DeviceMesh& mesh) const {
    return Full(context, Layout::Replicated(mesh, 2), {count_, width_}, DType::kI64, 1);
  }
  TensorOr Lengths(Context& context, const DeviceMesh& mesh) const {
    return Distribute<int64_t>(context, Layout::Replicated(mesh, 1), {count_},
                               absl::MakeConstSpan(kLengths + first_, count_));
  }
  // The sum of the results' numbers, each real one times a number of its own.
  TensorOr Loss(const std::vector<DistributedTensor>& results) const {
    std::vector<double> of_hidden, of_pooled;
    for (int64_t i = 0; i < count_ * width_ * kDim; ++i) {
      const int64_t token = i / kDim;
      of_hidden.push_back(IsReal(token) ? Number(1, Text(token), Position(token), i % kDim) : 0);
    }
    for (int64_t i = 0; i < count_ * kDim; ++i) {
      of_pooled.push_back(Number(2, first_ + i / kDim, 0, i % kDim));
    }
    return Add(Weighted(results[0], of_hidden), Weighted(results[1], of_pooled));
  }

 private:
  int64_t Text(int64_t i) const { return first_ + i / width_; }
  int64_t Position(int64_t i) const { return i % width_; }
  bool IsReal(int64_t i) const { return Position(i) < kLengths[Text(i)]; }
  static double Number(int64_t a, int64_t b, int64_t c, int64_t d) {
    return static_cast<double>((a * 7 + b * 11 + c * 5 + d * 3) % 17) / 8 - 1;
  }
  static TensorOr Weighted(const DistributedTensor& x, const std::vector<double>& weights) {
    const Layout whole = Layout::Replicated(x.mesh(), x.ndim());
    std::vector<int> all;
    for (int d = 0; d < x.ndim(); ++d) all.push_back(d);
    return Sum(Mul(x, Distribute<double>(x.context(), whole, x.shape(), weights)), all);
  }

  const int64_t first_, count_, width_;
};

using Values = std::map<std::string, std::vector<double>>;

absl::StatusOr<Values> GradientsOf(Module& model, const DeviceMesh& mesh) {
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  Values gradients;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    const DistributedTensor& gradient = parameter.tensor.grad();
    const TensorOr whole = gradient.Redistribute(Layout::Replicated(mesh, gradient.ndim()));
    status.Update(whole.status());
    if (!whole.ok()) return;
    const auto values = ToGlobal<double>(*whole);
    status.Update(values.status());
    if (values.ok()) gradients[path] = *values;
  });
  DT_RETURN_IF_ERROR(status);
  return gradients;
}

absl::StatusOr<std::unique_ptr<BertModel>> MakeModel(Context& context, const DeviceMesh& mesh,
                                                     bool recompute) {
  auto model = std::make_unique<BertModel>(Config());
  DT_ASSIGN_OR_RETURN(const TensorParallelism planned, PlanTensorParallel(Config(), mesh));
  model->SetDType(DType::kF64);
  ParallelPlanOptions options = {.seed = 3};
  if (recompute) options.recompute = {"encoder.layer.*"};
  DT_RETURN_IF_ERROR(planned.plan.Apply(*model, context, planned.mesh, options));
  return model;
}

// The loss of one part of the batch. The lengths hold while the model is called, and not while it
// is recomputed.
TensorOr LossOf(Context& context, BertModel& model, const DeviceMesh& mesh, const Batch& batch,
                bool padded) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor lengths, batch.Lengths(context, mesh));
  std::optional<KeyLengths> scope;
  if (padded) scope.emplace(lengths);
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results,
                      model.Call({batch.Ids(context, mesh), batch.Types(context, mesh)}));
  return batch.Loss(results);
}

Values Alone() {
  Values gradients;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const DeviceMesh mesh;
    DT_ASSIGN_OR_RETURN(const auto model, MakeModel(context, mesh, /*recompute=*/false));
    for (int64_t r = 0; r < kTexts; ++r) {
      DT_RETURN_IF_ERROR(
          Backward(LossOf(context, *model, mesh, Batch(r, 1, kLengths[r]), /*padded=*/false)));
    }
    DT_ASSIGN_OR_RETURN(gradients, GradientsOf(*model, mesh));
    return absl::OkStatus();
  }));
  return gradients;
}

void ExpectAlike(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [path, values] : want) {
    EXPECT_THAT(got.at(path), testing::Pointwise(testing::DoubleNear(1e-12), values))
        << what << " " << path;
  }
}

TEST(PaddedBatches, GiveEachTextWhatItGivesAlone) {
  const Values alone = Alone();
  for (const char* mesh_text : {"tp=1", "tp=2", "dp=2", "dp=4", "cp=2", "dp=2,tp=2", "dp=2,cp=2"}) {
    for (const bool recompute : {false, true}) {
      DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
      DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto model, MakeModel(context, mesh, recompute));
        DT_RETURN_IF_ERROR(
            Backward(LossOf(context, *model, mesh, Batch(0, kTexts, kSequence), /*padded=*/true)));
        DT_ASSIGN_OR_RETURN(const Values got, GradientsOf(*model, mesh));
        ExpectAlike(got, alone, absl::StrCat(mesh_text, " recompute ", recompute));
        return absl::OkStatus();
      })) << mesh_text;
    }
  }
}

// Each micro-batch has lengths of its own, which later stages and the other phase find.
TEST(PaddedBatches, GoThroughPipelines) {
  const Values alone = Alone();
  for (const char* mesh_text : {"pp=2", "pp=2,dp=2"}) {
    for (const bool recompute : {false, true}) {
      DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
      DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto model, MakeModel(context, mesh, recompute));
        const auto loss = [&](int64_t i) {
          return LossOf(context, *model, mesh, Batch(2 * i, 2, kSequence), /*padded=*/true);
        };
        DT_RETURN_IF_ERROR(RunPipeline(context, mesh, "pp", kTexts / 2, loss).status());
        DT_ASSIGN_OR_RETURN(const Values got, GradientsOf(*model, mesh));
        ExpectAlike(got, alone, absl::StrCat(mesh_text, " recompute ", recompute));
        return absl::OkStatus();
      })) << mesh_text;
    }
  }
}

// Logits of one text, of its first `width` tokens; the first `count` of them.
absl::StatusOr<std::vector<double>> Logits(Context& context, Module& model, int64_t text,
                                           int64_t width, int64_t count) {
  const TensorOr y = model(Batch(text, 1, width).Ids(context, DeviceMesh()));
  DT_ASSIGN_OR_RETURN(const DistributedTensor real, Slice(y, 1, 0, count));
  return ToGlobal<double>(real);
}

// If its queries see later keys, so that padding would matter.
void ExpectTakesLengths(const std::string& config) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
    model->SetDType(DType::kF64);
    model->SetTraining(false);
    model->VisitModules([](const std::string&, Module& module) {
      if (module.attention() != nullptr) module.attention()->mask = AttentionMask::Full();
    });
    DT_RETURN_IF_ERROR(model->Materialize(context, DeviceMesh(), 1));
    constexpr int64_t kText = 0, kReal = kLengths[kText];
    DT_ASSIGN_OR_RETURN(const auto alone, Logits(context, *model, kText, kReal, kReal));
    DT_ASSIGN_OR_RETURN(const auto without, Logits(context, *model, kText, kSequence, kReal));
    DT_ASSIGN_OR_RETURN(const DistributedTensor lengths,
                        Batch(kText, 1, kSequence).Lengths(context, DeviceMesh()));
    const KeyLengths padded(lengths);
    DT_ASSIGN_OR_RETURN(const auto with, Logits(context, *model, kText, kSequence, kReal));
    EXPECT_THAT(with, testing::Pointwise(testing::DoubleNear(1e-12), alone)) << config;
    EXPECT_THAT(without, testing::Not(testing::Pointwise(testing::DoubleNear(1e-6), alone)));
    return absl::OkStatus();
  }));
}

TEST(PaddedBatches, EveryAttentionTakesLengths) {
  ExpectTakesLengths(R"({"model_type": "gpt2", "vocab_size": 13, "n_positions": 8, "n_embd": 8,
                         "n_layer": 2, "n_head": 2})");
  ExpectTakesLengths(R"({"model_type": "llama", "vocab_size": 13, "hidden_size": 8,
                         "num_hidden_layers": 2, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "intermediate_size": 12})");
  ExpectTakesLengths(R"({"model_type": "gpt_oss", "vocab_size": 13, "hidden_size": 8,
                         "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 4,
                         "num_key_value_heads": 2, "intermediate_size": 8,
                         "num_local_experts": 2, "num_experts_per_tok": 1,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 100}})");
  ExpectTakesLengths(R"({"model_type": "deepseek_v3", "vocab_size": 13, "hidden_size": 8,
                         "num_hidden_layers": 1, "first_k_dense_replace": 1,
                         "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 4,
                         "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
                         "v_head_dim": 4, "intermediate_size": 12, "n_routed_experts": 2,
                         "num_experts_per_tok": 1, "moe_intermediate_size": 4})");
}

// The innermost lengths hold, in a function that is run again too.
TEST(PaddedBatches, LengthsAreThoseOfTheCall) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const Layout row = Layout::Replicated(DeviceMesh(), 1);
    DT_ASSIGN_OR_RETURN(const auto outer, Full(context, row, {2}, DType::kI64, 1));
    DT_ASSIGN_OR_RETURN(const auto inner, Full(context, row, {3}, DType::kI64, 2));
    DT_ASSIGN_OR_RETURN(auto x, Full(context, row, {1}, DType::kF32, 1));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    std::vector<int64_t> seen;  // how many lengths there are
    const auto look = [&](absl::Span<const DistributedTensor> operands) -> TensorsOr {
      const auto lengths = context.key_lengths();
      seen.push_back(lengths == nullptr ? 0 : lengths->shape()[0]);
      DT_ASSIGN_OR_RETURN(const auto y, Mul(operands[0], operands[0]));
      return std::vector<DistributedTensor>{y};
    };
    std::vector<DistributedTensor> y;
    {
      const KeyLengths two(outer);
      {
        const KeyLengths three(inner);
        DT_ASSIGN_OR_RETURN(y, Recompute({x}, look));
      }
      DT_RETURN_IF_ERROR(look({x}).status());
    }
    DT_RETURN_IF_ERROR(look({x}).status());
    DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0})));
    DT_RETURN_IF_ERROR(look({x}).status());
    EXPECT_THAT(seen, testing::ElementsAre(3, 2, 0, 3, 0));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
