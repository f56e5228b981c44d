#include "dtensor/testing/op_cases.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/attention/attention_op.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/testing/all_ops.h"

namespace dtensor {

uint64_t TestHash(uint64_t a, uint64_t b, uint64_t c) {
  // splitmix64
  uint64_t x = a * 0x9E3779B97F4A7C15ull + b * 0xBF58476D1CE4E5B9ull + c * 0x94D049BB133111EBull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

double SmallInteger(uint64_t hash) { return static_cast<double>(hash % 7) - 3; }

namespace {

double Value(const OpCase& c, uint64_t hash) {
  if (c.exact) return SmallInteger(hash);
  return static_cast<double>(hash >> 11) * 0x1p-51 - 2;  // uniform in [-2, 2)
}

}  // namespace

DType OpCase::Operand::type(DType floats) const {
  return flags ? DType::kBool : ids > 0 ? DType::kI64 : floats;
}

std::string OpCase::ToString() const {
  const auto shape = [](std::string* out, const Operand& operand) {
    absl::StrAppend(out, DimsToString(operand.shape));
  };
  std::string out = absl::StrCat(op->name, "(", absl::StrJoin(operands, ", ", shape));
  const std::string arguments = AttrsView(attrs).ToString();
  if (!arguments.empty()) absl::StrAppend(&out, "; ", arguments);
  return absl::StrCat(out, ")");
}

namespace {

// Carried out where the operands are.
Attrs AttentionCase(const AttentionMask& mask, double scale,
                    std::optional<int64_t> query_offset = std::nullopt) {
  AttentionOptions options = {mask, scale, AttentionPlanKind::kRing, ""};
  options.query_offset = query_offset;
  return internal::AttrsOf(options, DeviceMesh(), /*backward=*/true).value();
}

}  // namespace

std::vector<OpCase> AllOpCases() {
  using namespace internal;  // NOLINT: the attributes
  const auto op = [](absl::string_view name) { return &OpNamed(name); };
  constexpr int64_t kIgnore = 1;
  const OpCase::Operand kFlags = {.shape = {3, 4}, .flags = true};
  return {
      {op("MatMul"), {}, {{{3, 4}}, {{4, 5}}}, true},
      {op("MatMul"), {}, {{{2, 1}}, {{1, 3}}}, true},
      {op("MatMul"), {}, {{{3, 0}}, {{0, 2}}}, true},
      {op("MatMul"), {}, {{{2, 3, 4}}, {{2, 4, 3}}}, true},
      {op("MatMul"), {}, {{{1, 2, 2}}, {{3, 2, 1}}}, true},
      {op("MatMul"), {}, {{{2, 0, 3}}, {{3, 2}}}, true},
      {op("Linear"), {}, {{{3, 5}}, {{4, 5}}}, true},
      {op("Linear"), {}, {{{2, 3, 4}}, {{5, 4}}}, true},
      {op("Linear"), {}, {{{4}}, {{3, 4}}}, true},
      {&OpNamed("Linear", 1), {}, {{{3, 4}}, {{5, 4}}, {{5}}}, true},
      {&OpNamed("Linear", 1), {}, {{{1, 0}}, {{3, 0}}, {{3}}}, true},
      {op("Einsum"), EinsumAttrs{"q h d, k h d -> h q k", {}}, {{{3, 2, 4}}, {{2, 2, 4}}}, true},
      {op("Einsum"),
       EinsumAttrs{"... i, (h d) i -> ... h d", {{"h", 3}}},
       {{{2, 5}}, {{6, 5}}},
       true},
      {op("Einsum"), EinsumAttrs{"h q k, k h d -> q (h d)", {}}, {{{2, 3, 2}}, {{2, 2, 1}}}, true},
      {op("Einsum"), EinsumAttrs{"i j, j k -> k i", {}}, {{{3, 4}}, {{4, 2}}}, true},
      {op("Einsum"), EinsumAttrs{"i j k, k j -> ", {}}, {{{2, 3, 4}}, {{4, 3}}}, true},
      {op("Einsum"), EinsumAttrs{"i j k, l j -> k l", {}}, {{{2, 3, 2}}, {{5, 3}}}, true},
      {op("Einsum"), EinsumAttrs{"i, j -> j i", {}}, {{{3}}, {{5}}}, true},
      {op("Einsum"), EinsumAttrs{"... i, ... -> ...", {}}, {{{3, 1, 4}}, {{2}}}, true},
      {op("Einsum"), EinsumAttrs{"i j, j -> i", {}}, {{{3, 0}}, {{0}}}, true},
      {&OpNamed("Einsum", 1), EinsumAttrs{"t (h d) u -> h u t d", {{"h", 2}}}, {{{3, 6, 1}}}, true},
      {&OpNamed("Einsum", 1), EinsumAttrs{"... i -> i", {}}, {{{3, 2, 4}}}, true},
      {op("Add"), {}, {{{3, 4}}, {{3, 4}}}, true},
      {op("Add"), {}, {{{3, 4}}, {{4}}}, true},
      {op("Add"), {}, {{{3, 1}}, {{1, 4}}}, true},
      {op("Add"), {}, {{{}}, {{3}}}, true},
      {op("Add"), {}, {{{2, 3, 4}}, {{3, 1}}}, true},
      {op("Sub"), {}, {{{3, 4}}, {{3, 4}}}, true},
      {op("Sub"), {}, {{{4}}, {{3, 1}}}, true},
      {op("Mul"), {}, {{{3, 4}}, {{3, 4}}}, true},
      {op("Mul"), {}, {{{3, 1}}, {{4}}}, true},
      {op("Mul"), {}, {{{2, 3, 4}}, {{}}}, true},
      {op("AddN"), {}, {{{3, 4}}, {{3, 4}}, {{3, 4}}}, true},
      {op("AddN"), {}, {{{3, 1}}, {{2, 1, 4}}, {{4}}}, true},
      {op("Maximum"), {}, {{{3, 4}}, {{3, 4}}}, true},
      {op("Maximum"), {}, {{{3, 1}}, {{5}}}, true},
      {op("Minimum"), {}, {{{2, 3, 4}}, {{3, 1}}}, true},
      {op("Div"), {}, {{{3, 4}}, {.shape = {3, 4}, .positive = true}}},
      {op("Div"), {}, {{{5}}, {.shape = {2, 3, 1}, .positive = true}}},
      {op("Neg"), {}, {{{3, 4}}}, true},
      {op("Scale"), {}, {{{3, 4}}}, true, 1, {.scalar = -2}},
      {op("AddScalar"), {}, {{{3, 4}}}, true, 1, {.scalar = 5}},
      {op("Abs"), {}, {{{3, 5}}}, true},
      {op("Exp"), {}, {{{3, 5}}}},
      {op("Log"), {}, {{.shape = {3, 5}, .positive = true}}},
      {op("Sqrt"), {}, {{.shape = {5}, .positive = true}}},
      {op("Rsqrt"), {}, {{.shape = {3, 1, 4}, .positive = true}}},
      {op("Pow"), {}, {{{3, 5}}}, true, 1, {.scalar = 3}},
      {op("Pow"), {}, {{.shape = {3, 5}, .positive = true}}, false, 1, {.scalar = -1.5}},
      {op("Relu"), {}, {{{3, 5}}}},
      {op("Sigmoid"), {}, {{{3, 5}}}},
      {op("Tanh"), {}, {{{5}}}},
      {op("Gelu"), GeluAttrs{GeluForm::kErf}, {{{3, 5}}}},
      {op("Gelu"), GeluAttrs{GeluForm::kTanh}, {{{3, 5}}}},
      {op("Clamp"), ClampAttrs{-.3, .6}, {{{3, 5}}}},
      {op("Dropout"), {}, {{{5, 7}}}, true, 1, {.seed = 3, .scalar = .5}},
      {op("Dropout"), {}, {{{2, 3, 4}}}, false, 1, {.seed = 4, .scalar = .3}},
      {op("Equal"), {}, {{{3, 4}}, {{3, 4}}}, true, 0},
      {op("NotEqual"), {}, {{{3, 4}}, {{4}}}, true, 0},
      {op("Less"), {}, {{{3, 1}}, {{1, 4}}}, true, 0},
      {op("LessEqual"), {}, {{{3, 4}}, {{}}}, true, 0},
      {op("Greater"), {}, {{{3, 4}}, {{3, 4}}}, true, 0},
      {op("GreaterEqual"), {}, {{{5}}, {{2, 1}}}, true, 0},
      {op("LogicalAnd"), {}, {kFlags, kFlags}, true, 0},
      {op("LogicalOr"), {}, {kFlags, {.shape = {4}, .flags = true}}, true, 0},
      {op("LogicalNot"), {}, {kFlags}, true, 0},
      {op("Where"), {}, {kFlags, {{3, 4}}, {{3, 4}}}, true},
      {op("Where"), {}, {{.shape = {3, 1}, .flags = true}, {{4}}, {{2, 1, 1}}}, true},
      {op("Silu"), {}, {{{3, 5}}}},
      {op("SiluMul"), {}, {{{3, 5}}, {{3, 5}}}},
      {op("Cast"), CastAttrs{DType::kBF16}, {{{3, 4}}}, true},
      {op("Clone"), {}, {{{3, 5}}}, true},
      {&OpNamed("Cast", 1), CastAttrs{DType::kI32}, {{{3, 4}}}, true, 0},
      {op("Softmax"), {}, {{{3, 5}}}},
      {op("Softmax"), {}, {{{2, 3, 4}}}},
      {op("Softmax"), {}, {{{3, 1}}}},
      {op("LogSoftmax"), {}, {{{3, 5}}}},
      {op("LogSoftmax"), {}, {{{2, 1, 2}}}},
      {op("RmsNorm"), RmsNormAttrs{1e-5}, {{{3, 4}}, {{4}}}},
      {op("RmsNorm"), RmsNormAttrs{1e-5}, {{{2, 3, 5}}, {{5}}}},
      {op("RmsNorm"), RmsNormAttrs{1e-5}, {{{2}}, {{2}}}},
      {op("LayerNorm"), LayerNormAttrs{1e-5}, {{{3, 4}}, {{4}}, {{4}}}},
      {op("LayerNorm"), LayerNormAttrs{.1}, {{{2, 1, 5}}, {{5}}, {{5}}}},
      {op("LayerNorm"), LayerNormAttrs{.1}, {{{2, 1}}, {{1}}, {{1}}}},
      {op("Sum"), ReduceAttrs{{1}}, {{{3, 4, 5}}}, true},
      {op("Sum"), ReduceAttrs{{0, 2}}, {{{3, 4, 5}}}, true},
      {op("Sum"), ReduceAttrs{{0}}, {{{3}}}, true},
      {op("Mean"), ReduceAttrs{{1}}, {{{3, 4, 5}}}, true},
      {op("Mean"), ReduceAttrs{{0, 2}}, {{{3, 4, 5}}}},
      {op("SumOfSquares"), {}, {{{3, 4}}}, true},
      {op("SumOfSquares"), {}, {{{}}}, true},
      {op("CumSum"), CumSumAttrs{1}, {{{3, 5, 2}}}, true},
      {op("CumSum"), CumSumAttrs{0}, {{{9}}}, true},
      {op("CumSum"), CumSumAttrs{2}, {{{2, 1, 4}}}},
      {op("Max"), ReduceAttrs{{1}}, {{{3, 4, 5}}}},
      {op("Max"), ReduceAttrs{{0, 2}}, {{{3, 2, 5}}}},
      {op("Max"), ReduceAttrs{{0, 1}}, {{{2, 1}}}},
      {op("Min"), ReduceAttrs{{1}}, {{{3, 5}}}},
      {op("Min"), ReduceAttrs{{0, 1}}, {{{3, 4}}}},
      {op("ArgMax"), ArgMaxAttrs{1}, {{{3, 5, 2}}}, true, 0},
      {op("ArgMax"), ArgMaxAttrs{0}, {{{5}}}, true, 0},
      {op("TopK"), TopKAttrs{2}, {{{3, 5}}}},
      {op("TopK"), TopKAttrs{4}, {{{2, 3, 4}}}},
      {op("TopK"), TopKAttrs{0}, {{{2, 3}}}},
      {op("TopK"), TopKAttrs{1}, {{{5}}}},
      {op("TakeAlongDim"), {}, {{{3, 5}}, {.shape = {3, 4}, .ids = 5}}},
      {op("TakeAlongDim"), {}, {{{2, 3, 2}}, {.shape = {2, 3, 5}, .ids = 2}}},
      {op("TakeAlongDim"), {}, {{{4}}, {.shape = {1}, .ids = 4}}},
      {op("Reshape"), ReshapeAttrs{{3, 8}}, {{{6, 4}}}, true},
      {op("Reshape"), ReshapeAttrs{{24}}, {{{4, 6}}}, true},
      {op("Reshape"), ReshapeAttrs{{2, 3, 4}}, {{{24}}}, true},
      {op("Reshape"), ReshapeAttrs{{15, 4}}, {{{3, 5, 4}}}, true},
      {op("Reshape"), ReshapeAttrs{{4, 3}}, {{{3, 4}}}, true},
      {op("Reshape"), ReshapeAttrs{{1, 5, 1}}, {{{5}}}, true},
      {op("Transpose"), TransposeAttrs{0, 2}, {{{3, 4, 5}}}, true},
      {op("Transpose"), TransposeAttrs{0, 1}, {{{3, 2}}}, true},
      {op("Expand"), ExpandAttrs{{2, 3, 4}}, {{{3, 1}}}, true},
      {op("Expand"), ExpandAttrs{{2, 3}}, {{{}}}, true},
      {op("Expand"), ExpandAttrs{{3, 0, 1}}, {{{3, 1, 1}}}, true},
      {op("Slice"), SliceAttrs{1, 3}, {{{3, 5}}}, true, 1, {.offset = 1}},
      {op("Slice"), SliceAttrs{0, 2}, {{{3, 5}}}, true},
      {op("Slice"), SliceAttrs{1, 6, 3}, {{{2, 12}}}, true, 1, {.offset = 3}},
      {op("Slice"), SliceAttrs{0, 2, 2}, {{{4, 3}}}, true, 1, {.offset = 2}},
      {op("SplitTensor"), SplitAttrs{1, {2, 3}}, {{{4, 5}}}, true, 0b11},
      {op("SplitTensor"), SplitAttrs{0, {1, 0, 2}}, {{{3, 4}}}, true, 0b101},
      {op("SplitTensor"), SplitAttrs{1, {6, 3}}, {{{2, 9}}}, true, 0b11},
      {op("SplitTensor"), SplitAttrs{0, {2, 0, 2}}, {{{4, 3}}}, true, 0b111},
      {op("Concat"), ConcatAttrs{1}, {{{3, 2}}, {{3, 4}}}, true},
      {op("Concat"), ConcatAttrs{0}, {{{5, 2}}, {{10, 2}}}, true},
      {op("Concat"), ConcatAttrs{0}, {{{1, 3}}, {{2, 3}}, {{1, 3}}}, true},
      {op("Stack"), StackAttrs{1}, {{{3, 2}}, {{3, 2}}}, true},
      {op("Stack"), StackAttrs{0}, {{{}}, {{}}, {{}}}, true},
      {op("Pad"), PadAttrs{1, 2, 1}, {{{2, 3}}}, true},
      {op("Pad"), PadAttrs{0, 3, 6}, {{{6, 2}}}, true},
      {&OpNamed("Pad", 1), PadAttrs{1, 4, 0, 3}, {{{3, 2}}}, true},
      {op("Windows"), WindowsAttrs{1, 2, 3, 1, 1}, {{{2, 7}}}, true},
      {op("Windows"), WindowsAttrs{0, 1, 3, 1, 2}, {{{9, 2}}}, true},
      {op("Windows"), WindowsAttrs{0, 2, 3, 2, 1}, {{{10, 3, 2}}}, true},
      {op("Windows"), WindowsAttrs{1, 2, 2, 2, 0}, {{{2, 8, 3}}}, true},
      {op("Windows"), WindowsAttrs{1, 3, 2, 1, 3, 4, 4}, {{{2, 5, 3}}}, true},
      {op("Windows"), WindowsAttrs{0, 1, 1, 3, -4}, {{{6}}}, true},
      {&OpNamed("Windows", 1), WindowsAttrs{0, 1, 4, 1, 2, 1, 9, 7}, {{{5, 3}}}, true},
      {op("ExpertMlp"),
       {},
       {{{2, 3, 4}},
        {.shape = {2, 3, 2}, .ids = 5},
        {{2, 3, 2}},
        {{5, 3, 4}},
        {{5, 3, 4}},
        {{5, 2, 3}}}},
      {op("ExpertMlp"),
       {},
       {{{1, 2}}, {.shape = {1, 3}, .ids = 2}, {{1, 3}}, {{2, 1, 2}}, {{2, 1, 2}}, {{2, 2, 1}}}},
      {op("ClampedExpertMlp"),
       SwiGluClampAttrs{{1.5, 0.5}},
       {{{2, 3, 4}},
        {.shape = {2, 3, 2}, .ids = 5},
        {{2, 3, 2}},
        {{5, 4, 6}},
        {{5, 6}},
        {{5, 3, 2}},
        {{5, 2}}}},
      {op("ClampedExpertMlp"),  // of biases alone
       SwiGluClampAttrs{},
       {{{3, 2}},
        {.shape = {3, 2}, .ids = 2},
        {{3, 2}},
        {{2, 2, 0}},
        {{2, 0}},
        {{2, 0, 2}},
        {{2, 2}}}},
      {op("Embedding"), {}, {{{2, 3}, 5}, {{5, 4}}}, true},
      {op("Embedding"), {}, {{{4}, 3}, {{3, 2}}}, true},
      {op("Bincount"), BincountAttrs{5}, {{{2, 3, 4}, 7}}, true},
      {op("Bincount"), BincountAttrs{3, DType::kF64}, {{{6}, 2}}, true},
      {op("Rope"), RopeAttrs{100}, {{{2, 3, 2, 4}}}},
      {op("Rope"), RopeAttrs{100}, {{{1, 3, 1, 4}}}, false, 1, {.offset = 7}},
      {op("Rope"), RopeAttrs{10000}, {{{1, 5, 3, 2}}}},
      {op("Rope"),
       RopeAttrs{100, {2, 1, 4, 9, RopeTransition::kByWholePairs, 1.5}},
       {{{2, 3, 1, 8}}}},
      {op("Attention"),
       AttentionCase(AttentionMask::Causal(), 0),
       {{{2, 3, 4, 2}}, {{2, 5, 2, 2}}, {{2, 5, 2, 2}}},
       false,
       0b11},
      {op("Attention"),
       AttentionCase(AttentionMask::Full(), .3),
       {{{1, 2, 6, 4}}, {{1, 3, 2, 4}}, {{1, 3, 2, 4}}}},
      {op("Attention"),
       AttentionCase(*AttentionMask::Window(2), 0),
       {{{3, 4, 3, 2}}, {{3, 4, 3, 2}}, {{3, 4, 3, 2}}},
       false,
       0b10},
      {op("Attention"),
       AttentionCase(AttentionMask::Causal(), 0, 2),
       {{{1, 2, 2, 2}}, {{1, 5, 1, 2}}, {{1, 5, 1, 2}}}},
      {op("Attention"),  // with key_lengths
       AttentionCase(AttentionMask::Full(), 0),
       {{{3, 2, 2, 2}}, {{3, 5, 2, 2}}, {{3, 5, 2, 2}}, {{3}, 6}},
       false,
       0b11},
      {op("CrossEntropy"), CrossEntropyAttrs{-100}, {{{3, 5}}, {{3}, 5}}},
      {op("CrossEntropy"), CrossEntropyAttrs{kIgnore}, {{{2, 3, 4}}, {{2, 3}, 4}}},
      {op("CrossEntropy"), CrossEntropyAttrs{kIgnore, .3}, {{{3, 5}}, {{3}, 5}}},
      {op("CrossEntropy"), CrossEntropyAttrs{-100, .3, 4}, {{{3, 7}}, {{3}, 4}}},
      {op("CrossEntropyMean"), TargetMeanAttrs{kIgnore}, {{{3, 4}}, {{3, 4}, 3}}},
      {op("CrossEntropyMean"), TargetMeanAttrs{-100}, {{{5}}, {{5}, 3}}},
  };
}

std::vector<double> OperandValues(const OpCase& c, int i, uint64_t seed) {
  const OpCase::Operand& operand = c.operands[i];
  std::vector<double> values(NumElements(operand.shape));
  for (size_t e = 0; e < values.size(); ++e) {
    const uint64_t hash = TestHash(seed, e, 1000 + i);
    const int64_t kinds = operand.flags ? 2 : operand.ids;
    values[e] = kinds > 0 ? static_cast<double>(hash % kinds) : Value(c, hash);
    if (operand.positive) values[e] = std::abs(values[e]) + 0.25;
  }
  return values;
}

std::vector<double> LossWeights(const OpCase& c, int r, int64_t size, uint64_t seed) {
  std::vector<double> weights(size);
  for (int64_t e = 0; e < size; ++e) weights[e] = Value(c, TestHash(seed, e, 2000 + r));
  return weights;
}

}  // namespace dtensor
