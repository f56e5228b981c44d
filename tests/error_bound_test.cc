// Law 4, its second half (the first: exact_integers_test.cc): the errors of sums obey a bound that
// does not grow with the number of ranks. Every bound below is one number for all rank counts. The
// test also shows that a sum kept in 16 bits on its way from rank to rank breaks the bound.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using Values = std::vector<double>;

// Half the distance from 1 to the next number: the relative error of one rounding.
double Roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

template <typename T>
T Narrow(double value) {
  if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

double RoundedTo(DType dtype, double value) {
  return VisitDType(dtype, [&](auto zero) {
    const auto rounded = Narrow<decltype(zero)>(value);
    if constexpr (sizeof(zero) == 2)
      return static_cast<double>(static_cast<float>(rounded));
    else
      return static_cast<double>(rounded);
  });
}

absl::StatusOr<Values> Read(const DistributedTensor& tensor) {
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
  return ToGlobal<double>(wide);
}

// The largest |got - exact| / size, where `size` is what the sum of absolute values would be.
double Worst(const Values& got, const Values& exact, const Values& size) {
  double worst = got.size() == exact.size() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < got.size() && i < exact.size(); ++i)
    worst = std::max(worst, std::abs(got[i] - exact[i]) / size[i]);
  return worst;
}

// --- Redistribution: a Partial tensor with a term on each rank.

constexpr int64_t kElements = 1000;

// Numbers of `dtype` between 1 and 2: of one sign, so that no sum cancels.
double Term(DType dtype, int rank, int64_t i) {
  const uint64_t hash = (static_cast<uint64_t>(rank) * kElements + i + 1) * 0x9e3779b97f4a7c15u;
  return RoundedTo(dtype, 1 + static_cast<double>(hash >> 12) * 0x1p-52);
}

// The sums over `ranks` terms, in a type wider than all that are tested.
Values ExactSums(DType dtype, int ranks) {
  Values sums;
  for (int64_t i = 0; i < kElements; ++i) {
    long double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += Term(dtype, rank, i);
    sums.push_back(static_cast<double>(sum));
  }
  return sums;
}

// The same, but the sum is rounded to `kept` whenever a term has been added.
Values SumsKeptIn(DType kept, DType dtype, int ranks) {
  Values sums(kElements, 0.0);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int64_t i = 0; i < kElements; ++i)
      sums[i] = RoundedTo(kept, sums[i] + Term(dtype, rank, i));
  }
  return sums;
}

template <typename T>
TensorOr PartialTensor(Context& context, const Layout& layout, const std::vector<T>& mine) {
  const Dims shape = {static_cast<int64_t>(mine.size())};
  DT_ASSIGN_OR_RETURN(Tensor local, FromHost<T>(context.device(), mine, shape));
  return FromLocal(context, layout, shape, std::move(local));
}

TensorOr TermOfThisRank(Context& context, const Layout& layout, DType dtype) {
  return VisitDType(dtype, [&](auto zero) -> TensorOr {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      return InvalidArgument({"bools have no sum"});
    } else {
      std::vector<T> mine;
      for (int64_t i = 0; i < kElements; ++i)
        mine.push_back(Narrow<T>(Term(dtype, context.rank(), i)));
      return PartialTensor(context, layout, mine);
    }
  });
}

absl::StatusOr<Values> Redistributed(const DeviceMesh& mesh, absl::string_view target,
                                     DType dtype) {
  Values got;
  DT_RETURN_IF_ERROR(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
    AxisList all;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) all.push_back(axis);
    DT_ASSIGN_OR_RETURN(const Layout partial, Layout::Replicated(mesh, 1).WithPartial(all));
    DT_ASSIGN_OR_RETURN(const Layout to, Layout::Parse(mesh, target));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, TermOfThisRank(context, partial, dtype));
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, x.Redistribute(to));
    DT_ASSIGN_OR_RETURN(Values values, Read(y));
    if (context.rank() == 0) got = std::move(values);
    return absl::OkStatus();
  }));
  return got;
}

// In 16 bits: one rounding, at the end, and what f32 adds to it. In f32 and f64 the additions
// themselves round, up to seven times here; their errors are as often up as down.
double BoundOfSums(DType dtype) {
  return (dtype == DType::kF32 || dtype == DType::kF64 ? 3 : 1.001) * Roundoff(dtype);
}

constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};

TEST(ErrorBound, OfRedistributedSums) {
  for (const DType dtype : kFloats) {
    for (const std::string text : {"a=1", "a=2", "a=3", "a=4", "a=8", "a=2,b=4"}) {
      DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(text));
      const Values exact = ExactSums(dtype, mesh.size());
      for (const std::string target : {"[]", "[a]"}) {
        DT_ASSERT_OK_AND_ASSIGN(const Values got, Redistributed(mesh, target, dtype));
        EXPECT_LE(Worst(got, exact, exact), BoundOfSums(dtype))
            << ToString(dtype) << " on " << text << " to " << target;
      }
    }
  }
}

// What it would be if each rank added its term to a sum of the tensor's own 16 bits, or a sum of
// doubles were kept in f32.
TEST(ErrorBound, IsBrokenByANarrowSum) {
  for (const auto& [dtype, kept] : {std::pair(DType::kBF16, DType::kBF16),
                                    {DType::kF16, DType::kF16},
                                    {DType::kF64, DType::kF32}}) {
    const Values exact = ExactSums(dtype, 8);
    EXPECT_GT(Worst(SumsKeptIn(kept, dtype, 8), exact, exact), 1.5 * BoundOfSums(dtype))
        << ToString(dtype);
  }
}

// Integers are added as integers: no float has these sums.
TEST(ErrorBound, OfIntegerSumsIsZero) {
  constexpr int64_t kBig = (int64_t{1} << 60) + 1;
  DT_ASSERT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=4"));
    DT_ASSIGN_OR_RETURN(const Layout partial, Layout::Parse(mesh, "[] P(sum: a)"));
    const std::vector<int64_t> mine(5, kBig + context.rank());
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, PartialTensor(context, partial, mine));
    EXPECT_THAT(ToGlobal<int64_t>(x), IsOkAndHolds(std::vector<int64_t>(5, 4 * kBig + 6)));
    return absl::OkStatus();
  }));
}

// --- Operators on one axis "tp" of p ranks.

constexpr int kRankCounts[] = {1, 2, 3, 4, 8};
constexpr int64_t kRows = 48, kIn = 96, kOut = 40;

// Positive for the most part, so that sums hardly cancel.
TensorOr Operand(Context& context, const DeviceMesh& mesh, const Placement& placement,
                 absl::Span<const int64_t> shape, DType dtype, uint64_t stream) {
  return RandomNormal(context, mesh, {placement}, shape,
                      {.seed = 5, .stream = stream, .mean = 1, .stddev = 0.5, .dtype = dtype});
}

struct Product {
  Values y, dx, dw, sum;  // y = x w^T [rows, out]; sum: of x over its rows
};

struct Placed {
  const char* name;
  Placement x, w, y;
};
const Placed kPlaced[] = {{"Colwise", Replicate(), Shard(0), Shard(1)},
                          {"Rowwise, all-reduce", Shard(1), Shard(1), Replicate()},
                          {"Rowwise, reduce-scatter", Shard(1), Shard(1), Shard(0)},
                          {"DataParallel", Shard(0), Replicate(), Shard(0)}};

absl::StatusOr<Product> Compute(Context& context, int ranks, const Placed& placed, DType dtype) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("tp=", ranks)));
  DT_ASSIGN_OR_RETURN(DistributedTensor x,
                      Operand(context, mesh, placed.x, {kRows, kIn}, dtype, 1));
  DT_ASSIGN_OR_RETURN(DistributedTensor w, Operand(context, mesh, placed.w, {kOut, kIn}, dtype, 2));
  DT_ASSIGN_OR_RETURN(const DistributedTensor dy,
                      Operand(context, mesh, placed.y, {kRows, kOut}, dtype, 3));
  for (DistributedTensor* leaf : {&x, &w}) DT_RETURN_IF_ERROR(leaf->set_requires_grad(true));
  DT_ASSIGN_OR_RETURN(const DistributedTensor product, Linear(x, w));
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, product.Redistribute({placed.y}));
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, dy), {0, 1})));
  DT_RETURN_IF_ERROR(ReduceGradients({x, w}));
  Product out;
  DT_ASSIGN_OR_RETURN(out.y, Read(y));
  DT_ASSIGN_OR_RETURN(out.dx, Read(x.grad()));
  DT_ASSIGN_OR_RETURN(out.dw, Read(w.grad()));
  DT_ASSIGN_OR_RETURN(const DistributedTensor sum, Sum(x.Detach(), {0}));
  DT_ASSIGN_OR_RETURN(out.sum, Read(sum));
  return out;
}

Product OnRanks(int ranks, const Placed& placed, DType dtype) {
  Product product;
  DT_EXPECT_OK(RunRanks(ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(Product mine, Compute(context, ranks, placed, dtype));
    if (context.rank() == 0) product = std::move(mine);
    return absl::OkStatus();
  }));
  return product;
}

struct Inputs {
  Values x, w, dy;
};

Inputs InputsOf(DType dtype) {
  Inputs inputs;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const auto read = [&](std::vector<int64_t> shape, uint64_t stream) -> absl::StatusOr<Values> {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
      DT_ASSIGN_OR_RETURN(const DistributedTensor values,
                          Operand(context, mesh, Replicate(), shape, dtype, stream));
      return Read(values);
    };
    DT_ASSIGN_OR_RETURN(inputs.x, read({kRows, kIn}, 1));
    DT_ASSIGN_OR_RETURN(inputs.w, read({kOut, kIn}, 2));
    DT_ASSIGN_OR_RETURN(inputs.dy, read({kRows, kOut}, 3));
    return absl::OkStatus();
  }));
  return inputs;
}

// In f64 on one rank, of the rounded inputs; `of` takes each factor (identity, or its size).
Product Exact(const Inputs& in, const std::function<double(double)>& of) {
  Product out = {Values(kRows * kOut, 0.0), Values(kRows * kIn, 0.0), Values(kOut * kIn, 0.0),
                 Values(kIn, 0.0)};
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t k = 0; k < kIn; ++k) {
      out.sum[k] += of(in.x[r * kIn + k]);
      for (int64_t n = 0; n < kOut; ++n) {
        const double x = of(in.x[r * kIn + k]), w = of(in.w[n * kIn + k]),
                     dy = of(in.dy[r * kOut + n]);
        out.y[r * kOut + n] += x * w;
        out.dx[r * kIn + k] += dy * w;
        out.dw[n * kIn + k] += dy * x;
      }
    }
  }
  return out;
}

double Worst(const Product& got, const Product& exact, const Product& size) {
  return std::max({Worst(got.y, exact.y, size.y), Worst(got.dx, exact.dx, size.dx),
                   Worst(got.dw, exact.dw, size.dw), Worst(got.sum, exact.sum, size.sum)});
}

// In bf16 each rank's term is rounded, then their sum: two roundings, whatever the number of ranks.
// In f32 the product's own additions round; more ranks make its sums shorter.
double BoundOfProducts(DType dtype) { return (dtype == DType::kF32 ? 16 : 2.01) * Roundoff(dtype); }

TEST(ErrorBound, OfLinearLayersTheirGradientsAndSums) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Inputs inputs = InputsOf(dtype);
    const Product exact = Exact(inputs, [](double x) { return x; });
    const Product size = Exact(inputs, [](double x) { return std::abs(x); });
    for (const Placed& placed : kPlaced) {
      for (const int ranks : kRankCounts) {
        EXPECT_LE(Worst(OnRanks(ranks, placed, dtype), exact, size), BoundOfProducts(dtype))
            << placed.name << " in " << ToString(dtype) << " on " << ranks << " ranks";
      }
    }
  }
}

// x w^T as `ranks` ranks that each add their bf16 term to a bf16 sum would give it.
Values WithNarrowSums(const Inputs& in, int ranks) {
  Values y(kRows * kOut, 0.0);
  const int64_t chunk = kIn / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int64_t i = 0; i < kRows * kOut; ++i) {
      double term = 0;
      for (int64_t k = rank * chunk; k < (rank + 1) * chunk; ++k)
        term += in.x[i / kOut * kIn + k] * in.w[i % kOut * kIn + k];
      y[i] = RoundedTo(DType::kBF16, y[i] + RoundedTo(DType::kBF16, term));
    }
  }
  return y;
}

TEST(ErrorBound, IsBrokenByARowwiseLayerWithNarrowSums) {
  const Inputs inputs = InputsOf(DType::kBF16);
  const Product exact = Exact(inputs, [](double x) { return x; });
  const Product size = Exact(inputs, [](double x) { return std::abs(x); });
  EXPECT_LE(Worst(WithNarrowSums(inputs, 1), exact.y, size.y), BoundOfProducts(DType::kBF16));
  EXPECT_GT(Worst(WithNarrowSums(inputs, 8), exact.y, size.y), BoundOfProducts(DType::kBF16));
}

// --- A model: losses and gradients against an f64 run from the same first values.

struct ModelBound {
  DType dtype;
  double loss, gradients;  // in roundoffs; gradients: relative RMS, of the worst parameter
};

TEST(ErrorBound, OfATransformersLossAndGradients) {
  for (const ModelBound& bound : {ModelBound{DType::kF32, 8, 128}, {DType::kBF16, 4, 24}}) {
    TrainingRun run = {.allow_uneven = true, .first_values = bound.dtype, .steps = 1};
    run.dtype = DType::kF64;
    DT_ASSERT_OK_AND_ASSIGN(const Trained exact, Train(run));
    run.dtype = bound.dtype;
    const double u = Roundoff(run.dtype);
    for (const std::string mesh :
         {"tp=1", "tp=2", "dp=2", "tp=3", "tp=4", "dp=4", "dp=2,tp=2", "dp=4,tp=2", "dp=2,tp=4",
          "cp=2", "cp=4", "cp=2,tp=2", "dp=2,cp=2,tp=2"}) {
      run.mesh = mesh;
      DT_ASSERT_OK_AND_ASSIGN(const Trained got, Train(run));
      EXPECT_NEAR(got.losses[0], exact.losses[0], bound.loss * u * exact.losses[0]) << mesh;
      const double gradients = WorstRelativeRms(got.first_gradients, exact.first_gradients);
      EXPECT_LE(gradients, bound.gradients * u) << mesh << " in " << ToString(run.dtype);
      EXPECT_GT(gradients, u / 100) << "f64 after all?";
    }
  }
}

}  // namespace
}  // namespace dtensor
