// What operators refuse: each message says what, why, and what to do; and nothing is broken
// afterwards.
#include <functional>
#include <limits>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/one_rank.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kWraps = 0x3333333333333334;  // 5 * kWraps is 4, modulo 2^64

struct Refusal {
  const char* what;
  std::function<TensorOr(const Maker&)> call;
  std::vector<const char*> words;
};

std::vector<Refusal> Refusals() {
  const auto split = [](const TensorOr& x, std::vector<int64_t> sizes) -> TensorOr {
    DT_ASSIGN_OR_RETURN(auto parts, SplitTensor(x, 1, sizes));
    return parts[0];
  };
  const auto top = [](const TensorOr& x, int64_t k) -> TensorOr {
    DT_ASSIGN_OR_RETURN(auto results, TopK(x, k));
    return results[0];
  };
  const auto clamped = [](const Maker& m, int64_t columns, const SwiGluClamp& clamp) {
    const TensorOr ids = m.Zeros({4, 2}, DType::kI64);
    return ClampedExpertMlp(m.Zeros({4, 3}), ids, m.Zeros({4, 2}), m.Zeros({5, 3, columns}),
                            m.Zeros({5, columns}), m.Zeros({5, 4, 3}), m.Zeros({5, 3}), clamp);
  };
  // Of 5 experts with 2 hidden features and 3 others.
  const auto experts = [](const Maker& m, const std::vector<int64_t>& x,
                          const std::vector<int64_t>& ids, DType of_experts) {
    return ExpertMlp(m.Zeros(x), m.Zeros(ids, DType::kI64), m.Zeros(ids),
                     m.Zeros({5, 2, 3}, of_experts), m.Zeros({5, 2, 3}, of_experts),
                     m.Zeros({5, 3, 2}, of_experts));
  };
  return {
      {"too many parts",
       [split](auto& m) {
         return split(m.Zeros({1, 20000}), std::vector<int64_t>(20000, 1));
       },
       {"SplitTensor", "20000 parts", "[1, 20000]", "several steps"}},
      {"positions of rows that wrap",
       [](auto& m) {
         return Rope(m.Zeros({1, 1, 1, 2}), RopeOptions{.offset = kMost, .row_offsets = {kMost}});
       },
       {"Rope",
        "9223372036854775807 and offsets of its batch entries from 0 to 9223372036854775807"}},
      {"a dimension of a scalar",
       [](auto& m) { return ArgMax(m.Zeros({}), 0); },
       {"ArgMax", "no dimension 0", "Reshape it first: it is a scalar"}},
      {"sizes",
       [](auto& m) {
         return MatMul(m.Zeros({2, 3}), m.Zeros({4, 2}));
       },
       {"MatMul", "[2, 3], [4, 2]"}},
      {"ranks",
       [](auto& m) {
         return MatMul(m.Zeros({2}), m.Zeros({2, 2}));
       },
       {"MatMul", "[2] f32", "2 dimensions or more", "Reshape"}},
      {"batches",
       [](auto& m) {
         return MatMul(m.Zeros({2, 1, 3}), m.Zeros({3, 3, 1}));
       },
       {"MatMul", "[2, 1, 3], [3, 3, 1]"}},
      {"einsum without spaces",
       [](auto& m) {
         return Einsum("ij,jk->ik", m.Zeros({2, 3}), m.Zeros({3, 2}));
       },
       {"Einsum: \"ij,jk->ik\"", "1 dimension for operand 0", "[2, 3]", "\"i j, j k -> i k\""}},
      {"einsum of too few letters",
       [](auto& m) {
         return Einsum("i -> i", m.Zeros({2, 3}));
       },
       {"Einsum: \"i -> i\"", "1 dimension for operand 0", "give a letter for each"}},
      {"einsum of two ellipses",
       [](auto& m) {
         return Einsum("... ... i -> i", m.Zeros({2, 3}));
       },
       {"'...' twice"}},
      {"einsum of two sizes",
       [](auto& m) {
         return Einsum("(h d) -> h d", m.Zeros({6}), {{"h", 2}, {"h", 3}});
       },
       {"Einsum", "two sizes of 'h'"}},
      {"einsum without a result",
       [](auto& m) {
         return Einsum("i j", m.Zeros({2, 3}));
       },
       {"Einsum: op rule \"i j\" needs exactly one '->'"}},
      {"einsum of two results",
       [](auto& m) {
         return Einsum("i j -> i, j", m.Zeros({2, 3}));
       },
       {"Einsum", "1 operands and 2 results"}},
      {"einsum of more operands than it has",
       [](auto& m) {
         return Einsum("i j, j k -> i k", m.Zeros({2, 3}));
       },
       {"Einsum", "2 operands", "this call has 1"}},
      {"einsum of a diagonal",
       [](auto& m) {
         return Einsum("i i -> i", m.Zeros({2, 2}));
       },
       {"Einsum", "'i' twice"}},
      {"einsum of a letter twice in the result",
       [](auto& m) { return Einsum("i -> i i", m.Zeros({2})); },
       {"Einsum", "'i' twice"}},
      {"einsum of a new letter",
       [](auto& m) {
         return Einsum("i -> i j", m.Zeros({2}), {{"j", 3}});
       },
       {"Einsum", "'j' in its result alone", "Expand"}},
      {"einsum with a mark",
       [](auto& m) {
         return Einsum("i k:max -> i", m.Zeros({2, 3}));
       },
       {"Einsum", "marks 'k'"}},
      {"einsum with another mark",
       [](auto& m) {
         return Einsum("i k! -> i", m.Zeros({2, 3}));
       },
       {"Einsum", "marks 'k'"}},
      {"einsum by values",
       [](auto& m) {
         return Einsum("i @v, v d -> i d", m.Zeros({2}), m.Zeros({2, 3}));
       },
       {"Einsum", "indices", "Embedding"}},
      {"einsum of unlike sizes",
       [](auto& m) {
         return Einsum("i j, j k -> i k", m.Zeros({2, 3}), m.Zeros({2, 3}));
       },
       {"Einsum: operand 1 has size 2 where 'j' is 3"}},
      {"einsum without a size",
       [](auto& m) { return Einsum("(h d) -> h d", m.Zeros({6})); },
       {"Einsum", "how large 'h' is"}},
      {"einsum of a size that does not divide",
       [](auto& m) {
         return Einsum("(h d) -> h d", m.Zeros({6}), {{"h", 4}});
       },
       {"Einsum", "no multiple of 4"}},
      {"einsum of a size for no letter",
       [](auto& m) {
         return Einsum("i -> i", m.Zeros({6}), {{"h", 4}});
       },
       {"Einsum", "'h', which the rule lacks"}},
      {"einsum of integers",
       [](auto& m) { return Einsum("i -> ", m.Zeros({6}, DType::kI32)); },
       {"Einsum", "i32"}},
      {"bias",
       [](auto& m) {
         return Linear(m.Zeros({2, 3}), m.Zeros({4, 3}), m.Zeros({3}));
       },
       {"Linear", "[3] f32", "Reshape it to [4]"}},
      {"types",
       [](auto& m) {
         return Linear(m.Zeros({2, 3}), m.Zeros({2, 3}, DType::kF64));
       },
       {"Linear", "Cast"}},
      {"integers",
       [](auto& m) {
         return Linear(m.I64({1, 1}, {1}), m.I64({1, 1}, {1}));
       },
       {"Linear", "Cast"}},
      {"unlike",
       [](auto& m) {
         return Add(m.Zeros({2, 3}), m.Zeros({2}));
       },
       {"Add", "[2, 3], [2]"}},
      {"gate",
       [](auto& m) {
         return SiluMul(m.Zeros({2, 3}), m.Zeros({3}));
       },
       {"SiluMul", "Mul(Silu"}},
      {"dim",
       [](auto& m) {
         return Sum(m.Zeros({2, 3}), {2});
       },
       {"Sum", "dimension 2", "-2 to 1"}},
      {"twice",
       [](auto& m) {
         return Sum(m.Zeros({2, 3}), {0, -2});
       },
       {"Sum", "twice"}},
      {"mean",
       [](auto& m) {
         return Mean(m.I64({2}, {1, 2}), {0});
       },
       {"Mean", "i64"}},
      {"count",
       [](auto& m) {
         return Reshape(m.Zeros({2, 3}), {4, 2});
       },
       {"Reshape", "[2, 3]", "[4, 2]"}},
      {"open",
       [](auto& m) {
         return Reshape(m.Zeros({2, 3}), {-1, -1});
       },
       {"Reshape", "-1 stands twice"}},
      {"divide",
       [](auto& m) {
         return Reshape(m.Zeros({2, 3}), {4, -1});
       },
       {"Reshape", "multiple of 4"}},
      {"axis",
       [](auto& m) {
         return Transpose(m.Zeros({2, 3}), 0, -3);
       },
       {"Transpose", "-3"}},
      {"order",
       [](auto& m) {
         return Permute(m.Zeros({2, 3}), {0, -2});
       },
       {"Permute", "[0, -2]", "[2, 3]", "each once"}},
      {"order of a dimension less",
       [](auto& m) {
         return Permute(m.Zeros({2, 3}), {0});
       },
       {"Permute", "2 dimensions"}},
      {"broadcast",
       [](auto& m) {
         return Expand(m.Zeros({2, 1}), {3, 3});
       },
       {"Expand", "[2, 1]", "[3, 3]"}},
      {"broadcast to less",
       [](auto& m) {
         return Expand(m.Zeros({1, 1}), {1});
       },
       {"Expand", "in front"}},
      {"broadcast to too many",
       [](auto& m) {
         return Expand(m.Zeros({1}), {int64_t{1} << 40, int64_t{1} << 40});
       },
       {"Expand", "2^56"}},
      {"range",
       [](auto& m) {
         return Slice(m.Zeros({2, 3}), 1, 2, 4);
       },
       {"Slice", "[2, 4)", "<= 3"}},
      {"parts",
       [split](auto& m) {
         return split(m.Zeros({2, 3}), {1, 1});
       },
       {"SplitTensor", "sum is 3"}},
      {"parts that wrap",
       [split](auto& m) {
         return split(m.Zeros({2, 3}), {kMost, kMost, 5});
       },
       {"SplitTensor", "sum is 3"}},
      {"count that wraps",
       [](auto& m) {
         return Reshape(m.Zeros({2, 2}), {5, kWraps});
       },
       {"Reshape", "2^56"}},
      {"known sizes that wrap",
       [](auto& m) {
         return Reshape(m.Zeros({2, 2}), {5, kWraps, -1});
       },
       {"Reshape", "2^56"}},
      {"product that wraps",
       [](auto& m) {
         return MatMul(m.Zeros({int64_t{1} << 40, 0}), m.Zeros({0, int64_t{1} << 40}));
       },
       {"MatMul", "2^56"}},
      {"broadcast that wraps",
       [](auto& m) {
         return Add(m.Zeros({0, int64_t{1} << 40, 1}), m.Zeros({0, 1, int64_t{1} << 40}));
       },
       {"Add", "2^56"}},
      {"none", [](auto&) { return Concat({}, 0); }, {"Concat", "1 to 32"}},
      {"concat",
       [](auto& m) {
         return Concat({m.Zeros({2, 3}), m.Zeros({2})}, 1);
       },
       {"Concat", "Reshape"}},
      {"other",
       [](auto& m) {
         return Concat({m.Zeros({2, 3}), m.Zeros({3, 3})}, 1);
       },
       {"Concat", "[3, 3]"}},
      {"no stack", [](auto&) { return Stack({}, 0); }, {"Stack", "1 to 32"}},
      {"stack",
       [](auto& m) {
         return Stack({m.Zeros({2, 3}), m.Zeros({3})}, 0);
       },
       {"Stack", "[2, 3]", "Expand or Pad"}},
      {"place",
       [](auto& m) {
         return Stack({m.Zeros({2}), m.Zeros({2})}, 2);
       },
       {"Stack", "place 2", "-2 to 1"}},
      {"pad", [](auto& m) { return Pad(m.Zeros({2}), 0, -1, 0); }, {"Pad", "-1 before", "Slice"}},
      {"pad that wraps",
       [](auto& m) { return Pad(m.Zeros({2}), 0, int64_t{1} << 56, int64_t{1} << 56); },
       {"Pad", "2^56"}},
      {"ids",
       [](auto& m) {
         return Embedding(m.Zeros({2}), m.Zeros({3, 2}));
       },
       {"Embedding", "i64"}},
      {"rope",
       [](auto& m) {
         return Rope(m.Zeros({2, 3}), 100);
       },
       {"Rope", "4 dimensions"}},
      {"position",
       [](auto& m) {
         return Rope(m.Zeros({1, 1, 1, 2}), 100, -1);
       },
       {"Rope", "-1", "offset"}},
      {"odd",
       [](auto& m) {
         return Rope(m.Zeros({1, 1, 1, 3}), 100);
       },
       {"Rope", "even"}},
      {"amplitude",
       [](auto& m) {
         return Rope(m.Zeros({1, 1, 1, 2}), {.scaling = {.amplitude = 0}});
       },
       {"Rope", "amplitude 0", "above 0"}},
      {"pairs",
       [](auto& m) {
         return Rope(m.Zeros({1, 1, 1, 2}),
                     {.theta = 1, .scaling = {.transition = RopeTransition::kByPairs}});
       },
       {"Rope", "theta 1", "theta > 1"}},
      {"heads",
       [](auto& m) {
         return Attention(m.Zeros({1, 2, 3, 2}), m.Zeros({1, 2, 2, 2}), m.Zeros({1, 2, 2, 2}), {});
       },
       {"Attention", "3 query heads", "2 key heads"}},
      {"targets",
       [](auto& m) {
         return CrossEntropy(m.Zeros({2, 3}), m.I64({1}, {0}));
       },
       {"CrossEntropy", "[2, 3]"}},
      {"smoothing",
       [](auto& m) {
         return CrossEntropy(m.Zeros({1, 3}), m.I64({1}, {0}), {.label_smoothing = 1.5});
       },
       {"CrossEntropy", "label_smoothing is 1.5", "0 to 1"}},
      {"classes",
       [](auto& m) {
         return CrossEntropyMean(m.Zeros({1, 3}), m.I64({1}, {0}), {.classes = 4});
       },
       {"CrossEntropy", "3 columns, not 4 classes"}},
      {"mean of unlike targets",
       [](auto& m) {
         return CrossEntropyMean(m.Zeros({2, 3}), m.I64({1}, {0}));
       },
       {"CrossEntropy", "[2, 3]"}},
      {"largest of none",
       [](auto& m) {
         return Max(m.Zeros({2, 0}), {1});
       },
       {"Max", "dimension 1", "no elements"}},
      {"smallest, twice",
       [](auto& m) {
         return Min(m.Zeros({2, 3}), {1, 1});
       },
       {"Min", "twice"}},
      {"largest of bools",
       [](auto& m) { return Max(m.Zeros({2}, DType::kBool), {0}); },
       {"Max", "bool", "Cast"}},
      {"where among none",
       [](auto& m) {
         return ArgMax(m.Zeros({0, 2}), 0);
       },
       {"ArgMax", "dimension 0", "no elements"}},
      {"where", [](auto& m) { return ArgMax(m.Zeros({2}), 1); }, {"ArgMax", "dimension 1"}},
      {"more than there are",
       [top](auto& m) {
         return top(m.Zeros({4, 3}), 4);
       },
       {"TopK: k is 4 for dimension 1 of [4, 3] f32", "0 <= k <= 3"}},
      {"less than none", [top](auto& m) { return top(m.Zeros({3}), -1); }, {"TopK", "k is -1"}},
      {"the largest of a scalar",
       [top](auto& m) { return top(m.Zeros({}), 0); },
       {"TopK", "no dimension -1", "Reshape it first"}},
      {"the largest bools",
       [top](auto& m) { return top(m.Zeros({2}, DType::kBool), 1); },
       {"TopK", "bool", "Cast"}},
      {"the largest of nothing",
       [top](auto&) { return top(DistributedTensor(), 0); },
       {"TopK", "undefined"}},
      {"elements of other rows",
       [](auto& m) {
         return TakeAlongDim(m.Zeros({4, 3}), m.Zeros({5, 2}, DType::kI64));
       },
       {"TakeAlongDim: [4, 3] f32", "[5, 2] i64", "the same leading dimensions"}},
      {"elements of rows that one row of indices would be spread over",
       [](auto& m) {
         return TakeAlongDim(m.Zeros({4, 3}), m.Zeros({1, 2}, DType::kI64));
       },
       {"TakeAlongDim: [4, 3] f32", "[1, 2] i64"}},
      {"elements of a scalar",
       [](auto& m) { return TakeAlongDim(m.Zeros({}), m.Zeros({}, DType::kI64)); },
       {"TakeAlongDim"}},
      {"elements by indices that are floats",
       [](auto& m) {
         return TakeAlongDim(m.Zeros({4, 3}), m.Zeros({4, 2}));
       },
       {"TakeAlongDim", "i64"}},
      {"fewer bins than none",
       [](auto& m) { return Bincount(m.Zeros({2}, DType::kI64), -1); },
       {"Bincount: -1 bins of [2] i64", "0 or more"}},
      {"counts in a type without numbers enough",
       [](auto& m) { return Bincount(m.Zeros({2}, DType::kI64), 3, DType::kBF16); },
       {"Bincount: counts in bf16", "f32 or f64"}},
      {"ids that are floats",
       [](auto& m) { return Bincount(m.Zeros({2}), 3); },
       {"Bincount", "f32"}},
      {"experts of a scalar",
       [experts](auto& m) { return experts(m, {}, {2}, DType::kF32); },
       {"ExpertMlp", "at least one dimension", "Reshape"}},
      {"ids of a scalar",
       [experts](auto& m) { return experts(m, {3}, {}, DType::kF32); },
       {"ExpertMlp", "at least one dimension", "Reshape"}},
      {"experts of other tokens",
       [experts](auto& m) {
         return experts(m, {4, 3}, {5, 2}, DType::kF32);
       },
       {"ExpertMlp", "[4, 3] f32", "[5, 2] i64", "the same tokens"}},
      {"one token for all experts",
       [experts](auto& m) {
         return experts(m, {1, 3}, {5, 2}, DType::kF32);
       },
       {"ExpertMlp", "the same tokens"}},
      {"experts of another type",
       [experts](auto& m) {
         return experts(m, {4, 3}, {4, 2}, DType::kBF16);
       },
       {"ExpertMlp", "have one type", "bf16", "Cast"}},
      {"a clamp that is none",
       [clamped](auto& m) {
         return clamped(m, 8, {1, -1});
       },
       {"ClampedExpertMlp", "limit of -1", "above 0"}},
      {"gates without ups",
       [clamped](auto& m) { return clamped(m, 9, {}); },
       {"ClampedExpertMlp", "gate_up has 9 columns and down 4 rows", "a gate and an up"}},
      {"one sink for all heads",
       [](auto& m) {
         const TensorOr q = m.Zeros({1, 2, 4, 2});
         return AttentionWithSinks(q, q, q, m.Zeros({1}), {});
       },
       {"AttentionWithSinks", "sinks are [1] f32", "one for each of its 4 heads"}},
      {"tokens of other features",
       [experts](auto& m) {
         return experts(m, {4, 2}, {4, 2}, DType::kF32);
       },
       {"ExpertMlp", "'i'"}},
      {"softmax of a scalar", [](auto& m) { return Softmax(m.Zeros({})); }, {"Softmax"}},
      {"softmax of integers",
       [](auto& m) { return LogSoftmax(m.I64({1}, {1})); },
       {"LogSoftmax", "Cast"}},
      {"bias",
       [](auto& m) {
         return LayerNorm(m.Zeros({2, 3}), m.Zeros({3}), m.Zeros({2}), 0);
       },
       {"LayerNorm", "[2, 3], [3], [2]"}},
      {"passed on",
       [](auto& m) {
         return Silu(MatMul(m.Zeros({2, 3}), m.Zeros({4, 2})));
       },
       {"MatMul"}},
      {"undefined", [](auto&) { return Silu(DistributedTensor()); }, {"Silu", "undefined"}},
  };
}

TEST(OpsTest, RefusalsNameOperatorShapesAndRemedy) {
  OnOneRank([](const Maker& make) {
    for (const Refusal& refusal : Refusals()) {
      const TensorOr result = refusal.call(make);
      for (const char* word : refusal.words) {
        EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(word)))
            << refusal.what;
      }
    }
    EXPECT_THAT(Values(make.F32({1}, {4})), ElementsAre(4));
  });
}

TEST(OpsTest, AnIdOutOfRangeEndsTheWorld) {
  const absl::Status status = RunRanks(1, [](Context& context) -> absl::Status {
    const Maker make(context);
    DT_ASSIGN_OR_RETURN(const auto y, Embedding(make.I64({1}, {3}), make.Zeros({3, 2})));
    return ToGlobal<float>(y).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("3")));
}

}  // namespace
}  // namespace dtensor
