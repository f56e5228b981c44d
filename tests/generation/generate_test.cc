// Generate gives the same text on every mesh, and refuses what does not fit.
#include "dtensor/generation/generate.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/generation/small_models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class GenerateBy : public ::testing::TestWithParam<TransformerConfig (*)()> {};
INSTANTIATE_TEST_SUITE_P(Models, GenerateBy, ::testing::Values(Llama, DeepSeek, Gemma));

TEST_P(GenerateBy, GivesTheSameTextOnEveryMesh) {
  const Rows prompts = {{1, 2, 3, 4, 5}, {7}, {9, 9}};
  for (const SamplingOptions& sampling :
       {SamplingOptions(),
        SamplingOptions{.temperature = 0.9, .top_k = 12, .top_p = 0.95, .seed = 5}}) {
    Rows wanted;
    for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "dp=3", "tp=6", "pp=2", "pp=2,tp=3"}) {
      const int size = DeviceMesh::Parse(mesh)->size();
      if (!SuiteHasRanks(size)) continue;
      SCOPED_TRACE(absl::StrCat(mesh, " ", sampling.temperature));
      const auto ranks = OnSuiteRanks(size, [&](Context& context) -> absl::StatusOr<Rows> {
        Placed<TransformerConfig> placed(GetParam()());
        DT_RETURN_IF_ERROR(placed.Place(context, mesh));
        DT_ASSIGN_OR_RETURN(const auto cache,
                            KvCache::Create(placed.model, {.batch = 3, .capacity = 24}));
        GenerateOptions options{.tokens = 20, .sampling = sampling, .stop = {13}};
        Rows told(3);
        options.on_token = [&](int64_t row, int64_t token) {
          told[row].push_back(token);
          return true;
        };
        DT_ASSIGN_OR_RETURN(const Rows texts,
                            Generate(*cache, context, placed.mesh, prompts, options));
        EXPECT_EQ(told, texts);
        return texts;
      });
      DT_ASSERT_OK(ranks);
      if (wanted.empty()) wanted = ranks->front();
      EXPECT_THAT(*ranks, Each(wanted));
    }
    for (const auto& text : wanted) {
      EXPECT_TRUE(text.size() == 20 || text.back() == 13) << text.size();
    }
  }
}

TEST(Generate, RefusesWhatDoesNotFit) {
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    Placed<TransformerConfig> placed(Llama());
    DT_RETURN_IF_ERROR(placed.Place(context, "tp=1"));
    DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(placed.model, {.capacity = 8}));
    const auto generate = [&](const Rows& prompts, const GenerateOptions& options) {
      return Generate(*cache, context, placed.mesh, prompts, options);
    };
    EXPECT_THAT(generate({{1, 2, 3}}, {.tokens = 7}), Refuses(HasSubstr("prompt 0 has 3 tokens")));
    EXPECT_THAT(generate({{}}, {.tokens = 1}), Refuses(HasSubstr("one at least")));
    EXPECT_THAT(generate({{1}, {2}}, {.tokens = 1}), Refuses(HasSubstr("has 1 rows")));
    for (const int64_t id : {int64_t{-1}, Llama().vocab}) {
      EXPECT_THAT(generate({{1, id}}, {.tokens = 1}), Refuses(HasSubstr("prompt 0 has the id ")));
    }
    EXPECT_THAT(generate({{1}}, {.tokens = 1, .sampling = {.top_p = 0}}),
                Refuses(HasSubstr("top_p")));
    // A prompt alone fits or not, and is not added.
    EXPECT_THAT(generate({Rows::value_type(9, 1)}, {.tokens = 0}), Refuses(HasSubstr("9 tokens")));
    DT_RETURN_IF_ERROR(generate({Rows::value_type(8, 1)}, {.tokens = 0}).status());
    EXPECT_THAT(cache->lengths(), testing::ElementsAre(0));
    return generate({{1, 2, 3}}, {.tokens = 6}).status();
  }));
}

}  // namespace
}  // namespace dtensor
