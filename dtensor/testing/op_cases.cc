#include "dtensor/testing/op_cases.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/attention/attention_op.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/attention_mask.h"

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

std::string OpCase::ToString() const {
  const auto shape = [](std::string* out, const Operand& operand) {
    absl::StrAppend(out, DimsToString(operand.shape));
  };
  std::string out = absl::StrCat(op->name, "(", absl::StrJoin(operands, ", ", shape));
  for (int64_t value : attrs.ints) absl::StrAppend(&out, "; ", value);
  for (double value : attrs.reals) absl::StrAppend(&out, "; ", value);
  return absl::StrCat(out, ")");
}

namespace {

// Carried out where the operands are.
Attrs AttentionCase(const AttentionMask& mask, double scale) {
  const AttentionOptions options = {mask, scale, AttentionMethod::kRing, ""};
  return internal::AttentionAttrs(options, DeviceMesh(), /*backward=*/true).value();
}

}  // namespace

std::vector<OpCase> AllOpCases() {
  using namespace internal;  // NOLINT: the definitions
  const int64_t i32 = static_cast<int64_t>(DType::kI32), bf16 = static_cast<int64_t>(DType::kBF16);
  constexpr int64_t kIgnore = 1;
  return {
      {&kMatMulOp, {}, {{{3, 4}}, {{4, 5}}}, true},
      {&kMatMulOp, {}, {{{2, 1}}, {{1, 3}}}, true},
      {&kMatMulOp, {}, {{{3, 0}}, {{0, 2}}}, true},
      {&kLinearOp, {}, {{{3, 5}}, {{4, 5}}}, true},
      {&kLinearOp, {}, {{{2, 3, 4}}, {{5, 4}}}, true},
      {&kLinearOp, {}, {{{4}}, {{3, 4}}}, true},
      {&kAddOp, {}, {{{3, 4}}, {{3, 4}}}, true},
      {&kAddOp, {}, {{{3, 4}}, {{4}}}, true},
      {&kAddOp, {}, {{{3, 1}}, {{1, 4}}}, true},
      {&kAddOp, {}, {{{}}, {{3}}}, true},
      {&kAddOp, {}, {{{2, 3, 4}}, {{3, 1}}}, true},
      {&kSubOp, {}, {{{3, 4}}, {{3, 4}}}, true},
      {&kSubOp, {}, {{{4}}, {{3, 1}}}, true},
      {&kMulOp, {}, {{{3, 4}}, {{3, 4}}}, true},
      {&kMulOp, {}, {{{3, 1}}, {{4}}}, true},
      {&kMulOp, {}, {{{2, 3, 4}}, {{}}}, true},
      {&kScaleOp, {.values = {.factor = -2}}, {{{3, 4}}}, true},
      {&kSiluOp, {}, {{{3, 5}}}},
      {&kSiluMulOp, {}, {{{3, 5}}, {{3, 5}}}},
      {&kCastOp, {.ints = {bf16}}, {{{3, 4}}}, true},
      {&kCastToIntegerOp, {.ints = {i32}}, {{{3, 4}}}, true, 0},
      {&kSoftmaxOp, {}, {{{3, 5}}}},
      {&kSoftmaxOp, {}, {{{2, 3, 4}}}},
      {&kRmsNormOp, {.reals = {1e-5}}, {{{3, 4}}, {{4}}}},
      {&kRmsNormOp, {.reals = {1e-5}}, {{{2, 3, 5}}, {{5}}}},
      {&kSumOp, {.ints = {1}}, {{{3, 4, 5}}}, true},
      {&kSumOp, {.ints = {0, 2}}, {{{3, 4, 5}}}, true},
      {&kSumOp, {.ints = {0}}, {{{3}}}, true},
      {&kMeanOp, {.ints = {1}}, {{{3, 4, 5}}}, true},
      {&kMeanOp, {.ints = {0, 2}}, {{{3, 4, 5}}}},
      {&kSumOfSquaresOp, {}, {{{3, 4}}}, true, 0},
      {&kReshapeOp, {.ints = {3, 8}}, {{{6, 4}}}, true},
      {&kReshapeOp, {.ints = {24}}, {{{4, 6}}}, true},
      {&kReshapeOp, {.ints = {2, 3, 4}}, {{{24}}}, true},
      {&kReshapeOp, {.ints = {15, 4}}, {{{3, 5, 4}}}, true},
      {&kReshapeOp, {.ints = {4, 3}}, {{{3, 4}}}, true},
      {&kReshapeOp, {.ints = {1, 5, 1}}, {{{5}}}, true},
      {&kTransposeOp, {.ints = {0, 2}}, {{{3, 4, 5}}}, true},
      {&kTransposeOp, {.ints = {0, 1}}, {{{3, 2}}}, true},
      {&kSliceOp, {.ints = {1, 3}, .values = {.offset = 1}}, {{{3, 5}}}, true},
      {&kSliceOp, {.ints = {0, 2}}, {{{3, 5}}}, true},
      {&kSplitOp, {.ints = {1, 2, 3}}, {{{4, 5}}}, true, 0b11},
      {&kSplitOp, {.ints = {0, 1, 0, 2}}, {{{3, 4}}}, true, 0b101},
      {&kConcatOp, {.ints = {1}}, {{{3, 2}}, {{3, 4}}}, true},
      {&kConcatOp, {.ints = {0}}, {{{1, 3}}, {{2, 3}}, {{1, 3}}}, true},
      {&kEmbeddingOp, {}, {{{2, 3}, 5}, {{5, 4}}}, true},
      {&kEmbeddingOp, {}, {{{4}, 3}, {{3, 2}}}, true},
      {&kRopeOp, {.reals = {100}}, {{{2, 3, 2, 4}}}},
      {&kRopeOp, {.reals = {10000}}, {{{1, 5, 3, 2}}}},
      {&kAttentionOp,
       AttentionCase(AttentionMask::Causal(), 0),
       {{{2, 3, 4, 2}}, {{2, 5, 2, 2}}, {{2, 5, 2, 2}}}},
      {&kAttentionOp,
       AttentionCase(AttentionMask::Full(), .3),
       {{{1, 2, 6, 4}}, {{1, 3, 2, 4}}, {{1, 3, 2, 4}}}},
      {&kAttentionOp,
       AttentionCase(*AttentionMask::Window(2), 0),
       {{{3, 4, 3, 2}}, {{3, 4, 3, 2}}, {{3, 4, 3, 2}}}},
      {&kCrossEntropyOp, {.ints = {-100}}, {{{3, 5}}, {{3}, 5}}},
      {&kCrossEntropyOp, {.ints = {kIgnore}}, {{{2, 3, 4}}, {{2, 3}, 4}}},
  };
}

std::vector<double> OperandValues(const OpCase& c, int i, uint64_t seed) {
  const OpCase::Operand& operand = c.operands[i];
  std::vector<double> values(NumElements(operand.shape));
  for (size_t e = 0; e < values.size(); ++e) {
    const uint64_t hash = TestHash(seed, e, 1000 + i);
    values[e] = operand.ids > 0 ? static_cast<double>(hash % operand.ids) : Value(c, hash);
  }
  return values;
}

std::vector<double> LossWeights(const OpCase& c, int r, int64_t size, uint64_t seed) {
  std::vector<double> weights(size);
  for (int64_t e = 0; e < size; ++e) weights[e] = Value(c, TestHash(seed, e, 2000 + r));
  return weights;
}

}  // namespace dtensor
