// Reductions over any dimensions, on random arguments (random_kernels.h).
#include <vector>

#include "dtensor/runtime/kernels/extremum.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/runtime/testing/random_kernels.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr int kRounds = 100;
constexpr int kMostElements = 20'000;

class ReduceRandomTest : public RandomKernelTest {
 protected:
  // Some of the dimensions of `shape`, and the sizes of the others.
  struct Over {
    std::vector<int> dims;
    Dims kept;
  };
  Over SomeOf(const Dims& shape) {
    Over over;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (random_.Coin()) {
        over.dims.push_back(static_cast<int>(d));
      } else {
        over.kept.push_back(shape[d]);
      }
    }
    return over;
  }
  // Of sums of so many terms of size 5.
  static double Lost(DType dtype) { return dtype == DType::kF64 ? 1e-9 : 1e-2; }
};
DT_INSTANTIATE_KERNEL_TESTS(ReduceRandomTest);

TEST_P(ReduceRandomTest, Reduce) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    const auto op = random_.Of({ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin});
    const Dims shape = Shape(4, kMostElements);
    const Over over = SomeOf(shape);
    const Twins x = In(dtype, shape, -4, 5, random_.Chance(30));
    const Twins out = Out(IsFloat(dtype) && random_.Coin() ? WideType(dtype) : dtype, over.kept);
    SCOPED_TRACE(absl::StrCat(static_cast<int>(op), " ", Describe(x), " over ", over.dims.size()));
    Both([&](Side of) { return kernels::Reduce(of.device, op, of(x), over.dims, of(out)); });
    ExpectAlike("Reduce", out, 1, Lost(dtype));
  }
}

TEST_P(ReduceRandomTest, Product) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const Dims shape = Shape(3, 500);
    const Over over = SomeOf(shape);
    const Twins x = In(dtype, shape, 0.99, 1.01), out = Out(WideType(dtype), over.kept);
    SCOPED_TRACE(Describe(x));
    Both([&](Side of) {
      return kernels::Reduce(of.device, ReduceOp::kProduct, of(x), over.dims, of(out));
    });
    ExpectAlike("Product", out, 100, 0);
  }
}

TEST_P(ReduceRandomTest, MeanAndSquares) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const Dims shape = Shape(4, kMostElements);
    const Over over = SomeOf(shape);
    const double count = random_.Real(1, 1000);
    const Twins x = In(dtype, shape, -4, 5), mean = Out(dtype, over.kept);
    const Twins squares = Out(WideType(dtype), {});
    SCOPED_TRACE(absl::StrCat(Describe(x), " over ", over.dims.size(), " / ", count));
    Both([&](Side of) { return Mean(of.device, of(x), over.dims, count, of(mean)); });
    Both([&](Side of) { return SumOfSquares(of.device, of(x), of(squares)); });
    ExpectAlike("Mean", mean, 1, Lost(dtype) / count);
    ExpectAlike("SumOfSquares", squares, 4, 0);
  }
}

TEST_P(ReduceRandomTest, Bincount) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const int64_t bins = random_.Chance(10) ? 5000 : random_.In(0, 70);
    const Dims shape = Shape(3, kMostElements);
    Doubles values(NumElements(shape));  // some of no bin, and half of one
    for (double& id : values) {
      id = static_cast<double>(random_.Coin() ? 1 : random_.In(-3, bins + 3));
    }
    const Twins ids = Of(IndexType(), shape, values);
    const Twins counts = Out(random_.Of({DType::kF32, DType::kF64}), {bins});
    SCOPED_TRACE(absl::StrCat(Describe(ids), ", ", bins));
    Both([&](Side of) { return kernels::Bincount(of.device, of(ids), of(counts)); });
    ExpectAlike("counts", counts, 0, 0);
  }
}

TEST_P(ReduceRandomTest, ArgMax) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    Dims shape = Shape(3, kMostElements / 10);
    const int dim = random_.Below(static_cast<int>(shape.size()) + 1);
    const int shards = random_.Below(3) + 1;
    Dims rest = shape, stats_shape = shape;
    stats_shape.push_back(2);
    shape.insert(shape.begin() + dim, random_.In(0, 40));
    const IndexSet indices = Indices(shape[dim]);
    // Each shard's statistics, in one tensor.
    stats_shape.insert(stats_shape.begin(), shards);
    const Twins stats = Out(DType::kI64, stats_shape), out = Out(DType::kI64, rest);
    for (int s = 0; s < shards; ++s) {
      // Few values, so that some tie.
      const Twins x = Of(dtype, shape, [&] {
        Doubles values(NumElements(shape));
        for (double& value : values) value = static_cast<double>(random_.In(-3, 3));
        return values;
      }());
      const IndexSet of_shard = indices.Shifted(1000 * s);
      const Twins part = Part(stats, s);
      Both([&](Side of) { return ArgMaxStats(of.device, of(x), dim, of_shard, of(part)); });
    }
    Both([&](Side of) { return ArgMaxMerge(of.device, of(stats), of(out)); });
    ExpectAlike("ArgMax", out, 0, 0);
  }
}

TEST_P(ReduceRandomTest, TopK) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    Dims shape = Shape(3, kMostElements / 20), picked = shape;
    shape.push_back(random_.Below(60));
    picked.push_back(random_.Below(static_cast<int>(shape.back()) + 1));
    const Twins x = In(dtype, shape, -4, 5, random_.Chance(30));
    const Twins values = Out(dtype, picked), indices = Out(DType::kI64, picked);
    SCOPED_TRACE(absl::StrCat(Describe(x), ", ", picked.back()));
    Both([&](Side of) {
      return kernels::TopK(of.device, of(x), picked.back(), of(values), of(indices));
    });
    ExpectAlike("values", values, 0, 0);
    ExpectAlike("indices", indices, 0, 0);
    if (!IsFloat(dtype)) continue;
    const Twins dvalues = In(dtype, picked, -4, 5), dx = Out(dtype, shape);
    Both([&](Side of) { return TakeGrad(of.device, of(indices), of(dvalues), of(dx)); });
    ExpectAlike("TakeGrad", dx, 0, 0);
  }
}

TEST_P(ReduceRandomTest, Take) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    Dims shape = Shape(3, kMostElements / 20), picked = shape;
    shape.push_back(random_.In(1, 60));
    picked.push_back(random_.In(0, 20));
    Doubles places(NumElements(picked));
    for (double& place : places) place = static_cast<double>(random_.In(0, shape.back() - 1));
    const Twins x = In(dtype, shape, -4, 5), indices = Of(DType::kI64, picked, places);
    const Twins y = Out(dtype, picked);
    SCOPED_TRACE(absl::StrCat(Describe(x), ", ", picked.back()));
    Both([&](Side of) { return kernels::Take(of.device, of(x), of(indices), of(y)); });
    ExpectAlike("y", y, 0, 0);
    if (!IsFloat(dtype)) continue;
    const Twins dy = In(dtype, picked, -4, 5), dx = Out(dtype, shape);
    Both([&](Side of) { return TakeGrad(of.device, of(indices), of(dy), of(dx)); });
    ExpectAlike("dx", dx, 1, Lost(dtype));
  }
}

TEST_P(ReduceRandomTest, Ties) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const Dims shape = Shape(4, kMostElements / 4);
    const Over over = SomeOf(shape);
    Doubles values(NumElements(shape));
    for (double& value : values) value = static_cast<double>(random_.In(-3, 3));
    if (!values.empty() && random_.Chance(20)) values[0] = std::nan("");
    const Twins x = Of(dtype, shape, values), extremum = Out(dtype, over.kept);
    const Twins count = Out(DType::kI64, over.kept), dy = In(dtype, over.kept, -2, 2);
    const Twins dx = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(Describe(x), " over ", over.dims.size()));
    Both([&](Side of) {
      return kernels::Reduce(of.device, ReduceOp::kMax, of(x), over.dims, of(extremum));
    });
    Both([&](Side of) { return CountTies(of.device, of(x), of(extremum), over.dims, of(count)); });
    Both([&](Side of) {
      return ShareAmongTies(of.device, of(x), of(extremum), over.dims, of(count), of(dy), of(dx));
    });
    ExpectAlike("max", extremum, 0, 0);
    ExpectAlike("ties", count, 0, 0);
    ExpectAlike("dx", dx, 1, 0);
  }
}

}  // namespace
}  // namespace dtensor::kernels
