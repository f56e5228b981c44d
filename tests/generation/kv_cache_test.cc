// A model with a cache of keys and values gives the same results as without one, on every mesh, for
// rows of different lengths; and decoding makes no new decisions and takes no memory.
#include "dtensor/nn/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/lora.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/key_lengths.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/generation/small_models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

// Of each row alone, without a cache, of each of its tokens: [row][token, vocab].
template <typename Config>
std::vector<Logits> WithoutCache(const Config& config, const Rows& rows) {
  std::vector<Logits> logits;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Placed<Config> placed(config);
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=1"));
    for (const auto& row : rows) {
      DT_ASSIGN_OR_RETURN(const auto results, placed.model.Call({placed.Ids(context, 1, row)}));
      DT_ASSIGN_OR_RETURN(logits.emplace_back(), Values(results[0]));
    }
    return absl::OkStatus();
  }));
  return logits;
}

// Rows of 9, 7 and 4 tokens, of which the first so many are given at once, and the others one by
// one, the rows that have ended with none. Returns all logits.
template <typename Config>
absl::StatusOr<Logits> Decode(Context& context, absl::string_view mesh, const Config& config,
                              const Rows& rows, const std::vector<int64_t>& prompts,
                              const std::vector<Logits>& wanted, const std::string& sequence_axis) {
  Placed<Config> placed(config);
  DT_RETURN_IF_ERROR(placed.Place(context, mesh));
  const int64_t batch = static_cast<int64_t>(rows.size());
  DT_ASSIGN_OR_RETURN(
      const auto cache,
      KvCache::Create(placed.model,
                      {.batch = batch, .capacity = 12, .sequence_axis = sequence_axis}));
  std::vector<int64_t> counts = prompts;
  Logits all;
  while (true) {
    int64_t most = 0;
    for (const int64_t count : counts) most = std::max(most, count);
    if (most == 0) return all;
    std::vector<int64_t> ids;
    for (int64_t r = 0; r < batch; ++r) {
      const int64_t first = cache->lengths()[r];
      for (int64_t i = 0; i < most; ++i) ids.push_back(i < counts[r] ? rows[r][first + i] : 5);
    }
    DT_ASSIGN_OR_RETURN(const Logits logits,
                        Values(cache->Append(*placed.Ids(context, batch, ids), counts)));
    all.insert(all.end(), logits.begin(), logits.end());
    for (int64_t r = 0; r < batch; ++r) {
      const int64_t length = cache->lengths()[r];
      if (counts[r] > 0) {
        EXPECT_LE(ErrorOf(absl::MakeConstSpan(logits).subspan(r * kVocab, kVocab),
                          absl::MakeConstSpan(wanted[r]).subspan((length - 1) * kVocab, kVocab)),
                  1e-5)
            << "row " << r << ", length " << length;
      }
      counts[r] = length < static_cast<int64_t>(rows[r].size()) ? 1 : 0;
    }
  }
}

template <typename Config>
void ExpectAsWithout(const Config& config, const std::vector<std::string>& meshes) {
  const Rows rows = {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {30, 3, 17, 8, 8, 1, 0}, {4, 4, 19, 2}};
  const std::vector<Logits> wanted = WithoutCache(config, rows);
  for (const std::string& mesh : meshes) {
    const int size = DeviceMesh::Parse(mesh)->size();
    if (!SuiteHasRanks(size)) continue;
    SCOPED_TRACE(mesh);
    const std::string axis = mesh.find("cp") != mesh.npos ? "cp" : "";
    for (const std::vector<int64_t>& prompts : {std::vector<int64_t>{5, 3, 1}, {4, 4, 4}}) {
      DT_EXPECT_OK(OnSuiteRanks(size, [&](Context& context) {
        return Decode(context, mesh, config, rows, prompts, wanted, axis);
      }));
    }
  }
}

TEST(KvCache, GivesWhatLlamaGivesWithout) {
  ExpectAsWithout(Llama(),
                  {"tp=1", "tp=2", "tp=3", "tp=6", "dp=3", "dp=2,tp=2", "cp=2", "cp=2,tp=3"});
}

TEST(KvCache, GivesWhatOthersGiveWithout) {
  ExpectAsWithout(Qwen(), {"tp=1", "tp=3"});
  ExpectAsWithout(Gemma(), {"tp=1", "tp=3", "dp=2", "cp=2"});
  ExpectAsWithout(Gpt(), {"tp=1", "tp=3", "dp=2"});
  ExpectAsWithout(Mixture(), {"tp=1", "tp=3", "ep=2", "ep=2,tp=3", "cp=2,ep=2"});
  ExpectAsWithout(Glm(), {"tp=1", "tp=3", "ep=2,tp=3"});
  ExpectAsWithout(DeepSeek(), {"tp=1", "tp=3", "dp=2", "ep=2,tp=3", "cp=2"});
  ExpectAsWithout(GptOss(), {"tp=1", "tp=3", "dp=2", "ep=2,tp=3", "cp=2"});
}

TEST(KvCache, WaitsForNothingThatIsNotReady) {
  const Rows rows = {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {30, 3, 17, 8, 8, 1, 0}, {4, 4, 19, 2}};
  const std::vector<Logits> wanted = WithoutCache(Llama(), rows);
  RunOptions options;
  options.device = Device::Kind::kDeferred;
  for (const std::string mesh : {"tp=3", "cp=2"}) {
    DT_EXPECT_OK(RunRanks(
        DeviceMesh::Parse(mesh)->size(),
        [&](Context& context) {
          return Decode(context, mesh, Llama(), rows, {5, 3, 1}, wanted, mesh == "cp=2" ? "cp" : "")
              .status();
        },
        options));
  }
}

// A step is simulated as it runs: what it communicates does not depend on how many tokens there
// are.
TEST(KvCache, IsSimulated) {
  DT_EXPECT_OK(Simulate(1, 3, [](Context& context) -> absl::Status {
    Placed<TransformerConfig> placed(Llama());
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=3"));
    DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(placed.model, {.capacity = 64}));
    DT_RETURN_IF_ERROR(cache->Append(*placed.Ids(context, 1, {1, 2, 3})).status());
    std::vector<TrafficTable> steps;
    for (int n = 0; n < 4; ++n) {
      context.communicator().ResetTraffic();
      DT_RETURN_IF_ERROR(cache->Append(*placed.Ids(context, 1, {n})).status());
      steps.push_back(context.communicator().traffic());
    }
    EXPECT_FALSE(steps[0].empty());
    for (const TrafficTable& step : steps) EXPECT_EQ(step, steps[0]);
    EXPECT_EQ(cache->local_bytes(), 2 * 2 * 64 * 4 * 4);
    return absl::OkStatus();
  }));
}

TEST(RowOffsets, AreOfCallsThatAreNotRecorded) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("cp=2"));
    const RandomOptions random{.seed = 1};
    const Dims shape = {2, 4, 3, 2};
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, mesh, {Replicate()}, shape, random));
    DT_ASSIGN_OR_RETURN(const DistributedTensor split,
                        RandomNormal(context, mesh, {Shard(1)}, shape, random));
    const RopeOptions rope{.row_offsets = {3, 5}};
    AttentionOptions attention;
    attention.row_offsets = {0, 2};
    EXPECT_THAT(Rope(x, rope), Refuses(HasSubstr("nothing is recorded")));
    EXPECT_THAT(Attention(x, x, x, attention), Refuses(HasSubstr("nothing is recorded")));
    const NoGrad no_grad(context);
    EXPECT_THAT(Rope(x, RopeOptions{.row_offsets = {3}}), Refuses(HasSubstr("1 offsets")));
    EXPECT_THAT(Rope(x, RopeOptions{.row_offsets = {3, -1}}), Refuses(HasSubstr("-1")));
    EXPECT_THAT(Rope(x, RopeOptions{.scaling = {.factor = 0}}), Refuses(HasSubstr("factor")));
    EXPECT_THAT(Attention(split, split, split, attention), Refuses(HasSubstr("both sequences")));
    attention.row_offsets = {0, -2};
    EXPECT_THAT(Attention(x, x, x, attention), Refuses(HasSubstr("-2")));
    // Each row as it is alone.
    DT_ASSIGN_OR_RETURN(const Logits both, Values(Rope(x, rope)));
    for (int64_t r = 0; r < 2; ++r) {
      DT_ASSIGN_OR_RETURN(const Logits alone,
                          Values(Rope(Slice(x, 0, r, r + 1), 10000, rope.row_offsets[r])));
      EXPECT_EQ(Logits(both.begin() + r * 24, both.begin() + (r + 1) * 24), alone);
    }
    return absl::OkStatus();
  }));
}

// Whatever the number of heads.
TEST(KvCache, HasOneLatentVectorOfEachToken) {
  for (const std::string mesh : {"tp=1", "tp=3", "cp=2"}) {
    SCOPED_TRACE(mesh);
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      const TransformerConfig config = DeepSeek();
      Placed<TransformerConfig> placed(config);
      DT_RETURN_IF_ERROR(placed.Place(context, mesh));
      const KvCacheOptions options{
          .batch = 2, .capacity = 128, .sequence_axis = mesh == "cp=2" ? "cp" : ""};
      DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(placed.model, options));
      DT_RETURN_IF_ERROR(cache->Append(*placed.Ids(context, 2, {1, 2, 3, 4})).status());
      const int64_t width = config.kv_lora_rank + config.rotary_dim;
      EXPECT_EQ(cache->keys(0).shape(), (Dims{2, 128, 1, width}));
      EXPECT_FALSE(cache->values(0).defined());
      EXPECT_EQ(cache->local_bytes() * (mesh == "cp=2" ? 2 : 1),
                config.layers * 2 * 128 * width * int64_t{sizeof(float)});
      Context::CacheSizes sizes;
      int64_t memory = 0;
      for (int64_t n = 0; n < 60; ++n) {
        DT_RETURN_IF_ERROR(
            Values(cache->Append(*placed.Ids(context, 2, {n % kVocab, 7}))).status());
        if (n == 2) sizes = context.cache_sizes(), memory = context.device().memory().live_bytes;
      }
      EXPECT_EQ(context.cache_sizes().decisions, sizes.decisions);
      EXPECT_EQ(context.cache_sizes().plans, sizes.plans);
      EXPECT_EQ(context.device().memory().live_bytes, memory);
      return absl::OkStatus();
    }));
  }
}

// Adapters of what a cache of latent vectors goes through in place of keys and values.
TEST(KvCache, GivesWhatAdaptedLatentAttentionGivesWithout) {
  for (const std::string mesh : {"tp=1", "tp=3"}) {
    const int size = DeviceMesh::Parse(mesh)->size();
    if (!SuiteHasRanks(size)) continue;
    SCOPED_TRACE(mesh);
    DT_EXPECT_OK(OnSuiteRanks(size, [&](Context& context) -> absl::StatusOr<Logits> {
      Placed<TransformerConfig> placed(DeepSeek());
      DT_RETURN_IF_ERROR(AddLora(placed.model, {.rank = 3, .layers = {"kv_b_proj", "q_b_proj"}}));
      placed.model.VisitParameters([](const std::string&, Parameter& parameter) {
        if (parameter.is_adapter) parameter.init = ParameterInit::Normal(0.5);
      });
      DT_RETURN_IF_ERROR(placed.Place(context, mesh));
      const std::vector<int64_t> ids = {1, 2, 3, 4, 5};
      DT_ASSIGN_OR_RETURN(const auto results, placed.model.Call({placed.Ids(context, 1, ids)}));
      DT_ASSIGN_OR_RETURN(const Logits wanted, Values(results[0]));
      DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(placed.model, {.capacity = 8}));
      DT_RETURN_IF_ERROR(cache->Append(*placed.Ids(context, 1, {1, 2, 3, 4})).status());
      DT_ASSIGN_OR_RETURN(const Logits last, Values(cache->Append(*placed.Ids(context, 1, {5}))));
      EXPECT_LE(ErrorOf(last, absl::MakeConstSpan(wanted).subspan(4 * kVocab)), 1e-5);
      return last;
    }));
  }
}

TEST(KvCache, DecodesWithoutNewDecisionsOrMemory) {
  TransformerConfig config = Llama();
  for (const std::string mesh : {"tp=1", "tp=2"}) {
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      Placed<TransformerConfig> placed(config);
      DT_RETURN_IF_ERROR(placed.Place(context, mesh));
      DT_ASSIGN_OR_RETURN(const auto cache,
                          KvCache::Create(placed.model, {.batch = 2, .capacity = 220}));
      DT_RETURN_IF_ERROR(
          cache->Append(*placed.Ids(context, 2, {1, 2, 3, 4, 5, 6}), {3, 1}).status());
      const void* const where = cache->keys(1).local().raw();
      size_t decisions = 0, specs = 0, plans = 0;
      int64_t memory = 0;
      for (int64_t n = 0; n < 203; ++n) {
        DT_ASSIGN_OR_RETURN(const Logits logits,
                            Values(cache->Append(*placed.Ids(context, 2, {n % kVocab, 7}))));
        const Context::CacheSizes sizes = context.cache_sizes();
        if (n == 2) {
          decisions = sizes.decisions, specs = sizes.specs, plans = sizes.plans;
          memory = context.device().memory().live_bytes;
        }
        if (n != 202) continue;
        EXPECT_EQ(sizes.decisions, decisions);
        EXPECT_EQ(sizes.specs, specs);
        EXPECT_EQ(sizes.plans, plans);
        EXPECT_EQ(context.device().memory().live_bytes, memory);
      }
      EXPECT_EQ(cache->keys(1).local().raw(), where) << "the cache has moved";
      EXPECT_EQ(cache->local_bytes() * (mesh == "tp=2" && context.rank() == 1 ? 3 : 1),
                (mesh == "tp=2" && context.rank() == 0 ? 2 : 3) * 2 * 2 * 2 * 220 * 4 * 4);
      return absl::OkStatus();
    }));
  }
}

class KvCacheOf : public ::testing::TestWithParam<TransformerConfig (*)()> {};
INSTANTIATE_TEST_SUITE_P(Models, KvCacheOf, ::testing::Values(Llama, DeepSeek));

TEST_P(KvCacheOf, GoesBack) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Placed<TransformerConfig> placed(GetParam()());
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=2"));
    DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(placed.model, {.capacity = 8}));
    const auto next = [&](std::vector<int64_t> ids) {
      return Values(cache->Append(*placed.Ids(context, 1, ids)));
    };
    DT_RETURN_IF_ERROR(next({1, 2, 3}).status());
    DT_ASSIGN_OR_RETURN(const Logits first, next({4}));
    DT_RETURN_IF_ERROR(next({9, 9}).status());
    DT_RETURN_IF_ERROR(cache->Truncate(0, 3));
    DT_ASSIGN_OR_RETURN(const Logits again, next({4}));
    EXPECT_EQ(again, first);
    EXPECT_THAT(cache->Truncate(0, 5), Refuses(HasSubstr("no 5 tokens")));
    EXPECT_THAT(cache->Truncate(1, 0), Refuses(HasSubstr("row 1")));
    return absl::OkStatus();
  }));
}

// Some blocks of another model, as a draft model has them.
class Draft : public Module {
 public:
  Draft(Module& model, std::vector<std::string> paths) {
    model.VisitModules([&](const std::string& path, Module& module) {
      for (const std::string& wanted : paths) {
        if (path == wanted) parts_.push_back(&module);
      }
    });
    for (size_t i = 0; i < parts_.size(); ++i) AddChild(absl::StrCat("part", i), parts_[i]);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    TensorOr y = x;
    for (Module* part : parts_) y = (*part)(y);
    return y;
  }

 private:
  std::vector<Module*> parts_;
};

// An attention is another one of each model's, whichever model's cache was made first.
TEST(KvCache, BelongsToAModelThatSharesModulesWithAnother) {
  for (const bool draft_first : {false, true}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      TransformerConfig config = Llama();
      config.tie_embeddings = false;
      Placed<TransformerConfig> placed(config);
      DT_RETURN_IF_ERROR(placed.Place(context, "tp=2"));
      Draft draft(placed.model, {"model.embed_tokens", "model.layers.1", "model.norm", "lm_head"});
      const auto next = [&](KvCache& cache, const std::vector<int64_t>& ids) {
        return Values(cache.Append(*placed.Ids(context, 1, ids)));
      };
      std::vector<Logits> wanted;
      for (Module* model : std::vector<Module*>{&placed.model, &draft}) {
        DT_ASSIGN_OR_RETURN(const auto alone, KvCache::Create(*model, {.capacity = 8}));
        for (const std::vector<int64_t>& ids : Rows{{1, 2, 3}, {4}}) {
          DT_ASSIGN_OR_RETURN(wanted.emplace_back(), next(*alone, ids));
        }
      }
      std::unique_ptr<KvCache> caches[2];
      for (const bool is_draft : {draft_first, !draft_first}) {
        Module& model = is_draft ? static_cast<Module&>(draft) : placed.model;
        DT_ASSIGN_OR_RETURN(caches[is_draft ? 1 : 0], KvCache::Create(model, {.capacity = 8}));
      }
      EXPECT_EQ(caches[0]->num_attentions(), 2);
      EXPECT_EQ(caches[1]->num_attentions(), 1);
      EXPECT_THAT(next(*caches[0], {1, 2, 3}), IsOkAndHolds(wanted[0]));
      EXPECT_THAT(next(*caches[1], {1, 2, 3}), IsOkAndHolds(wanted[2]));
      EXPECT_THAT(next(*caches[0], {4}), IsOkAndHolds(wanted[1]));
      EXPECT_THAT(next(*caches[1], {4}), IsOkAndHolds(wanted[3]));
      return absl::OkStatus();
    }));
  }
}

// The plan splits tokens over the axis of the cache: one token goes to the cache, not the reverse.
TEST(KvCache, MayBeSplitOverThePlansContextAxis) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("cp=2"));
    Transformer model(Llama());
    DT_RETURN_IF_ERROR(
        ApplyTensorParallel(model, context, mesh, {.context_axis = "cp", .allow_uneven = true})
            .status());
    const auto ids = [&](int64_t columns) {
      const std::vector<int64_t> values(2 * columns, 7);
      return *Distribute<int64_t>(context, Layout::Replicated(mesh, 2), {2, columns}, values);
    };
    for (const int64_t second : {5, 3}) {  // rows as long as each other, or not
      DT_ASSIGN_OR_RETURN(
          const auto cache,
          KvCache::Create(model, {.batch = 2, .capacity = 40, .sequence_axis = "cp"}));
      DT_ASSIGN_OR_RETURN(const auto whole, KvCache::Create(model, {.batch = 2, .capacity = 40}));
      size_t decisions = 0;
      for (int n = 0; n < 20; ++n) {
        const std::vector<int64_t> counts = {n == 0 ? 5 : 1, n == 0 ? second : 1};
        DT_ASSIGN_OR_RETURN(const Logits y, Values(cache->Append(ids(counts[0]), counts)));
        DT_ASSIGN_OR_RETURN(const Logits wanted, Values(whole->Append(ids(counts[0]), counts)));
        EXPECT_THAT(y, testing::Pointwise(testing::FloatNear(1e-5), wanted));
        if (n == 3) decisions = context.cache_sizes().decisions;
        if (n != 19) continue;
        EXPECT_EQ(context.cache_sizes().decisions, decisions);
      }
    }
    return absl::OkStatus();
  }));
}

// A text that ended in numbers that are none does not reach the one that begins in its row.
TEST_P(KvCacheOf, ForgetsWhatIsNotFinite) {
  for (const char* const mesh : {"tp=1", "cp=2", "dp=2"}) {
    SCOPED_TRACE(mesh);
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      Placed<TransformerConfig> placed(GetParam()());
      DT_RETURN_IF_ERROR(placed.Place(context, mesh));
      KvCacheOptions options{.batch = 2, .capacity = 12};
      if (mesh[0] == 'c') options.sequence_axis = "cp";
      const auto begin = [&](KvCache& cache) {
        return Values(cache.Append(*placed.Ids(context, 2, {1, 2, 3, 0, 0, 5, 6, 7, 8, 9}),
                                   std::vector<int64_t>{3, 5}));
      };
      DT_ASSIGN_OR_RETURN(const auto fresh, KvCache::Create(placed.model, options));
      DT_ASSIGN_OR_RETURN(const Logits wanted, begin(*fresh));
      DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(placed.model, options));
      DT_RETURN_IF_ERROR(begin(*cache).status());
      DT_RETURN_IF_ERROR(cache->Append(*placed.Ids(context, 2, {7, 7, 7, 7})).status());
      for (int i = 0; i < cache->num_attentions(); ++i) {
        for (const DistributedTensor& kept : {cache->keys(i), cache->values(i)}) {
          if (!kept.defined()) continue;  // of latent attention
          const NoGrad no_grad(context);
          Dims shape = kept.shape();
          shape[1] = 2;
          DT_ASSIGN_OR_RETURN(
              const DistributedTensor bad,
              Full(context, Layout::Replicated(kept.mesh(), 4), shape, kept.dtype(), NAN));
          DT_RETURN_IF_ERROR(WriteTokens(kept, bad, {{3, 5}}, {{2, 2}}));
        }
      }
      DT_RETURN_IF_ERROR(cache->Truncate(0, 0));
      DT_RETURN_IF_ERROR(cache->Truncate(1, 4));
      DT_RETURN_IF_ERROR(cache->Truncate(1, 0));
      EXPECT_THAT(begin(*cache), IsOkAndHolds(wanted));
      return absl::OkStatus();
    }));
  }
}

TEST(KvCache, RefusesAndStaysAsItWas) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Placed<TransformerConfig> placed(Llama());
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=2"));
    DT_ASSIGN_OR_RETURN(const auto cache,
                        KvCache::Create(placed.model, {.batch = 2, .capacity = 4}));
    const auto append = [&](const std::vector<int64_t>& ids, const std::vector<int64_t>& counts) {
      return Values(cache->Append(*placed.Ids(context, 2, ids), counts)).status();
    };
    DT_RETURN_IF_ERROR(append({1, 2, 3, 4}, {2, 1}));
    EXPECT_THAT(append({1, 2, 3, 4, 5, 6}, {}), Refuses(HasSubstr("capacity of 4")));
    EXPECT_THAT(append({1, 2}, {1, 2}), Refuses(HasSubstr("a count of 2 in row 1")));
    {
      const Layout row = Layout::Replicated(DeviceMesh::Parse("tp=2").value(), 1);
      DT_ASSIGN_OR_RETURN(const auto lengths, Full(context, row, {2}, DType::kI64, 1));
      const KeyLengths hidden(lengths);
      EXPECT_THAT(append({1, 2}, {1, 1}), Refuses(HasSubstr("there are KeyLengths")));
    }
    EXPECT_THAT(append({1, 2}, {1}), Refuses(HasSubstr("1 counts")));
    EXPECT_THAT(Values(cache->Append(*placed.Ids(context, 1, {1}))),
                Refuses(HasSubstr("batch of 2")));
    EXPECT_THAT(cache->lengths(), testing::ElementsAre(2, 1));
    EXPECT_THAT(KvCache::Create(placed.model, {}), Refuses(HasSubstr("capacity of 0")));
    for (const int64_t batch : {int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
      EXPECT_THAT(KvCache::Create(placed.model, {.batch = batch, .capacity = 4}),
                  Refuses(HasSubstr("no memory holds so many")));
    }
    placed.model.VisitModules([](const std::string&, Module& module) {
      if (module.attention() != nullptr) module.attention()->mask = AttentionMask::Full();
    });
    EXPECT_THAT(KvCache::Create(placed.model, {.capacity = 4}), Refuses(HasSubstr("full")));
    BertConfig bert;
    bert.layers = 1, bert.dim = 8, bert.heads = 2, bert.vocab = 9;
    BertModel other(bert);
    EXPECT_THAT(KvCache::Create(other, {.capacity = 4}), Refuses(HasSubstr("keeps no cache")));
    Gpt2Config short_one;
    short_one.layers = 1, short_one.dim = 8, short_one.heads = 2, short_one.vocab = 9;
    short_one.positions = 5;
    Gpt2 gpt2(short_one);
    EXPECT_THAT(KvCache::Create(gpt2, {.capacity = 6}),
                Refuses(HasSubstr("wpe has learned 5 positions")));
    DT_EXPECT_OK(KvCache::Create(gpt2, {.capacity = 5}));
    return absl::OkStatus();
  }));
}

// A module that throws behind the model's attentions.
class Throws : public Module {
 public:
  explicit Throws(Module& model) : model_(model) { AddChild("model", &model); }
  bool throws = false;

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    TensorOr y = model_(x);
    if (throws) throw std::runtime_error("not now");
    return y;
  }

 private:
  Module& model_;
};

TEST(KvCache, IsLeftAfterAnException) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Placed<TransformerConfig> placed(Llama());
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=1"));
    Throws model(placed.model);
    DT_ASSIGN_OR_RETURN(auto cache, KvCache::Create(model, {.capacity = 8}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor ids, placed.Ids(context, 1, {1, 2, 3}));
    DT_ASSIGN_OR_RETURN(const auto before, Values(model(ids)));
    model.throws = true;
    EXPECT_THROW(cache->Append(ids).IgnoreError(), std::runtime_error);
    model.throws = false;
    EXPECT_THAT(cache->lengths(), testing::ElementsAre(0));
    EXPECT_THAT(Values(cache->keys(1)), IsOkAndHolds(testing::Each(0))) << "nothing is left behind";
    DT_ASSIGN_OR_RETURN(const auto logits, Values(cache->Append(ids)));
    cache = nullptr;
    EXPECT_THAT(Values(model(ids)), IsOkAndHolds(before));
    // Of the last token alone: a product of one row, which may add in another order.
    const Logits last(before.end() - static_cast<int64_t>(logits.size()), before.end());
    EXPECT_THAT(logits, testing::Pointwise(testing::FloatNear(1e-5), last));
    return absl::OkStatus();
  }));
}

// A module that, before the model runs, appends the same to another cache of the model, or to its
// own.
class Nests : public Module {
 public:
  explicit Nests(Module& model) : model_(model) { AddChild("model", &model); }
  KvCache* inner = nullptr;
  absl::Status status, truncated;  // of the inner Append; if that fails, of a Truncate

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    if (KvCache* const cache = std::exchange(inner, nullptr); cache != nullptr) {
      status = cache->Append(x).status();
      if (!status.ok()) truncated = cache->Truncate(0, 0);
    }
    return model_(x);
  }

 private:
  Module& model_;
};

TEST(KvCache, MayBeUsedWhileAnotherRuns) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    Placed<TransformerConfig> placed(Llama());
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=2"));
    Nests model(placed.model);
    DT_ASSIGN_OR_RETURN(const auto outer, KvCache::Create(model, {.capacity = 8}));
    DT_ASSIGN_OR_RETURN(const auto inner, KvCache::Create(model, {.capacity = 8}));
    DT_ASSIGN_OR_RETURN(const auto alone, KvCache::Create(model, {.capacity = 8}));
    for (const std::vector<int64_t>& ids : {std::vector<int64_t>{1, 2, 3}, {4}}) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor next, placed.Ids(context, 1, ids));
      DT_ASSIGN_OR_RETURN(const auto wanted, Values(alone->Append(next)));
      model.inner = inner.get();
      EXPECT_THAT(Values(outer->Append(next)), IsOkAndHolds(wanted));
      EXPECT_THAT(model.status, IsOk());
      EXPECT_THAT(Values(outer->keys(1)), IsOkAndHolds(*Values(inner->keys(1))));
    }
    EXPECT_THAT(inner->lengths(), testing::ElementsAre(4));
    model.inner = outer.get();
    DT_ASSIGN_OR_RETURN(const DistributedTensor next, placed.Ids(context, 1, {5}));
    DT_EXPECT_OK(outer->Append(next));
    EXPECT_THAT(model.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("this cache's Append runs")));
    EXPECT_EQ(model.truncated.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(outer->lengths(), testing::ElementsAre(5));
    return absl::OkStatus();
  }));
}

TEST(WriteTokens, IsAWriteAsAnyOther) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor cache,
                        Full(context, mesh, {Replicate()}, {2, 4, 1}, DType::kF32, 0));
    DT_ASSIGN_OR_RETURN(const DistributedTensor alias, Reshape(cache, {8}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor value, cache.Redistribute({Shard(1)}));
    const std::vector<float> tokens = {1, 2, 3, 4};
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Distribute<float>(context, mesh, {Shard(0)}, {2, 2, 1}, tokens));
    EXPECT_THAT(WriteTokens(cache, x, {0, 0}, {1, 1}), Refuses(HasSubstr("has no gradient")));
    const NoGrad no_grad(context);
    DT_RETURN_IF_ERROR(WriteTokens(cache, x, {0, 3}, {2, 1}));
    DT_ASSIGN_OR_RETURN(const std::vector<float> seen, ToGlobal<float>(alias));
    EXPECT_THAT(seen, testing::ElementsAre(1, 2, 0, 0, 0, 0, 0, 3));
    DT_ASSIGN_OR_RETURN(const std::vector<float> before, ToGlobal<float>(value));
    EXPECT_THAT(before, testing::Each(0));
    DT_ASSIGN_OR_RETURN(const DistributedTensor again, cache.Redistribute({Shard(1)}));
    DT_ASSIGN_OR_RETURN(const std::vector<float> after, ToGlobal<float>(again));
    EXPECT_EQ(after, seen);
    DT_RETURN_IF_ERROR(WriteTokens(again, x, {1, 0}, {2, 0}));  // over both shards
    DT_ASSIGN_OR_RETURN(const std::vector<float> sharded, ToGlobal<float>(again));
    EXPECT_THAT(sharded, testing::ElementsAre(1, 1, 2, 0, 0, 0, 0, 3));
    EXPECT_THAT(WriteTokens(cache, x, {0, 3}, {2, 2}), Refuses(HasSubstr("2 tokens from 3 on")));
    EXPECT_THAT(WriteTokens(cache, x, {0}, {2}), Refuses(HasSubstr("for each row")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
