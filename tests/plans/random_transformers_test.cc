// Random Transformers by random presets: losses, router sums, gradients and weights after steps of
// AdamW, or Muon, are those of one rank. Random are the model (heads, windows, norms, scalings of
// positions, tied weights, experts, shared experts, layers without experts), whether adapters train
// in place of its weights, the mesh and what each axis does, the micro-batches and how they go
// through a pipeline, and what is recomputed. DTENSOR_SECONDS sets how long the slow test runs; a
// failure names the seed.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/balancing.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/lora.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/slow_test_time.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

struct Program {
  TransformerConfig config;
  std::string mesh, plan, pattern;
  int64_t batch = 4, sequence = 8, micro_batches = 1;
  bool by_pipeline = false;  // RunPipeline; else Backward of the sum of all losses
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool in_two_parts = false;  // BackwardForInputs, if it is no pipeline
  ParallelPlanOptions options = {.seed = 3, .allow_uneven = true};
  int64_t bucket_bytes = 0;
  LoraOptions lora = {.layers = {}};  // without layers: none
  bool muon = false;                  // steps the matrices

  std::string ToString() const {
    return absl::StrCat(
        "plan ", plan, " on ", mesh, ", ", pattern, "; layers ", config.layers, ", kv heads ",
        config.kv_heads, ", experts ", config.experts, " of ", config.experts_per_token, ", dense ",
        absl::StrJoin(config.dense_layers, ","), ", shared ", config.shared_hidden,
        config.router_sums ? ", sums" : "",
        config.router_score == RouterScore::kSigmoid ? ", sigmoid" : "", ", groups ",
        config.expert_groups, ", ranks ", config.kv_lora_rank, " ", config.q_lora_rank,
        ", rotated ", config.rotary_dim, ", scale ", config.attention_scale,
        config.tie_embeddings ? ", tied" : "", config.attention_sinks ? ", sinks" : "",
        config.expert_clamp ? ", clamped" : "", "; batch ", batch, ", sequence ", sequence,
        ", micro-batches ", micro_batches,
        by_pipeline ? absl::StrCat(" by ", ::dtensor::ToString(schedule)) : "",
        in_two_parts ? " in two parts" : "",
        "; recomputed: ", absl::StrJoin(options.recompute, " "),
        "; adapters: ", absl::StrJoin(lora.layers, " "), muon ? "; Muon" : "");
  }
};

void MakeLatent(TestRandom& choices, TransformerConfig& config) {
  config.kv_heads = config.heads;
  config.kv_lora_rank = 5;
  config.q_lora_rank = choices.Of<int64_t>({0, 6});
  config.head_size = 6;
  config.rotary_dim = choices.Of<int64_t>({2, 4});
  config.v_head_dim = choices.Of<int64_t>({4, 6, 7});
  config.rope_interleaved = choices.Coin();
  config.attention_scale = choices.Of({0.0, 0.7});
  config.qk_norm = false;
  config.window = config.first_window_layer = 0;
}

TransformerConfig RandomConfig(TestRandom& choices) {
  TransformerConfig config;
  config.vocab = choices.Of<int64_t>({12, 13});
  config.dim = 16;
  config.layers = choices.Of<int64_t>({1, 2, 3, 4});
  config.heads = 4;
  config.kv_heads = choices.Of<int64_t>({1, 2, 4});
  config.hidden = choices.Of<int64_t>({8, 12});
  config.init_stddev = 0.3;
  config.tie_embeddings = choices.Coin();
  config.qkv_bias = choices.Coin();
  config.qk_norm = choices.Coin();
  config.rotary_dim = choices.Of<int64_t>({0, 0, 2});
  if (choices.Coin()) config.window = 3, config.first_window_layer = choices.Of<int64_t>({0, 1});
  if (choices.Coin()) {
    config.rope_scaling = choices.Of({RopeScaling{4},
                                      {4, 1, 4, 16},
                                      {4, 1, 8, 16, RopeTransition::kByWholePairs, 1.25},
                                      {2, 0.5, 8, 16, RopeTransition::kByPairs, 0.75}});
  }
  const bool is_latent = choices.Chance(25);
  if (is_latent) MakeLatent(choices, config);
  config.attention_sinks = !is_latent && choices.Chance(33);
  if (!choices.Coin()) {
    config.fused_projections = !is_latent && choices.Coin();
    return config;
  }
  config.experts = choices.Of<int64_t>({2, 4, 5});
  config.experts_per_token = choices.Of<int64_t>({1, 2});
  config.normalize_experts = choices.Coin();
  config.mixtral_names = choices.Coin();
  config.router_sums = choices.Coin();
  if (choices.Coin()) {
    config.router_score = RouterScore::kSigmoid;
    config.routed_scaling_factor = choices.Of({1.0, 1.5});
    if (config.experts == 4) config.expert_groups = choices.Of<int64_t>({1, 2});
  }
  config.shared_hidden = choices.Of<int64_t>({0, 6});
  if (config.router_score == RouterScore::kSoftmax && choices.Chance(40)) {
    config.expert_clamp = {1.702, 0.2};
    config.mixtral_names = false;
    config.shared_hidden = 0;
  }
  config.dense_hidden = 10;
  for (int64_t l = 0; l + 1 < config.layers; ++l) {
    if (choices.Chance(33)) config.dense_layers.push_back(l);
  }
  return config;
}

// Axes of 8 ranks at most, and a preset that says what they do.
void ChoosePlan(TestRandom& choices, Program& program) {
  struct Part {
    const char* axis;
    std::initializer_list<const char*> names;
  };
  const Part parts[] = {{"dp", {"dp", "zero1", "zero2", "fsdp", "hsdp"}},
                        {"ep", {"ep"}},
                        {"cp", {"cp"}},
                        {"pp", {"pp"}},
                        {"tp", {"tp", "tp+sp"}}};
  std::vector<std::string> axes, names, groups;
  int64_t ranks = 1;
  for (const Part& part : parts) {
    const char* const name = choices.Of(part.names);
    const bool is_hsdp = name == std::string("hsdp");
    const int64_t size = choices.Of<int64_t>({1, 1, 2, 2, 3}) * (is_hsdp ? 2 : 1);
    const bool is_pp = part.axis == std::string("pp");
    const bool fits = ranks * size <= 8 && (!is_pp || size <= program.config.layers);
    const bool has = part.axis != std::string("ep") || program.config.experts > 0;
    if (size == 1 || !fits || !has) continue;
    ranks *= size;
    axes.push_back(is_hsdp ? absl::StrCat("outer=2,inner=", size / 2)
                           : absl::StrCat(part.axis, "=", size));
    if (is_hsdp) groups.emplace_back(";dp=outer*inner");
    names.emplace_back(name);
    program.by_pipeline = program.by_pipeline || (is_pp && choices.Coin());
    if (choices.Coin()) program.schedule = PipelineSchedule::kZeroBubble;
    program.in_two_parts = choices.Coin();
  }
  program.mesh =
      axes.empty() ? "tp=1" : absl::StrCat(absl::StrJoin(axes, ","), absl::StrJoin(groups, ""));
  program.plan = names.empty() ? "none" : absl::StrJoin(names, "+");
  program.pattern = choices.Of({"zigzag", "ring", "striped", "ulysses"});
}

// Of some of the linear layers, not of a head that shares its weight.
void ChooseAdapters(TestRandom& choices, Program& program) {
  if (!choices.Chance(30)) return;
  program.lora.rank = choices.Of<int64_t>({1, 3});
  program.lora.alpha = 2;
  program.lora.rank_stabilized = choices.Coin();
  std::set<std::string> names;
  Transformer model(program.config);
  model.VisitModules([&](const std::string& path, Module& module) {
    if (module.linear() == nullptr) return;
    const bool is_tied = program.config.tie_embeddings && path == "lm_head";
    if (!is_tied) names.insert(path.substr(path.rfind('.') + 1));
  });
  for (const std::string& name : names) {
    if (choices.Coin()) program.lora.layers.push_back(name);
  }
}

Program RandomProgram(uint32_t seed) {
  TestRandom choices(seed);
  Program program;
  program.config = RandomConfig(choices);
  program.batch = choices.Of<int64_t>({4, 6, 8});
  program.sequence = choices.Of<int64_t>({6, 8, 9, 12});
  program.micro_batches = choices.Of<int64_t>({1, 2});
  ChoosePlan(choices, program);
  for (const char* const pattern :
       {"model.layers.*", "model.layers.0", "model.layers.*.{mlp,block_sparse_moe}", "model.layers",
        "model", ""}) {
    if (!choices.Chance(15)) continue;
    program.options.recompute.emplace_back(pattern);
  }
  program.options.recompute_keeps_collectives = choices.Coin();
  program.options.keep_gathered = choices.Coin();
  program.bucket_bytes = choices.Of<int64_t>({0, 500, kBucketBytes});
  ChooseAdapters(choices, program);
  program.muon = choices.Chance(25);
  return program;
}

// The same on one rank.
Program OnOneRank(Program program) {
  program.mesh = "tp=1";
  program.plan = "none";
  program.by_pipeline = program.in_two_parts = false;
  program.options = {.seed = 3};
  return program;
}

struct Outcome {
  std::vector<double> losses, sums;  // of each step; router_sums of the first micro-batch
  Values gradients, weights;         // of the first step; at the end
  Values merged;                     // weights with adapters merged into them
};

class RankRun {
 public:
  RankRun(Context& context, const Program& program)
      : context_(context), program_(program), model_(program.config) {}

  absl::StatusOr<Outcome> Run() {
    DT_ASSIGN_OR_RETURN(mesh_, DeviceMesh::Parse(program_.mesh));
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan, PresetPlan(program_.plan, mesh_,
                                                            {.context_pattern = program_.pattern,
                                                             .allow_uneven = true,
                                                             .transformer = program_.config}));
    model_.SetDType(DType::kF64);
    model_.VisitParameters([](const std::string&, Parameter& parameter) {
      if (parameter.shape.size() == 1) parameter.init = ParameterInit::Normal(0.5);
    });
    if (!program_.lora.layers.empty()) DT_RETURN_IF_ERROR(AddAdapters());
    DT_RETURN_IF_ERROR(plan.Apply(model_, context_, mesh_, program_.options));
    const std::vector<DistributedTensor> parameters = model_.Parameters();
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                        AdamWOrMuon(parameters, program_.muon));
    for (int step = 0; step < 3; ++step) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor loss, LossAndGradients());
      DT_ASSIGN_OR_RETURN(const std::vector<double> value, Everywhere(loss));
      outcome_.losses.push_back(value[0]);
      DT_RETURN_IF_ERROR(ReduceGradients(parameters));
      if (step == 0) DT_RETURN_IF_ERROR(Read(/*gradients=*/true, outcome_.gradients));
      DT_RETURN_IF_ERROR(optimizer->Step(0.01));
      optimizer->ClearGradients();
    }
    DT_RETURN_IF_ERROR(Read(/*gradients=*/false, outcome_.weights));
    if (program_.lora.layers.empty()) return std::move(outcome_);
    DT_RETURN_IF_ERROR(MergeLora(model_));
    DT_RETURN_IF_ERROR(Read(/*gradients=*/false, outcome_.merged));
    return std::move(outcome_);
  }

 private:
  // With first values that are nowhere 0, so that all of them have gradients.
  absl::Status AddAdapters() {
    DT_RETURN_IF_ERROR(AddLora(model_, program_.lora));
    model_.VisitParameters([](const std::string&, Parameter& parameter) {
      if (parameter.is_adapter) parameter.init = ParameterInit::Normal(0.3);
    });
    return absl::OkStatus();
  }

  TensorOr Tokens(int64_t micro, int64_t factor) {
    const int64_t rows = program_.batch / program_.micro_batches;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows * program_.sequence; ++i) {
      ids.push_back(
          static_cast<int32_t>((i * i + 31 * micro + i) * factor % program_.config.vocab));
    }
    return Distribute<int32_t>(context_, Layout::Replicated(mesh_, 2), {rows, program_.sequence},
                               ids);
  }

  TensorOr Loss(int64_t micro) {
    DT_ASSIGN_OR_RETURN(const auto results, model_.Call({Tokens(micro, 7)}));
    const DistributedTensor& logits = results[0];
    DT_ASSIGN_OR_RETURN(const auto targets, Tokens(micro, 5));
    DT_ASSIGN_OR_RETURN(const Layout there, targets.layout().OnMesh(logits.mesh()));
    TensorOr loss = CrossEntropyMean(logits, targets.Redistribute(there));
    if (results.size() == 2) {
      if (micro == 0 && outcome_.losses.empty()) sums_ = results[1].Detach();
      const int64_t tokens = program_.batch / program_.micro_batches * program_.sequence;
      loss = Add(loss, BalancingLoss(results[1], tokens));
    }
    return Scale(loss, 1 / static_cast<double>(program_.micro_batches));
  }

  TensorOr LossAndGradients() {
    TensorOr total;
    if (program_.by_pipeline) {
      total = RunPipeline(context_, mesh_, "pp", program_.micro_batches,
                          [&](int64_t micro) { return Loss(micro); },
                          {.schedule = program_.schedule, .bucket_bytes = program_.bucket_bytes});
      DT_RETURN_IF_ERROR(total.status());
    } else {
      for (int64_t i = 0; i < program_.micro_batches; ++i) {
        total = i == 0 ? Loss(i) : Add(total, Loss(i));
      }
      DT_RETURN_IF_ERROR(total.status());
      const BackwardOptions options = {.bucket_bytes = program_.bucket_bytes};
      if (program_.in_two_parts) {
        DT_ASSIGN_OR_RETURN(DeferredGradients deferred, BackwardForInputs(total, options));
        DT_RETURN_IF_ERROR(deferred.Finish());
      } else {
        DT_RETURN_IF_ERROR(Backward(total, options));
      }
    }
    if (sums_.defined()) {
      DT_ASSIGN_OR_RETURN(outcome_.sums, Everywhere(std::exchange(sums_, DistributedTensor())));
    }
    return total->Detach();
  }

  // All elements, on every rank.
  absl::StatusOr<std::vector<double>> Everywhere(const DistributedTensor& x) {
    const NoGrad no_grad(context_);
    DT_ASSIGN_OR_RETURN(const auto whole,
                        x.Detach().Redistribute(Layout::Replicated(mesh_, x.ndim())));
    DT_ASSIGN_OR_RETURN(const auto wide, Cast(whole, DType::kF64));
    return ToGlobal<double>(wide);
  }

  absl::Status Read(bool gradients, Values& all) {
    absl::Status status;
    model_.VisitParameters([&](const std::string& path, Parameter& parameter) {
      if (!status.ok() || (gradients && !parameter.trained)) return;
      auto values = Everywhere(gradients ? parameter.tensor.grad() : parameter.tensor);
      status.Update(values.status());
      if (values.ok()) all[path] = *std::move(values);
    });
    return status;
  }

  Context& context_;
  const Program& program_;
  DeviceMesh mesh_;
  Transformer model_;
  DistributedTensor sums_;
  Outcome outcome_;
};

absl::Status Compare(const Outcome& got, const Outcome& want) {
  const auto check = [](absl::string_view what, const std::vector<double>& a,
                        const std::vector<double>& b, double tolerance) -> absl::Status {
    if (a.size() == b.size() && RelativeRms(a, b) <= tolerance) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(what, a.size() != b.size() ? " has another size" : " differs by ",
                     a.size() != b.size() ? 0 : RelativeRms(a, b)));
  };
  DT_RETURN_IF_ERROR(check("the loss", got.losses, want.losses, 1e-9));
  DT_RETURN_IF_ERROR(check("router_sums", got.sums, want.sums, 1e-10));
  // Some gradients are 0 but for rounding, and so may be all that there are, as those of adapters
  // of a router whose one weight is always 1.
  constexpr double kRounding = 1e-15;
  double squares = 0, count = 0;
  for (const auto& [path, gradient] : want.gradients) {
    for (const double g : gradient) squares += g * g;
    count += static_cast<double>(gradient.size());
  }
  for (const auto& [path, gradient] : want.gradients) {
    const std::vector<double>& mine = got.gradients.at(path);
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double most = 1e-9 * std::sqrt(squares / count) + kRounding;
      if (std::abs(mine[i] - gradient[i]) <= most) continue;
      return absl::InternalError(
          absl::StrCat("gradient of ", path, "[", i, "] is ", mine[i], ", not ", gradient[i]));
    }
  }
  for (const auto& values : {&Outcome::weights, &Outcome::merged}) {
    for (const auto& [path, weight] : want.*values) {
      DT_RETURN_IF_ERROR(check(path, (got.*values).at(path), weight, 1e-6));
    }
  }
  return absl::OkStatus();
}

// Whether the program was not refused: Ulysses may want more ranks than there are heads. Other
// errors fail the test.
bool Try(uint32_t seed) {
  const Program program = RandomProgram(seed), alone = OnOneRank(program);
  Outcome want;
  const absl::Status on_one = RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(want, RankRun(context, alone).Run());
    return absl::OkStatus();
  });
  EXPECT_THAT(on_one, IsOk()) << "seed " << seed << ": " << alone.ToString();
  const int ranks = DeviceMesh::Parse(program.mesh)->size();
  std::vector<std::string> refusals(ranks);
  const absl::Status status = RunRanks(ranks, [&](Context& context) -> absl::Status {
    const absl::StatusOr<Outcome> got = RankRun(context, program).Run();
    if (absl::IsInvalidArgument(got.status())) {
      refusals[context.rank()] = std::string(got.status().message());
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(got.status());
    return Compare(*got, want);
  });
  EXPECT_THAT(status, IsOk()) << "seed " << seed << ": " << program.ToString();
  for (const std::string& refusal : refusals) {
    EXPECT_EQ(refusal.empty(), refusals[0].empty()) << "seed " << seed << ": " << refusal;
    if (refusal.empty()) continue;
    EXPECT_EQ(program.pattern, "ulysses") << "seed " << seed;
    EXPECT_THAT(refusal, HasSubstr("Attention: all-to-all over")) << "seed " << seed;
  }
  if (!refusals[0].empty()) std::cout << "seed " << seed << ": " << refusals[0] << "\n";
  return refusals[0].empty();
}

TEST(RandomTransformers, TrainAsOnOneRank) {
  int refused = 0;
  for (uint32_t seed = 1; seed <= 60 && !HasFailure(); ++seed) refused += Try(seed) ? 0 : 1;
  EXPECT_LT(refused, 20);
}

TEST(RandomTransformers, SlowTrainAsOnOneRank) {
  const SlowTestTime time;
  TestRandom random;
  int models = 0, refused = 0;
  for (; time.Left() && !HasFailure(); ++models) {
    refused += Try(static_cast<uint32_t>(random.Below(1 << 30))) ? 0 : 1;
  }
  std::cout << models << " models, " << refused << " refused\n";
  EXPECT_LT(refused * 3, models);
}

}  // namespace
}  // namespace dtensor
