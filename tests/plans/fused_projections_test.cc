// A LLaMA with fused projections equals one with separate projections: results, gradients and
// weights after five steps of AdamW, under the names that checkpoints have, on every mesh, from the
// same separate weights. Its forward communicates as often.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/plans/model_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;

// Other values for all that a checkpoint has, by names.
absl::StatusOr<StateDict> Checkpoint(Module& model, const DeviceMesh& mesh) {
  DT_ASSIGN_OR_RETURN(StateDict state, StateDictOf(model));
  for (auto& [name, tensor] : state) {
    RandomOptions options{.seed = 5, .stddev = 0.3, .dtype = DType::kF64};
    for (const char c : name) options.stream = options.stream * 31 + c;
    DT_ASSIGN_OR_RETURN(tensor,
                        RandomNormal(tensor.context(), Layout::Replicated(mesh, tensor.ndim()),
                                     tensor.shape(), options));
  }
  return state;
}

absl::Status LoadCheckpoint(Module& model, const DeviceMesh& mesh) {
  DT_ASSIGN_OR_RETURN(const StateDict state, Checkpoint(model, mesh));
  return LoadStateDict(model, state);
}

TransformerConfig Config(bool fused, int64_t kv_heads = 4, bool tied = false) {
  TransformerConfig config = SmallTransformer();
  config.fused_projections = fused;
  config.kv_heads = kv_heads;
  config.tie_embeddings = tied;
  return config;
}

TestedModel TestedLlama(const TransformerConfig& config) {
  TestedModel tested = Tested<Transformer>(config, "model.layers.*");
  tested.load = LoadCheckpoint;
  return tested;
}

void ExpectAsSeparate(const ModelRun& run, int64_t kv_heads = 4, bool tied = false) {
  if (!SuiteHasRanks(DeviceMesh::Parse(run.mesh)->size())) return;
  ModelRun one = run;
  one.mesh = "tp=1";
  one.recompute = false;
  const auto separate = RunModel(TestedLlama(Config(false, kv_heads, tied)), one);
  const auto fused = RunModel(TestedLlama(Config(true, kv_heads, tied)), run);
  DT_ASSERT_OK(separate);
  DT_ASSERT_OK(fused) << run.mesh;
  EXPECT_EQ(Difference(*fused, *separate), "") << run.mesh;
}

TEST(FusedProjections, AreTheSeparateOnesOnEveryMesh) {
  for (const std::string mesh : {"tp=1", "tp=2", "tp=4", "dp=2,tp=2", "cp=2,tp=2", "dp=2"}) {
    ExpectAsSeparate({.mesh = mesh, .steps = 5});
  }
  ExpectAsSeparate({.mesh = "tp=2", .sequence_parallel = false, .steps = 5});
  ExpectAsSeparate({.mesh = "tp=3", .uneven = true, .steps = 5});
}

TEST(FusedProjections, AreTheSeparateOnesForAnyKeys) {
  for (const int64_t kv_heads : {1, 2, 8}) {
    ExpectAsSeparate({.mesh = kv_heads == 1 ? "dp=2" : "tp=2", .steps = 5}, kv_heads);
  }
}

TEST(FusedProjections, AreTheSeparateOnesFullySharded) {
  for (const std::string mesh : {"fsdp=2", "fsdp=2,tp=2", "fsdp=3"}) {
    ExpectAsSeparate({.mesh = mesh, .uneven = true, .steps = 5}, 4, /*tied=*/true);
  }
  ExpectAsSeparate({.mesh = "dp=2,fsdp=2,tp=2", .recompute = true, .steps = 5});
}

TEST(FusedProjections, CommunicateAsOften) {
  for (const bool sequence_parallel : {false, true}) {
    const ModelRun run = {.mesh = "tp=4", .sequence_parallel = sequence_parallel};
    const auto separate = RunModel(TestedLlama(Config(false)), run);
    const auto fused = RunModel(TestedLlama(Config(true)), run);
    DT_ASSERT_OK(separate);
    DT_ASSERT_OK(fused);
    EXPECT_EQ(CallsOf(fused->forward), CallsOf(separate->forward));
    EXPECT_THAT(fused->forward, Not(IsEmpty()));
  }
}

// A key's heads cannot rest on several ranks where queries lie between them.
TEST(FusedProjections, AreRefusedWithFewerKeysThanRanks) {
  EXPECT_THAT(PlanTensorParallel(Config(true), *DeviceMesh::Parse("tp=8")),
              Refuses(AllOf(HasSubstr("4 key/value heads on 8 ranks"),
                            HasSubstr("fused_projections to false"))));
}

TEST(StateDict, HasTheNamesOfCheckpoints) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=1");
    Transformer fused(Config(true)), separate(Config(false));
    DT_RETURN_IF_ERROR(fused.Materialize(context, mesh, 1));
    DT_RETURN_IF_ERROR(separate.Materialize(context, mesh, 1));
    DT_ASSIGN_OR_RETURN(const StateDict of_fused, StateDictOf(fused));
    DT_ASSIGN_OR_RETURN(const StateDict of_separate, StateDictOf(separate));
    EXPECT_EQ(of_fused.size(), of_separate.size());
    for (const auto& [name, tensor] : of_separate) {
      const auto found = of_fused.find(name);
      EXPECT_TRUE(found != of_fused.end() && found->second.shape() == tensor.shape()) << name;
    }
    EXPECT_TRUE(of_fused.contains("model.layers.1.self_attn.k_proj.weight"));
    return absl::OkStatus();
  }));
}

TEST(StateDict, IsLoadedWhereItFitsAlone) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    Transformer model(Config(true));
    DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, mesh).status());
    DT_ASSIGN_OR_RETURN(const StateDict good, Checkpoint(model, mesh));
    const std::string key = "model.layers.0.self_attn.k_proj.weight";
    DT_ASSIGN_OR_RETURN(const StateDict before, StateDictOf(model));
    DT_ASSIGN_OR_RETURN(const auto first, ToGlobal<float>(before.at("model.norm.weight")));

    StateDict state = good;
    state.erase(key);
    EXPECT_THAT(LoadStateDict(model, state), Refuses(HasSubstr(absl::StrCat("no ", key))));
    state = good;
    state["model.layers.0.self_attn.qkv_proj.weight"] = good.at(key);
    EXPECT_THAT(LoadStateDict(model, state), Refuses(HasSubstr("qkv_proj.weight; leave it out")));
    state = good;
    state[key] = good.at("model.norm.weight");
    EXPECT_THAT(LoadStateDict(model, state),
                Refuses(AllOf(HasSubstr(key), HasSubstr("the model's is [8, 16]"))));
    state[key] = DistributedTensor();
    EXPECT_THAT(LoadStateDict(model, state), Refuses(HasSubstr("undefined")));
    model.VisitParameters([](const std::string&, Parameter& parameter) {
      EXPECT_THAT(parameter.Write(DistributedTensor()), Refuses(HasSubstr("undefined")));
    });
    const auto of_another_world = [&](Context& other) -> absl::Status {
      DT_ASSIGN_OR_RETURN(state[key], Full(other, {}, {}, good.at(key).shape(), DType::kF32, 0));
      EXPECT_THAT(LoadStateDict(model, state), Refuses(HasSubstr("belongs to another Context")));
      state[key] = good.at(key);
      return absl::OkStatus();
    };
    DT_RETURN_IF_ERROR(RunRanks(1, of_another_world));
    EXPECT_THAT(ToGlobal<float>(before.at("model.norm.weight")), IsOkAndHolds(first));

    DT_RETURN_IF_ERROR(LoadStateDict(model, good));  // f64 into f32
    DT_ASSIGN_OR_RETURN(const StateDict after, StateDictOf(model));
    for (const auto& [name, tensor] : good) {
      DT_ASSIGN_OR_RETURN(const auto wanted, Cast(tensor, DType::kF32));
      EXPECT_EQ(ToGlobal<float>(after.at(name)).value(), ToGlobal<float>(wanted).value()) << name;
    }
    return absl::OkStatus();
  }));
}

// On ranks that the model is not on, and in another type.
TEST(StateDict, IsLoadedFromAnotherMesh) {
  for (const bool fused : {false, true}) {
    for (const char* const text : {"tp=2@2..3", "tp=2@1..2", "tp=3@1..3"}) {
      SCOPED_TRACE(absl::StrCat(text, fused ? " fused" : ""));
      DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const DeviceMesh from, DeviceMesh::Parse("tp=2@0..1"));
        DT_ASSIGN_OR_RETURN(const DeviceMesh to, DeviceMesh::Parse(text));
        Transformer source(Config(false)), wanted(Config(false)), model(Config(fused));
        DT_RETURN_IF_ERROR(ApplyTensorParallel(source, context, from, {.seed = 7}).status());
        DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(source));
        model.SetDType(DType::kBF16);
        TensorParallelOptions options;
        options.seed = 8;
        options.allow_uneven = true;
        DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, to, options).status());
        DT_RETURN_IF_ERROR(LoadStateDict(model, state));
        if (!to.Contains(context.rank())) return absl::OkStatus();
        DT_RETURN_IF_ERROR(wanted.Materialize(context, to, 7));
        DT_ASSIGN_OR_RETURN(const StateDict loaded, StateDictOf(model));
        DT_ASSIGN_OR_RETURN(const StateDict same, StateDictOf(wanted));
        const NoGrad no_grad(context);
        for (const auto& [name, tensor] : same) {
          DT_ASSIGN_OR_RETURN(const auto rounded, Cast(Cast(tensor, DType::kBF16), DType::kF32));
          DT_ASSIGN_OR_RETURN(const auto got, Cast(loaded.at(name), DType::kF32));
          EXPECT_EQ(ToGlobal<float>(got).value(), ToGlobal<float>(rounded).value()) << name;
        }
        return absl::OkStatus();
      }));
    }
  }
}

// The handles of StateDictOf are the model's own memory: layers that change places, all of them.
TEST(StateDict, MayBeOfTheModelItself) {
  for (const bool fused : {false, true}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
      Transformer model(Config(fused));
      DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, mesh).status());
      DT_ASSIGN_OR_RETURN(StateDict state, StateDictOf(model));
      std::map<std::string, std::vector<float>> wanted;
      const std::string first = "model.layers.0.", second = "model.layers.1.";
      for (auto& [name, tensor] : state) {
        DT_ASSIGN_OR_RETURN(wanted[name], ToGlobal<float>(tensor));
      }
      for (auto& [name, tensor] : state) {
        if (name.substr(0, first.size()) != first) continue;
        const std::string other = second + name.substr(first.size());
        std::swap(tensor, state.at(other));
        std::swap(wanted.at(name), wanted.at(other));
      }
      DT_RETURN_IF_ERROR(LoadStateDict(model, state));
      DT_ASSIGN_OR_RETURN(const StateDict after, StateDictOf(model));
      for (const auto& [name, tensor] : after) {
        EXPECT_THAT(ToGlobal<float>(tensor), IsOkAndHolds(wanted.at(name))) << name;
      }
      return absl::OkStatus();
    }));
  }
}

// A head tied to its embedding is in some checkpoints once, in others twice.
TEST(StateDict, NeedsASharedParameterOnce) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=1");
    Transformer model(Config(false, 4, /*tied=*/true));
    EXPECT_THAT(StateDictOf(model).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Materialize")));
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    DT_ASSIGN_OR_RETURN(const StateDict good, Checkpoint(model, mesh));
    for (const std::string name : {"lm_head.weight", "model.embed_tokens.weight"}) {
      StateDict state = good;
      state.erase(name);
      DT_RETURN_IF_ERROR(LoadStateDict(model, state));
      state.erase("lm_head.weight");
      state.erase("model.embed_tokens.weight");
      EXPECT_THAT(LoadStateDict(model, state), Refuses(HasSubstr("model.embed_tokens.weight")));
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
