// What must know the global indices of its shard, on random arguments (random_kernels.h).
#include <vector>

#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/random_kernels.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr int kRounds = 60;

using IndexedRandomTest = RandomKernelTest;
DT_INSTANTIATE_KERNEL_TESTS(IndexedRandomTest);

TEST_P(IndexedRandomTest, Embedding) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const int64_t n = random_.In(1, 60), d = random_.Of<int64_t>({1, 3, 4, 8, 16, 33, 64});
    const IndexSet rows = Indices(n);
    const int64_t all = rows.runs().back().end() + 3;
    const Dims shape = Shape(2, 2000);
    // Half of the ids are one: many add to its row.
    Doubles values(NumElements(shape));
    for (double& id : values) id = static_cast<double>(random_.Coin() ? 1 : random_.In(0, all - 1));
    Dims wide = shape;
    wide.push_back(d);
    const Twins ids = Of(IndexType(), shape, values), table = In(dtype, {n, d}, -2, 2);
    const Twins y = Out(dtype, wide), dy = In(dtype, wide, -1, 1), dtable = Out(dtype, {n, d});
    SCOPED_TRACE(absl::StrCat(Describe(ids), " ", Describe(table), " ", Describe(dy)));
    Both([&](Side of) {
      return kernels::Embedding(of.device, of(ids), of(table), rows, all, of(y));
    });
    Both([&](Side of) { return EmbeddingGrad(of.device, of(ids), of(dy), rows, of(dtable)); });
    ExpectAlike("y", y, 0, 0);
    ExpectAlike("dtable", dtable, 1, dtype == DType::kF64 ? 1e-10 : 1e-3);
  }
}

TEST_P(IndexedRandomTest, Rope) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const Dims shape = {random_.In(0, 3), random_.In(1, 40), random_.In(1, 5),
                        2 * random_.Of<int64_t>({1, 2, 3, 4, 8, 16, 20, 64, 130})};
    const IndexSet positions = Indices(shape[1]).Shifted(random_.In(0, 5000));
    RopeBase base = {.theta = random_.Of({1e4, 5e5})};
    if (random_.Coin()) base.scaling.factor = 8;
    if (random_.Coin()) base.scaling.trained = 2048;
    base.scaling.transition = random_.Of(
        {RopeTransition::kByTurns, RopeTransition::kByWholePairs, RopeTransition::kByPairs});
    if (random_.Coin()) base.scaling.amplitude = 1.25;
    const bool inverse = random_.Coin();
    const Twins x = In(dtype, shape, -2, 2), y = Out(dtype, shape);
    SCOPED_TRACE(Describe(x));
    Both([&](Side of) { return kernels::Rope(of.device, of(x), positions, base, inverse, of(y)); });
    ExpectAlike("y", y, 2, dtype == DType::kF64 ? 1e-12 : 1e-6);
  }
}

TEST_P(IndexedRandomTest, RandomNumbers) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    std::vector<IndexSet> region;
    Dims shape, local;
    for (int64_t d = random_.In(0, 3); d > 0; --d) {
      local.push_back(random_.Of<int64_t>({1, 2, 3, 4, 8, 12, 16, 21}));
      region.push_back(random_.Coin() ? IndexSet::Interval(0, local.back())
                                      : Indices(local.back()));
      shape.push_back(region.back().runs().back().end() + random_.In(0, 3));
    }
    const uint64_t seed = random_.In(0, 1'000'000), stream = random_.In(0, 5);
    const double rate = random_.Of({0.0, 0.3, 1.0});
    const Twins x = In(dtype, local, -2, 2), dropped = Out(dtype, local);
    const Twins normal = Out(dtype, local);
    // Each type has as many digits of one number as it can hold.
    Twins uniform = Out(dtype, local);
    uniform.exact = MakeOn(*host_, dtype, local, Doubles(NumElements(local), 77));
    SCOPED_TRACE(absl::StrCat(Describe(x), " of ", DimsToString(shape)));
    Both([&](Side of) {
      return RandomNormal(of.device, region, shape, seed, stream, 1, 2, of(normal));
    });
    Both([&](Side of) {
      return RandomUniform(of.device, region, shape, seed, stream, of(uniform));
    });
    Both([&](Side of) {
      return Dropout(of.device, of(x), region, shape, seed, stream, rate, of(dropped));
    });
    ExpectAlike("normal", normal, 0, 0);
    ExpectAlike("uniform", uniform, 0, 0);
    ExpectAlike("dropped", dropped, 1, 0);
  }
}

}  // namespace
}  // namespace dtensor::kernels
