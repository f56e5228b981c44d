#include "dtensor/tests/torch_cases/torch_cases.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/windows.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/testing/all_ops.h"

namespace dtensor {
namespace {

using internal::OpNamed;
using Operands = absl::Span<const TensorOr>;
using Results = absl::StatusOr<std::vector<DistributedTensor>>;

Results List(const TensorOr& y) {
  DT_RETURN_IF_ERROR(y.status());
  return std::vector<DistributedTensor>{*y};
}
Results List(Results results) { return results; }
Results List(const absl::StatusOr<AttentionResults>& results) {
  DT_RETURN_IF_ERROR(results.status());
  return std::vector<DistributedTensor>{results->o, results->lse};
}

// Any function of operands, whatever way it returns its results.
template <typename Function>
TorchCall Call(Function function) {
  return [function](Operands x) { return List(function(x)); };
}
TorchCall Unary(TensorOr (*function)(const TensorOr&)) {
  return Call([function](Operands x) { return function(x[0]); });
}
TorchCall Binary(TensorOr (*function)(const TensorOr&, const TensorOr&)) {
  return Call([function](Operands x) { return function(x[0], x[1]); });
}
TorchCall Ternary(TensorOr (*function)(const TensorOr&, const TensorOr&, const TensorOr&)) {
  return Call([function](Operands x) { return function(x[0], x[1], x[2]); });
}

// "name", and with these endings.
std::vector<std::string> Names(const std::string& name,
                               const std::vector<absl::string_view>& endings) {
  std::vector<std::string> names = {name};
  for (const absl::string_view ending : endings) names.push_back(absl::StrCat(name, "_", ending));
  return names;
}

void AddProducts(std::vector<TorchCases>& all) {
  const auto product = static_cast<TensorOr (*)(const TensorOr&, const TensorOr&)>(Linear);
  const auto with_bias =
      static_cast<TensorOr (*)(const TensorOr&, const TensorOr&, const TensorOr&)>(Linear);
  all.push_back({Names("matmul", {"outer", "long", "batches", "broadcast", "empty"}),
                 &OpNamed("MatMul"), Binary(MatMul)});
  all.push_back({Names("linear", {"vector"}), &OpNamed("Linear"), Binary(product)});
  all.push_back({Names("linear_bias", {"empty"}), &OpNamed("Linear", 1), Ternary(with_bias)});
}

void AddEinsums(std::vector<TorchCases>& all) {
  const auto two = [&](const std::string& name, const char* rule, const LetterSizes& sizes = {}) {
    all.push_back({{name}, &OpNamed("Einsum"), Call([rule, sizes](Operands x) {
                     return Einsum(rule, x[0], x[1], sizes);
                   })});
  };
  const auto one = [&](const std::string& name, const char* rule, const LetterSizes& sizes = {}) {
    all.push_back({{name}, &OpNamed("Einsum", 1), Call([rule, sizes](Operands x) {
                     return Einsum(rule, x[0], sizes);
                   })});
  };
  two("einsum_scores", "b q h d, b k h d -> b h q k");
  two("einsum_values", "b h q k, b k h d -> b q h d");
  two("einsum_heads", "... i, (h d) i -> ... h d", {{"h", 3}});
  two("einsum_outer", "i, j -> j i");
  two("einsum_dots", "b i, b i -> b");
  two("einsum_apart", "i j k, l j -> k l");
  two("einsum_broadcast", "... i, ... i j -> ... j");
  two("einsum_two_sums", "i j k, k j l -> l i");
  two("einsum_scalar", "i j, j i -> ");
  two("einsum_empty", "i j, j k -> k i");
  one("einsum_permuted", "i j k -> k i j");
  one("einsum_summed", "i j k -> j");
  one("einsum_split", "t (h d) -> h t d", {{"h", 2}});
}

void AddArithmetic(std::vector<TorchCases>& all) {
  const auto scale_by = [](double factor) {
    return Call([factor](Operands x) { return Scale(x[0], factor); });
  };
  all.push_back({Names("add", {"broadcast", "ends", "integers"}), &OpNamed("Add"), Binary(Add)});
  all.push_back({Names("sub", {"broadcast", "ends", "integers", "scalar_tensor"}), &OpNamed("Sub"),
                 Binary(Sub)});
  all.push_back({Names("mul", {"broadcast", "ends", "integers"}), &OpNamed("Mul"), Binary(Mul)});
  all.push_back({Names("div", {"broadcast", "ends"}), &OpNamed("Div"), Binary(Div)});
  all.push_back({{"add_n"}, &OpNamed("AddN"), Call([](Operands x) { return AddN(x); })});
  all.push_back(
      {Names("maximum", {"ties", "ends", "integers"}), &OpNamed("Maximum"), Binary(Maximum)});
  all.push_back(
      {Names("minimum", {"ties", "ends", "integers"}), &OpNamed("Minimum"), Binary(Minimum)});
  all.push_back({Names("neg", {"integers"}), &OpNamed("Neg"), Unary(Neg)});
  all.push_back({{"scale"}, &OpNamed("Scale"), scale_by(-1.75)});
  all.push_back({{"scale_to_zero"}, &OpNamed("Scale"), scale_by(0)});
  all.push_back({{"add_scalar"}, &OpNamed("AddScalar"), Call([](Operands x) {
                   return AddScalar(x[0], .3);
                 })});
}

void AddFunctions(std::vector<TorchCases>& all) {
  const auto add = [&](const std::string& name, absl::string_view op, TorchCall call) {
    all.push_back({Names(name, {"special"}), &OpNamed(op), std::move(call)});
  };
  const auto gelu = [&](const std::string& name, GeluForm form) {
    add(name, "Gelu", Call([form](Operands x) { return Gelu(x[0], form); }));
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto clamp = [&](const std::string& name, double low, double high) {
    add(name, "Clamp", Call([=](Operands x) { return Clamp(x[0], low, high); }));
  };
  const auto pow = [&](const std::string& name, double exponent) {
    add(name, "Pow", Call([exponent](Operands x) { return Pow(x[0], exponent); }));
  };
  add("abs", "Abs", Unary(Abs));
  add("exp", "Exp", Unary(Exp));
  add("log", "Log", Unary(Log));
  add("sqrt", "Sqrt", Unary(Sqrt));
  add("rsqrt", "Rsqrt", Unary(Rsqrt));
  add("relu", "Relu", Unary(Relu));
  add("sigmoid", "Sigmoid", Unary(Sigmoid));
  add("tanh", "Tanh", Unary(Tanh));
  add("silu", "Silu", Unary(Silu));
  clamp("clamp", -.5, 1);
  clamp("clamp_low", 0, kInf);
  clamp("clamp_high", -kInf, .5);
  clamp("clamp_equal", 1, 1);
  gelu("gelu_erf", GeluForm::kErf);
  gelu("gelu_tanh", GeluForm::kTanh);
  pow("pow_0", 0);
  pow("pow_2", 2);
  pow("pow_3", 3);
  pow("pow_0.3", .3);
  pow("pow_half", .5);
  pow("pow_minus_half", -.5);
  pow("pow_minus_1.5", -1.5);
  all.push_back({Names("silu_mul", {"special"}), &OpNamed("SiluMul"), Binary(SiluMul)});
}

void AddComparisons(std::vector<TorchCases>& all) {
  const auto compare = [&](const std::string& name, absl::string_view op,
                           TensorOr (*function)(const TensorOr&, const TensorOr&)) {
    all.push_back({Names(name, {"ends", "integers"}), &OpNamed(op), Binary(function)});
  };
  const auto cast = [&](const std::string& name, size_t op, DType dtype) {
    all.push_back(
        {{name}, &OpNamed("Cast", op), Call([dtype](Operands x) { return Cast(x[0], dtype); })});
  };
  compare("equal", "Equal", Equal);
  compare("not_equal", "NotEqual", NotEqual);
  compare("less", "Less", Less);
  compare("less_equal", "LessEqual", LessEqual);
  compare("greater", "Greater", Greater);
  compare("greater_equal", "GreaterEqual", GreaterEqual);
  all.push_back({{"logical_and"}, &OpNamed("LogicalAnd"), Binary(LogicalAnd)});
  all.push_back({{"logical_or"}, &OpNamed("LogicalOr"), Binary(LogicalOr)});
  all.push_back({{"logical_not"}, &OpNamed("LogicalNot"), Unary(LogicalNot)});
  all.push_back(
      {Names("where", {"broadcast", "ends", "integers"}), &OpNamed("Where"), Ternary(Where)});
  all.push_back({Names("clone", {"integers"}), &OpNamed("Clone"), Unary(Clone)});
  cast("cast_bf16", 0, DType::kBF16);
  cast("cast_f32", 0, DType::kF32);
  cast("cast_i32", 1, DType::kI32);
  cast("cast_from_i64", 1, DType::kF64);
}

void AddRows(std::vector<TorchCases>& all) {
  const auto rms_norm = [](double eps) {
    return Call([eps](Operands x) { return RmsNorm(x[0], x[1], eps); });
  };
  all.push_back({Names("softmax", {"masked", "apart"}), &OpNamed("Softmax"), Unary(Softmax)});
  all.push_back(
      {Names("log_softmax", {"masked", "apart"}), &OpNamed("LogSoftmax"), Unary(LogSoftmax)});
  all.push_back({Names("rms_norm", {"long", "empty"}), &OpNamed("RmsNorm"), rms_norm(1e-5)});
  all.push_back({{"rms_norm_zeros"}, &OpNamed("RmsNorm"), rms_norm(1e-3)});
  all.push_back({Names("layer_norm", {"far", "empty"}), &OpNamed("LayerNorm"),
                 Call([](Operands x) { return LayerNorm(x[0], x[1], x[2], 1e-5); })});
}

void AddReductions(std::vector<TorchCases>& all) {
  using Reduction = TensorOr (*)(const TensorOr&, absl::Span<const int>);
  const auto add = [&](const std::vector<std::string>& names, absl::string_view op,
                       Reduction reduction, std::vector<int> dims) {
    all.push_back({names, &OpNamed(op),
                   Call([reduction, dims](Operands x) { return reduction(x[0], dims); })});
  };
  const std::pair<std::string, std::vector<int>> ways[] = {
      {"1", {1}}, {"0_2", {0, -1}}, {"all", {2, 0, 1}}};
  for (const auto& [way, dims] : ways) {
    add({"sum_" + way}, "Sum", Sum, dims);
    add({"mean_" + way}, "Mean", Mean, dims);
    add({"max_" + way, "max_ties_" + way}, "Max", Max, dims);
    add({"min_" + way, "min_ties_" + way}, "Min", Min, dims);
  }
  add({"sum_empty", "sum_integers"}, "Sum", Sum, {1});
  add({"mean_empty"}, "Mean", Mean, {1});
  add({"max_ends", "max_integers"}, "Max", Max, {1});
  add({"min_ends", "min_integers"}, "Min", Min, {1});
  const auto arg_max = [&](const std::vector<std::string>& names, int dim) {
    all.push_back(
        {names, &OpNamed("ArgMax"), Call([dim](Operands x) { return ArgMax(x[0], dim); })});
  };
  arg_max({"argmax", "argmax_integers"}, 1);
  arg_max({"argmax_ties"}, 0);
  arg_max({"argmax_ends"}, -1);
  const auto top = [&](const std::string& name, int64_t k) {
    all.push_back({{name}, &OpNamed("TopK"), Call([k](Operands x) { return TopK(x[0], k); })});
  };
  top("topk", 2);
  top("topk_all", 7);
  top("topk_vector", 1);
  all.push_back({{"take_along_dim", "take_along_dim_vector"},
                 &OpNamed("TakeAlongDim"),
                 Call([](Operands x) { return TakeAlongDim(x[0], x[1]); })});
  all.push_back({{"take_along_dim_rows"}, &OpNamed("TakeAlongDim"), Call([](Operands x) {
                   return TakeAlongDim(x[0], x[1], 0);
                 })});
  all.push_back({{"take_along_dim_middle"}, &OpNamed("TakeAlongDim"), Call([](Operands x) {
                   return TakeAlongDim(x[0], x[1], -2);
                 })});
  all.push_back({{"sum_of_squares"}, &OpNamed("SumOfSquares"), Unary(SumOfSquares)});
}

void AddViews(std::vector<TorchCases>& all) {
  const auto add = [&](const std::string& name, const OpDef& op, auto function) {
    all.push_back({{name}, &op, Call(function)});
  };
  add("reshape", OpNamed("Reshape"), [](Operands x) { return Reshape(x[0], {3, -1}); });
  add("transpose", OpNamed("Transpose"), [](Operands x) { return Transpose(x[0], 0, 2); });
  add("permute", OpNamed("Transpose"), [](Operands x) { return Permute(x[0], {2, 0, 1}); });
  add("expand", OpNamed("Expand"), [](Operands x) { return Expand(x[0], {2, 3, 4}); });
  add("slice", OpNamed("Slice"), [](Operands x) { return Slice(x[0], 1, 1, 4); });
  add("slice_rows", OpNamed("Slice"), [](Operands x) { return Slice(x[0], 0, 4, 8); });
  add("split", OpNamed("SplitTensor"), [](Operands x) { return SplitTensor(x[0], 1, {2, 0, 4}); });
  add("concat", OpNamed("Concat"), [](Operands x) { return Concat(x, 1); });
  add("concat_empty", OpNamed("Concat"), [](Operands x) { return Concat(x, 1); });
  add("concat_integers", OpNamed("Concat"), [](Operands x) { return Concat(x, 1); });
  add("concat_rows", OpNamed("Concat"), [](Operands x) { return Concat(x, 0); });
  add("stack", OpNamed("Stack"), [](Operands x) { return Stack(x, 1); });
  add("pad", OpNamed("Pad"), [](Operands x) { return Pad(x[0], 1, 2, 1); });
  add("pad_rows_with", OpNamed("Pad", 1), [](Operands x) { return Pad(x[0], 0, 4, 2, -1.5); });
}

void AddWindows(std::vector<TorchCases>& all) {
  const auto add = [&](const std::string& name, auto function) {
    all.push_back({{name}, &OpNamed("Windows"), Call(function)});
  };
  const auto conv = [&](const std::string& name, const ConvOptions& options) {
    add(name, [options](Operands x) { return Conv(x[0], x[1], options); });
  };
  add("windows", [](Operands x) { return Windows(x[0], 1, -1, {.size = 3, .before = 1}); });
  all.push_back({{"windows_with"}, &OpNamed("Windows", 1), Call([](Operands x) {
                   const WindowOptions options = {.size = 3, .step = 2, .before = 2, .value = 1.5};
                   return Slice(Windows(Pad(x[0], 1, 0, 1, 1.5), 1, -1, options), 1, 0, 3);
                 })});
  conv("conv", {});
  conv("conv_same", {.before = {1}, .after = {1}});
  conv("conv_strided", {.stride = {2, 3}, .before = {3, 1}, .after = {3, 1}});
  conv("conv_dilated", {.before = {2, 1}, .after = {2, 1}, .dilation = {2, 1}});
  conv("conv_wide", {.before = {4}, .after = {4}});
  conv("conv_grouped", {.before = {1}, .after = {1}, .groups = 2});
  conv("conv_depthwise", {.before = {1}, .after = {1}, .groups = 4});
  conv("conv_points", {});
  conv("conv_points_strided", {.stride = {2}});
  conv("conv_patches", {.stride = {2}});
  conv("conv_volumes", {.stride = {1, 2, 1}, .before = {1}, .after = {1}});
  conv("conv_causal", {.before = {4}, .dilation = {2}});
  const PoolOptions overlapping = {.size = {3, 3}, .stride = {2}, .before = {1}, .after = {1}};
  add("max_pool", [overlapping](Operands x) { return MaxPool(x[0], overlapping); });
  add("max_pool_whole", [](Operands x) { return MaxPool(x[0], {.size = {2}}); });
  const PoolOptions average = {.size = {2, 3}, .stride = {2, 1}, .before = {1}, .after = {1}};
  add("average_pool", [average](Operands x) { return AveragePool(x[0], average); });
}

void AddPositions(std::vector<TorchCases>& all) {
  const auto add = [&](const std::vector<std::string>& names, const OpDef& op, auto function) {
    all.push_back({names, &op, Call(function)});
  };
  add({"cumsum", "cumsum_integers"}, OpNamed("CumSum"), [](Operands x) { return CumSum(x[0], 1); });
  add({"cumsum_rows"}, OpNamed("CumSum"), [](Operands x) { return CumSum(x[0], 0); });
  add({"tril"}, OpNamed("Where"), [](Operands x) { return Tril(x[0]); });
  add({"tril_below"}, OpNamed("Where"), [](Operands x) { return Tril(x[0], -1); });
  add({"triu"}, OpNamed("Where"), [](Operands x) { return Triu(x[0], 1); });
  add({"one_hot"}, OpNamed("Equal"), [](Operands x) { return OneHot(x[0], 5, DType::kF64); });
  add({"index_select"}, OpNamed("Embedding"),
      [](Operands x) { return IndexSelect(x[0], 1, x[1]); });
  add({"index_select_rows"}, OpNamed("Embedding"),
      [](Operands x) { return IndexSelect(x[0], 0, x[1]); });
}

void AddAttention(std::vector<TorchCases>& all) {
  const auto add = [&](const std::vector<std::string>& names, const AttentionOptions& options) {
    all.push_back({names, &OpNamed("Attention"),
                   Call([options](Operands x) { return Attention(x[0], x[1], x[2], options); })});
  };
  const AttentionMask full = AttentionMask::Full();
  add({"attention_full"}, {.mask = full});
  add({"attention_causal", "attention_grouped", "attention_longer_keys", "attention_no_key"}, {});
  add({"attention_scale"}, {.mask = full, .scale = .3});
  add({"attention_window"}, {.mask = AttentionMask::Window(2).value()});
  add({"attention_prefix"}, {.mask = AttentionMask::Prefix(3).value()});
  add({"attention_documents"}, {.mask = AttentionMask::Documents({0, 2}).value()});
  add({"attention_offset"}, {.query_offset = 1});
  all.push_back(
      {{"attention_lse", "attention_lse_gradient"}, &OpNamed("Attention"), Call([full](Operands x) {
         return AttentionWithLse(x[0], x[1], x[2], {.mask = full});
       })});
  all.push_back(
      {{"attention_sinks", "attention_sinks_far"}, &OpNamed("Attention"), Call([full](Operands x) {
         return AttentionWithSinks(x[0], x[1], x[2], x[3], {.mask = full});
       })});
  all.push_back({{"attention_key_lengths", "attention_key_lengths_few"},
                 &OpNamed("Attention"),
                 Call([full](Operands x) {
                   return Attention(x[0], x[1], x[2], {.mask = full, .key_lengths = *x[3]});
                 })});
}

void AddTransformers(std::vector<TorchCases>& all) {
  const auto rope = [&](const std::string& name, double theta, int64_t offset) {
    all.push_back({{name}, &OpNamed("Rope"), Call([theta, offset](Operands x) {
                     return Rope(x[0], theta, offset);
                   })});
  };
  const auto losses = [&](const std::vector<std::string>& names,
                          const CrossEntropyOptions& options) {
    all.push_back({names, &OpNamed("CrossEntropy"),
                   Call([options](Operands x) { return CrossEntropy(x[0], x[1], options); })});
  };
  const auto mean = [&](const std::vector<std::string>& names, const CrossEntropyOptions& options) {
    all.push_back({names, &OpNamed("CrossEntropyMean"),
                   Call([options](Operands x) { return CrossEntropyMean(x[0], x[1], options); })});
  };
  all.push_back({{"embedding"}, &OpNamed("Embedding"), Binary(Embedding)});
  rope("rope", 100, 0);
  rope("rope_offset", 10000, 7);
  AddAttention(all);
  losses(Names("cross_entropy", {"apart", "ignored"}), {});
  losses({"cross_entropy_ignored_class"}, {.ignore = 1});
  losses({"cross_entropy_smoothed"}, {.label_smoothing = .3});
  losses({"cross_entropy_all_smooth"}, {.label_smoothing = 1});
  losses({"cross_entropy_padded"}, {.classes = 5});
  losses({"cross_entropy_padded_smoothed"}, {.label_smoothing = .1, .classes = 5});
  mean(Names("cross_entropy_mean", {"empty", "of_none"}), {});
  mean({"cross_entropy_mean_ignored"}, {.label_smoothing = .2});
  const auto bincount = [&](const char* name, int64_t n) {
    all.push_back({{name}, &OpNamed("Bincount"), Call([n](Operands x) {
                     return Bincount(x[0], n, DType::kF64);
                   })});
  };
  bincount("bincount", 5);
  bincount("bincount_of_others", 4);
  bincount("bincount_empty", 3);
  all.push_back({Names("expert_mlp", {"one", "all", "twice", "vector", "empty"}),
                 &OpNamed("ExpertMlp"),
                 Call([](Operands x) { return ExpertMlp(x[0], x[1], x[2], x[3], x[4], x[5]); })});
  all.push_back({Names("clamped_expert_mlp", {"idle", "vector", "empty"}),
                 &OpNamed("ClampedExpertMlp"), Call([](Operands x) {
                   return ClampedExpertMlp(x[0], x[1], x[2], x[3], x[4], x[5], x[6], {1.5, 0.8});
                 })});
}

}  // namespace

std::vector<TorchCases> AllTorchCases() {
  std::vector<TorchCases> all;
  AddProducts(all);
  AddEinsums(all);
  AddArithmetic(all);
  AddFunctions(all);
  AddComparisons(all);
  AddRows(all);
  AddReductions(all);
  AddViews(all);
  AddWindows(all);
  AddPositions(all);
  AddTransformers(all);
  return all;
}

}  // namespace dtensor
