// Models that are made from Hugging Face's configurations compute what Hugging Face's do, results
// and gradients by the same names, on one rank and by a plan. make_cases.py made what they are
// compared with.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/balancing.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/key_lengths.h"
#include "dtensor/tests/hugging_face/formula.h"
#include "dtensor/tests/torch_cases/stored_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// By the names that files have: one after the other of a parameter that has parts there.
std::vector<double> FormulaOf(const std::string& path, const Parameter& parameter) {
  std::vector<double> values;
  for (const StoredPart& part : StoredPartsOf(path, parameter)) {
    const std::vector<double> more = Formula(part.name, NumElements(part.shape));
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

struct Case {
  std::string config;
  std::vector<StoredTensor> operands, results;
  std::map<std::string, StoredTensor> gradients;  // by the name that files have
};

absl::StatusOr<Case> ReadCase(const SafetensorsReader& file, const std::string& name) {
  const auto config = file.metadata().find(name);
  if (config == file.metadata().end()) return absl::NotFoundError(name);
  Case out{.config = config->second};
  DT_ASSIGN_OR_RETURN(out.operands, ReadStoredTensors(file, absl::StrCat(name, "/operand")));
  DT_ASSIGN_OR_RETURN(out.results, ReadStoredTensors(file, absl::StrCat(name, "/result")));
  const std::string prefix = absl::StrCat(name, "/gradient/");
  for (const auto& [tensor, info] : file.tensors()) {
    if (!absl::StartsWith(tensor, prefix)) continue;
    DT_ASSIGN_OR_RETURN(out.gradients[tensor.substr(prefix.size())],
                        ReadStoredTensor(file, tensor));
  }
  return out;
}

class HuggingFace : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file,
                            SafetensorsReader::Open("tests/hugging_face/cases.safetensors"));
    DT_ASSERT_OK_AND_ASSIGN(case_, ReadCase(file, GetParam()));
  }

  // Hugging Face's LLaMA and its kin compute norms and angles in f32, whatever their type.
  // make_cases.py has those with experts, and Gemmas, do it in f64.
  double tolerance() const {
    for (const absl::string_view in_f64 : {"gpt2", "bert", "deepseek_v3", "gemma", "glm4_moe",
                                           "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"}) {
      if (absl::StartsWith(GetParam(), in_f64)) return 1e-12;
    }
    return 2e-5;
  }

  // Models with experts return what the balancing loss is made of, but for those of sigmoid scores.
  bool is_mixture() const {
    return !absl::StrContains(GetParam(), "glm4") &&
           (absl::StrContains(GetParam(), "moe") || absl::StrContains(GetParam(), "mixtral") ||
            absl::StrContains(GetParam(), "gpt_oss"));
  }
  absl::StatusOr<std::unique_ptr<Module>> NewModel() const {
    if (!is_mixture()) return ModelFromJson(case_.config);
    DT_ASSIGN_OR_RETURN(TransformerConfig config, TransformerConfig::FromJson(case_.config));
    config.router_sums = true;
    return std::make_unique<Transformer>(config);
  }

  absl::StatusOr<std::unique_ptr<Module>> MakeModel(Context& context, DeviceMesh& mesh) const {
    DT_ASSIGN_OR_RETURN(std::unique_ptr<Module> model, NewModel());
    DT_ASSIGN_OR_RETURN(const TensorParallelism planned, PlanTensorParallel(case_.config, mesh));
    mesh = planned.mesh;
    model->SetDType(DType::kF64);
    model->SetTraining(false);
    model->VisitParameters([](const std::string& path, Parameter& parameter) {
      parameter.init = ParameterInit::Values(FormulaOf(path, parameter));
    });
    DT_RETURN_IF_ERROR(planned.plan.Apply(*model, context, mesh, {.allow_uneven = true}));
    return model;
  }

  absl::Status Run(Context& context, DeviceMesh mesh) const {
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, MakeModel(context, mesh));
    std::vector<TensorOr> operands;
    for (const StoredTensor& ids : case_.operands) {
      const std::vector<int64_t> values(ids.values.begin(), ids.values.end());
      operands.push_back(
          Distribute<int64_t>(context, Layout::Replicated(mesh, 2), ids.shape, values));
    }
    std::optional<KeyLengths> padded;  // from a mask with ones in front, its last operand
    if (operands.size() > model->operand_names().size()) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor lengths, Sum(operands.back(), {1}));
      padded.emplace(lengths);
      operands.pop_back();
    }
    DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, model->Call(operands));
    if (is_mixture()) {
      const int64_t tokens = NumElements(case_.operands[0].shape);
      DT_ASSIGN_OR_RETURN(results[1], BalancingLoss(results[1], tokens));
    }
    EXPECT_EQ(results.size(), case_.results.size());
    TensorOr loss;
    for (size_t r = 0; r < results.size(); ++r) {
      DT_RETURN_IF_ERROR(ExpectResult(r, results[r]));
      const TensorOr term = LossOf(r, results[r]);
      loss = r == 0 ? term : Add(loss, term);
    }
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_RETURN_IF_ERROR(ReduceGradients(model->Parameters()));
    return ExpectGradients(*model);
  }

  absl::Status ExpectResult(size_t r, const DistributedTensor& result) const {
    EXPECT_EQ(result.shape(), case_.results[r].shape);
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(result.Detach()));
    EXPECT_LE(ErrorOf(values, case_.results[r].values, 0), tolerance()) << "result " << r;
    return absl::OkStatus();
  }

  TensorOr LossOf(size_t r, const DistributedTensor& result) const {
    const std::vector<double> factors =
        Formula(absl::StrCat("result", r), NumElements(result.shape()));
    const TensorOr flat = Reshape(result, {-1});
    return Sum(Mul(flat, Distribute<double>(result.context(), Layout::Replicated(result.mesh(), 1),
                                            {static_cast<int64_t>(factors.size())}, factors)),
               {0});
  }

  absl::Status ExpectGradients(Module& model) const {
    absl::Status status;
    size_t found = 0, parameters = 0;
    model.VisitParameters([&](const std::string& path, Parameter& parameter) {
      if (!parameter.trained) return;
      const absl::StatusOr<StateDict> parts = PartsOf(path, parameter, parameter.tensor.grad());
      status.Update(parts.status());
      if (!parts.ok()) return;
      for (const auto& [name, gradient] : *parts) {
        ++parameters;
        const auto stored = case_.gradients.find(name);
        if (stored == case_.gradients.end()) continue;
        ++found;
        status.Update(ExpectGradient(name, gradient, stored->second));
      }
    });
    EXPECT_EQ(found, case_.gradients.size()) << "gradients of parameters that the model lacks";
    EXPECT_EQ(found, found == 1 ? 1 : parameters) << "parameters that Hugging Face's lacks";
    return status;
  }

  absl::Status ExpectGradient(const std::string& name, const DistributedTensor& gradient,
                              const StoredTensor& stored) const {
    EXPECT_EQ(gradient.shape(), stored.shape) << name;
    DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(gradient));
    // What is 0 but for rounding, as the gradient of a key's bias, is compared to 1.
    EXPECT_LE(ErrorOf(values, stored.values, 1), tolerance()) << name;
    return absl::OkStatus();
  }

  Case case_;
};

INSTANTIATE_TEST_SUITE_P(
    Cases, HuggingFace,
    ::testing::Values("gpt2", "gpt2_otherwise", "gpt2_otherwise_unscaled", "bert", "bert_otherwise",
                      "bert_padded", "deepseek_v3", "deepseek_v3_otherwise", "gemma", "gemma3_text",
                      "gemma3_text_otherwise", "glm4_moe", "glm4_moe_otherwise", "gpt_oss",
                      "gpt_oss_otherwise", "llama", "llama_otherwise", "llama_otherwise_biased",
                      "llama_otherwise_linear", "llama_otherwise_llama3", "llama_otherwise_yarn",
                      "qwen3_otherwise_yarn", "mistral_otherwise", "mixtral", "mixtral_otherwise",
                      "qwen2_moe", "qwen2_moe_otherwise", "qwen2_otherwise", "qwen3", "qwen3_moe",
                      "qwen3_moe_otherwise", "qwen3_moe_otherwise_every_second"),
    [](const auto& info) { return info.param; });

TEST_P(HuggingFace, ComputesTheSameOnOneRankAndByPlans) {
  for (const std::string mesh : {"tp=1", "tp=2", "dp=2,cp=2,tp=2"}) {
    SCOPED_TRACE(mesh);
    const DeviceMesh parsed = *DeviceMesh::Parse(mesh);
    DT_EXPECT_OK(RunRanks(parsed.size(), [&](Context& context) { return Run(context, parsed); }));
  }
}

}  // namespace
}  // namespace dtensor
