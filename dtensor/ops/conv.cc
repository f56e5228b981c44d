// Convolutions and pooling: windows along each dimension, and then a product, or a reduction, of
// each window.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/windows.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace {

// How windows move along one dimension.
struct Move {
  int64_t size = 1, stride = 1, before = 0, after = 0, dilation = 1;
  bool is_identity() const { return size == 1 && stride == 1 && before == 0 && after == 0; }
};

absl::Status CheckMove(absl::string_view op, const DistributedTensor& x, int dim, const Move& m) {
  const auto is_size = [](int64_t number) { return 1 <= number && number <= kMaxElements; };
  const bool fits = is_size(m.size) && is_size(m.stride) && is_size(m.dilation) && 0 <= m.before &&
                    m.before <= kMaxElements && 0 <= m.after && m.after <= kMaxElements &&
                    m.size - 1 <= kMaxElements / m.dilation;
  if (!fits) {
    return InvalidArgument({op, ": a window of ", absl::StrCat(m.size), ", stride ",
                            absl::StrCat(m.stride), ", ", absl::StrCat(m.before), " before and ",
                            absl::StrCat(m.after), " after, dilation ", absl::StrCat(m.dilation),
                            ", for ", x.ToString(), "; give sizes, strides and dilations of at ",
                            "least 1, no negative numbers, and 2^56 at most"});
  }
  const int64_t reach = (m.size - 1) * m.dilation + 1, all = x.shape()[dim] + m.before + m.after;
  if (all > kMaxElements) {
    return InvalidArgument({op, ": dimension ", absl::StrCat(dim), " of ", x.ToString(),
                            " with what lies before and after it has ", absl::StrCat(all),
                            " elements; give smaller numbers"});
  }
  if (all >= reach) return absl::OkStatus();
  return InvalidArgument({op, ": a window reaches over ", absl::StrCat(reach),
                          " elements, and dimension ", absl::StrCat(dim), " of ", x.ToString(),
                          " has, with what lies before and after it, ", absl::StrCat(all),
                          "; give a smaller window, or pad more"});
}

// One number for each of `count` dimensions.
absl::StatusOr<std::vector<int64_t>> ForEachDim(absl::string_view op, absl::string_view what,
                                                const std::vector<int64_t>& given, size_t count,
                                                int64_t otherwise) {
  if (given.size() == count) return given;
  if (given.size() <= 1) {
    return std::vector<int64_t>(count, given.empty() ? otherwise : given[0]);
  }
  return InvalidArgument({op, ": ", what, " has ", absl::StrCat(given.size()),
                          " numbers for windows of ", absl::StrCat(count),
                          " dimensions; give one for each, or one for all"});
}

absl::StatusOr<std::vector<Move>> MovesOf(absl::string_view op, const std::vector<int64_t>& sizes,
                                          const ConvOptions& options) {
  std::vector<Move> moves(sizes.size());
  const size_t count = sizes.size();
  DT_ASSIGN_OR_RETURN(const auto stride, ForEachDim(op, "stride", options.stride, count, 1));
  DT_ASSIGN_OR_RETURN(const auto before, ForEachDim(op, "before", options.before, count, 0));
  DT_ASSIGN_OR_RETURN(const auto after, ForEachDim(op, "after", options.after, count, 0));
  DT_ASSIGN_OR_RETURN(const auto dilation, ForEachDim(op, "dilation", options.dilation, count, 1));
  for (size_t i = 0; i < count; ++i) {
    moves[i] = {sizes[i], stride[i], before[i], after[i], dilation[i]};
  }
  return moves;
}

// How many windows fit into a dimension of n elements.
int64_t Fit(int64_t n, const Move& m) {
  return (n + m.before + m.after - (m.size - 1) * m.dilation - 1) / m.stride + 1;
}

// The windows of one dimension; the new dimension is number `at`. Windows has one for each step of
// x, so x is padded if fewer than fit. If they are more, the others are empty, and CutTo cuts what
// is made of them.
TensorOr WindowsOf(const TensorOr& x, int dim, int at, const Move& m, double value) {
  const int64_t n = x->shape()[dim], fit = Fit(n, m);
  const int64_t made = std::max(fit, (n + m.stride - 1) / m.stride);
  const int64_t step = made == 1 ? std::max<int64_t>(n, 1) : m.stride;  // of one, any will do
  const TensorOr padded = Pad(x, dim, 0, made * step - n, value);
  const WindowOptions options = {.size = m.size,
                                 .step = step,
                                 .before = m.before,
                                 .dilation = m.dilation,
                                 .limit = fit,
                                 .value = value};
  return Windows(padded, dim, at, options);
}

// The windows along the dimensions from `first` on: x [..., n..., c] gives [..., o..., k..., c].
// Dimensions along which nothing moves get no window.
TensorOr WindowsOfAll(absl::string_view op, const DistributedTensor& x,
                      const std::vector<Move>& moves, double value) {
  const int count = static_cast<int>(moves.size());
  const int first = x.spec().ndim() - 1 - count;
  if (first < 0) {
    return InvalidArgument({op, ": windows of ", absl::StrCat(count), " dimensions of ",
                            x.ToString(), "; give [..., n..., c], features last"});
  }
  for (int i = 0; i < count; ++i) DT_RETURN_IF_ERROR(CheckMove(op, x, first + i, moves[i]));
  // Sharded dimensions first: their halos are of x then, and not of windows, which are larger. Then
  // the last: what is copied together grows with each.
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  absl::c_stable_partition(order, [&](int i) { return IsSplit(x.layout().dim(first + i)); });
  TensorOr windows = x;
  std::vector<int> made;
  for (const int i : order) {
    if (moves[i].is_identity()) continue;
    const auto before = absl::c_count_if(made, [&](int other) { return other < i; });
    windows =
        WindowsOf(windows, first + i, first + count + static_cast<int>(before), moves[i], value);
    DT_RETURN_IF_ERROR(windows.status());
    made.push_back(i);
  }
  return windows;
}

// y [..., o..., f] without what was made of windows that do not fit into x [..., n..., c].
TensorOr CutTo(TensorOr y, const DistributedTensor& x, const std::vector<Move>& moves) {
  const int first = x.spec().ndim() - 1 - static_cast<int>(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    const int dim = first + static_cast<int>(i);
    y = Slice(y, dim, 0, Fit(x.shape()[dim], moves[i]));
  }
  return y;
}

// The letters of the windows' own dimensions: "k0 k1".
std::string WindowLetters(const std::vector<Move>& moves) {
  std::vector<std::string> letters;
  for (size_t i = 0; i < moves.size(); ++i) {
    if (!moves[i].is_identity()) letters.push_back(absl::StrCat("k", i));
  }
  return absl::StrJoin(letters, " ");
}

// The weight [f, c, k...] without the k along which nothing moves, which are 1.
TensorOr WithoutIdentities(const TensorOr& weight, const std::vector<Move>& moves) {
  Dims shape = {weight->shape()[0], weight->shape()[1]};
  for (const Move& move : moves) {
    if (!move.is_identity()) shape.push_back(move.size);
  }
  return shape == weight->shape() ? weight : Reshape(weight, shape);
}

// Operands that are refused before anything moves: of unlike types, or no floats.
absl::Status CheckFloats(const char* op, std::initializer_list<const DistributedTensor*> operands) {
  std::vector<const Spec*> specs;
  for (const DistributedTensor* operand : operands) specs.push_back(&operand->spec());
  return OpDef{.name = op, .types = TypeSet::Floats()}.CheckTypes(specs);
}

// The sum over k... of windows [..., k..., c] times weight [c, 1, k...]: each feature by itself. A
// product for each feature would have one column. In f32 for 16-bit types, as products are.
TensorOr Depthwise(const TensorOr& windows, const TensorOr& weight) {
  std::vector<int> order, dims;
  const int count = weight->spec().ndim() - 2, first = windows->spec().ndim() - 1 - count;
  for (int i = 0; i < count; ++i) {
    order.push_back(2 + i);
    dims.push_back(first + i);
  }
  order.insert(order.end(), {1, 0});
  const TensorOr features_last = Permute(weight, order);
  DT_RETURN_IF_ERROR(features_last.status());
  Dims shape = features_last->shape();
  shape.erase(shape.end() - 2);
  const DType wide = AccumulatorOf(windows->dtype());
  const TensorOr products = Mul(Cast(windows, wide), Cast(Reshape(features_last, shape), wide));
  return Cast(Sum(products, dims), windows->dtype());
}

// The product of windows [..., k..., c] and weight [f, c / groups, k...].
TensorOr Product(const TensorOr& windows, const TensorOr& weight, const std::string& k,
                 int64_t groups) {
  if (groups == 1) {
    return Einsum(absl::StrCat("... ", k, " c, f c ", k, " -> ... f"), windows, weight);
  }
  if (weight->shape()[0] == groups && weight->shape()[1] == 1) return Depthwise(windows, weight);
  return Einsum(absl::StrCat("... ", k, " (g c), (g f) c ", k, " -> ... (g f)"), windows, weight,
                {{"g", groups}});
}

absl::Status CheckWeight(const DistributedTensor& x, const DistributedTensor& weight,
                         int64_t groups) {
  const Dims& shape = weight.shape();
  if (&x.context() != &weight.context() || x.mesh() != weight.mesh()) {
    return InvalidArgument({"Conv: x, ", x.ToString(), ", and the weight, ", weight.ToString(),
                            ", are on two meshes, or of two Contexts; Redistribute one of them"});
  }
  if (shape.size() < 3) {
    return InvalidArgument({"Conv: the weight is ", weight.ToString(),
                            "; give [f, c / groups, k...] with at least one k"});
  }
  const int64_t c = x.shape().empty() ? 0 : x.shape().back();
  const bool fits = groups >= 1 && shape[0] % groups == 0 && c % groups == 0;
  if (fits && shape[1] == c / groups) return absl::OkStatus();
  return InvalidArgument({"Conv: x is ", x.ToString(), ", the weight ", weight.ToString(),
                          ", and there are ", absl::StrCat(groups), " groups; give x [..., n..., ",
                          "c] and a weight [f, c / groups, k...], of whose f groups is a divisor"});
}

// The largest, or the average, of each window.
TensorOr Pool(const char* op, const TensorOr& x, const PoolOptions& options, double outside,
              TensorOr (*reduce)(const TensorOr&, absl::Span<const int>)) {
  DT_RETURN_IF_ERROR(internal::CheckDefined(op, x));
  DT_RETURN_IF_ERROR(CheckFloats(op, {&*x}));
  if (options.size.empty()) {
    return InvalidArgument({op, ": there is no window for ", x->ToString(),
                            "; give its size, one number for each dimension that it moves along"});
  }
  const std::vector<int64_t>& stride = options.stride.empty() ? options.size : options.stride;
  DT_ASSIGN_OR_RETURN(
      const std::vector<Move> moves,
      MovesOf(op, options.size,
              {.stride = stride, .before = options.before, .after = options.after}));
  const TensorOr windows = WindowsOfAll(op, *x, moves, outside);
  DT_RETURN_IF_ERROR(windows.status());
  std::vector<int> dims;
  const int last = windows->spec().ndim() - 1;
  for (int d = x->spec().ndim() - 1; d < last; ++d) dims.push_back(d);
  return CutTo(reduce(windows, dims), *x, moves);
}

}  // namespace

TensorOr Conv(const TensorOr& x, const TensorOr& weight, const ConvOptions& options) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Conv", x));
  DT_RETURN_IF_ERROR(internal::CheckDefined("Conv", weight));
  DT_RETURN_IF_ERROR(CheckFloats("Conv", {&*x, &*weight}));
  DT_RETURN_IF_ERROR(CheckWeight(*x, *weight, options.groups));
  const std::vector<int64_t> sizes(weight->shape().begin() + 2, weight->shape().end());
  DT_ASSIGN_OR_RETURN(const std::vector<Move> moves, MovesOf("Conv", sizes, options));
  const TensorOr windows = WindowsOfAll("Conv", *x, moves, 0);
  DT_RETURN_IF_ERROR(windows.status());
  const TensorOr w = WithoutIdentities(weight, moves);
  DT_RETURN_IF_ERROR(w.status());
  return CutTo(Product(windows, w, WindowLetters(moves), options.groups), *x, moves);
}

TensorOr MaxPool(const TensorOr& x, const PoolOptions& options) {
  return Pool("MaxPool", x, options, -std::numeric_limits<double>::infinity(), Max);
}

TensorOr AveragePool(const TensorOr& x, const PoolOptions& options) {
  return Pool("AveragePool", x, options, 0, Mean);
}

}  // namespace dtensor
