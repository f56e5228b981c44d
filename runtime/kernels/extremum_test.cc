#include "dtensor/runtime/kernels/extremum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kNumbers[] = {DType::kF32, DType::kBF16, DType::kF16,
                              DType::kF64, DType::kI32,  DType::kI64};

// The places of the k largest of each row of n values, sorted.
Doubles PlacesOfLargest(const Doubles& values, int64_t n, int64_t k) {
  Doubles places;
  std::vector<int64_t> order(n);
  for (auto row = values.begin(); row != values.end(); row += n) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return std::isnan(row[a]) ? !std::isnan(row[b]) : row[a] > row[b];
    });
    places.insert(places.end(), order.begin(), order.begin() + k);
  }
  return places;
}

// Of each row of n values, those at its places.
Doubles AtPlaces(const Doubles& values, int64_t n, const Doubles& places) {
  Doubles picked;
  const int64_t rows = static_cast<int64_t>(values.size()) / n;
  const int64_t k = static_cast<int64_t>(places.size()) / rows;
  for (size_t p = 0; p < places.size(); ++p) {
    picked.push_back(values[static_cast<int64_t>(p) / k * n + static_cast<int64_t>(places[p])]);
  }
  return picked;
}

class ExtremumTest : public KernelTest {
 protected:
  // Over shards of `dim`, columns [cuts[i], cuts[i + 1]).
  Doubles ArgMaxInParts(const Tensor& x, int dim, const std::vector<int64_t>& cuts) {
    Dims kept = x.shape();
    kept.erase(kept.begin() + dim);
    const int64_t rows = NumElements(kept), shards = static_cast<int64_t>(cuts.size()) - 1;
    const Tensor all = Empty(DType::kI64, {shards, rows, 2}), out = Empty(DType::kI64, {rows});
    for (int64_t p = 0; p < shards; ++p) {
      const int64_t begin = cuts[p], end = cuts[p + 1];
      EXPECT_THAT(ArgMaxStats(device(), x.Narrow(dim, begin, end - begin), dim,
                              IndexSet::Interval(begin, end), all.Narrow(0, p, 1)),
                  IsOk());
    }
    EXPECT_THAT(ArgMaxMerge(device(), all, out), IsOk());
    return Read(out);
  }
  Doubles ArgMax(const Tensor& x, int dim) { return ArgMaxInParts(x, dim, {0, x.size(dim)}); }
  Doubles Ties(const Tensor& x, const Tensor& extremum, absl::Span<const int> dims) {
    const Tensor count = Empty(DType::kI64, extremum.shape());
    EXPECT_THAT(CountTies(device(), x, extremum, dims, count), IsOk());
    return Read(count);
  }
  Doubles Share(const Tensor& x, const Tensor& extremum, absl::Span<const int> dims,
                const Doubles& count, const Tensor& dy) {
    const Tensor dx = Empty(x.dtype(), x.shape());
    const Tensor counts = Make(DType::kI64, extremum.shape(), count);
    EXPECT_THAT(ShareAmongTies(device(), x, extremum, dims, counts, dy, dx), IsOk());
    return Read(dx);
  }
  struct Largest {
    Tensor values, indices;
  };
  Largest TopOf(const Tensor& x, int64_t k) {
    Dims shape = x.shape();
    shape.back() = k;
    Largest top = {Empty(x.dtype(), shape), Empty(DType::kI64, shape)};
    EXPECT_THAT(TopK(device(), x, k, top.values, top.indices), IsOk());
    return top;
  }
  // `values` are those of x.
  void ExpectTop(const Tensor& x, const Doubles& values, int64_t k) {
    const int64_t n = x.shape().back();
    const Largest top = TopOf(x, k);
    const Doubles places = PlacesOfLargest(values, n, k);
    EXPECT_EQ(Read(top.indices), places) << n << ", " << k;
    ExpectNear(Read(top.values), AtPlaces(values, n, places), 0, 0);
  }
  Doubles TopGrad(const Tensor& indices, const Tensor& dvalues, int64_t n) {
    Dims shape = dvalues.shape();
    shape.back() = n;
    const Tensor dx = Make(dvalues.dtype(), shape, Doubles(NumElements(shape), 7));
    EXPECT_THAT(TakeGrad(device(), indices, dvalues, dx), IsOk());
    return Read(dx);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ExtremumTest);

TEST_P(ExtremumTest, ArgMaxIsTheFirstOfTheLargest) {
  for (const DType dtype : kNumbers) {
    const Tensor x = Make(dtype, {3, 4}, {1, 7, 7, -2, -3, -1, -3, -1, 0, 0, 0, 0});
    EXPECT_EQ(ArgMax(x, 1), (Doubles{1, 1, 0}));
    EXPECT_EQ(ArgMax(x, 0), (Doubles{0, 0, 0, 2}));
    EXPECT_EQ(ArgMax(x.Transpose(0, 1), 0), (Doubles{1, 1, 0}));
    for (const int64_t n : {1, 5, 33, 100}) {
      const Doubles values = RandomWhole(6 * n, -50, 50, n);
      Doubles want;
      for (size_t row = 0; row < values.size(); row += n) {
        want.push_back(
            static_cast<double>(std::max_element(values.begin() + row, values.begin() + row + n) -
                                values.begin() - row));
      }
      EXPECT_EQ(ArgMax(Make(dtype, {6, n}, values), 1), want);
      EXPECT_EQ(ArgMaxInParts(Make(dtype, {6, n}, values), 1, {0, 0, n / 3, n / 3, n}), want);
    }
  }
}

// Rows so long that several groups of threads share one: the first of the largest may lie anywhere.
TEST_P(ExtremumTest, ArgMaxOfALongRow) {
  const int64_t n = 100003;
  const std::vector<std::vector<int64_t>> tops = {
      {0, n - 1}, {n - 1}, {4000, 4001}, {4001, 4000, 90000}, {73337, 73338}, {255, 256, 50000}};
  for (const DType dtype : kNumbers) {
    const Doubles low = RandomWhole(n, -50, 50);
    for (const std::vector<int64_t>& at : tops) {
      Doubles values = low;
      for (const int64_t i : at) values[i] = 60;
      const auto first = static_cast<double>(*std::min_element(at.begin(), at.end()));
      EXPECT_EQ(ArgMax(Make(dtype, {n}, values), 0), Doubles{first});
    }
    EXPECT_EQ(ArgMax(Make(dtype, {n}, Doubles(n, -3)), 0), Doubles{0});
    Doubles values = low;
    values[12345] = values[99999] = 60;
    EXPECT_EQ(ArgMaxInParts(Make(dtype, {n}, values), 0, {0, 20000, 20000, n}), Doubles{12345});
    EXPECT_EQ(ArgMax(MakeInside(dtype, 1, n, values), 1), Doubles{12345});
    EXPECT_EQ(ArgMax(MakeInside(dtype, n, 1, values), 0), Doubles{12345});
    EXPECT_EQ(ArgMax(Make(dtype, {1}, {7}).BroadcastTo({n}), 0), Doubles{0});
  }
  EXPECT_EQ(ArgMax(Make(DType::kI64, {n}, Doubles(n, -0x1p63)), 0), Doubles{0});
}

TEST_P(ExtremumTest, ArgMaxOfALongRowWithNaNs) {
  const int64_t n = 100003;
  for (const DType dtype : kFloats) {
    Doubles values = RandomWhole(n, -50, 50);
    values[17] = kInf;
    EXPECT_EQ(ArgMax(Make(dtype, {n}, values), 0), Doubles{17});
    values[88888] = values[99999] = kNaN;
    EXPECT_EQ(ArgMax(Make(dtype, {n}, values), 0), Doubles{88888});
    EXPECT_EQ(ArgMax(Make(dtype, {n}, Doubles(n, kNaN)), 0), Doubles{0});
    EXPECT_EQ(ArgMax(Make(dtype, {n}, Doubles(n, -kInf)), 0), Doubles{0});
  }
}

// Few outputs and many, whose elements lie beside each other or apart.
TEST_P(ExtremumTest, ArgMaxAlongEitherDimension) {
  const int64_t shapes[][2] = {{4099, 2}, {517, 37}, {259, 311}, {2, 1025}};
  for (const auto& [rows, columns] : shapes) {
    const Doubles values = RandomWhole(rows * columns, -50, 50, rows);  // many tie
    Doubles by_row(rows), by_column(columns);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const double x = values[r * columns + c];
        const auto row = static_cast<int64_t>(by_column[c]);
        const auto column = static_cast<int64_t>(by_row[r]);
        if (x > values[row * columns + c]) by_column[c] = static_cast<double>(r);
        if (x > values[r * columns + column]) by_row[r] = static_cast<double>(c);
      }
    }
    for (const Tensor& x : {Make(DType::kF32, {rows, columns}, values),
                            MakeTransposed(DType::kF32, rows, columns, values),
                            MakeInside(DType::kF32, rows, columns, values)}) {
      EXPECT_EQ(ArgMax(x, 0), by_column) << rows << " x " << columns;
      EXPECT_EQ(ArgMax(x, 1), by_row) << rows << " x " << columns;
    }
    const Tensor x = Make(DType::kF32, {rows, columns}, values);
    EXPECT_EQ(ArgMaxInParts(x, 0, {0, 1, rows / 2, rows}), by_column) << rows << " x " << columns;
  }
}

TEST_P(ExtremumTest, ArgMaxOfWhatIsNoNumber) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(
        dtype, {4, 4},
        {1, kNaN, kInf, kNaN, -kInf, -kInf, -kInf, -kInf, -0., 0, -0., -1, kInf, 1, kInf, kNaN});
    const Doubles want = {1, 0, 0, 3};
    EXPECT_EQ(ArgMax(x, 1), want);
    EXPECT_EQ(ArgMax(x.Transpose(0, 1), 0), want);
    EXPECT_EQ(ArgMaxInParts(x, 1, {0, 1, 3, 4}), want);
  }
}

// The least integers are as good as any; an empty shard has no part in it.
TEST_P(ExtremumTest, ArgMaxOfTheLeastAndTheMost) {
  const double least = -0x1p63;
  const Tensor x = Make(DType::kI64, {2, 3}, {least, least, least, least, 0x1p62, 0x1p62});
  EXPECT_EQ(ArgMaxInParts(x, 1, {0, 0, 2, 3}), (Doubles{0, 1}));
}

TEST_P(ExtremumTest, ArgMaxOfDealtIndices) {
  const dtensor::IndexRun dealt[] = {{1, 1, 4, 2}};  // 1, 5
  const Tensor x = Make(DType::kF32, {2, 2}, {1, 2, 3, 3}), stats = Empty(DType::kI64, {2, 2});
  ASSERT_THAT(ArgMaxStats(device(), x, 1, IndexSet::FromIntervals(dealt), stats), IsOk());
  const Doubles got = Read(stats);
  EXPECT_EQ(got[1], 5);
  EXPECT_EQ(got[3], 1);
}

// More runs than fit among a kernel's arguments, and more elements than one group goes through.
TEST_P(ExtremumTest, ArgMaxOfManyDealtIndices) {
  std::vector<dtensor::IndexRun> dealt;
  for (int64_t r = 0; r < 9; ++r) dealt.push_back({r * 10000 + r, 1000 + r, 2000, 3});
  const IndexSet indices = IndexSet::FromIntervals(dealt);
  const int64_t n = indices.size();
  ASSERT_EQ(n, 9 * 3000 + 3 * 36);
  Doubles values(n, 1);
  // Of the last run, which has 3 times 1008: the second of the second 1008.
  values[n - 1008 - 1007] = 2;
  const Tensor stats = Empty(DType::kI64, {2});
  ASSERT_THAT(ArgMaxStats(device(), Make(DType::kF32, {n}, values), 0, indices, stats), IsOk());
  EXPECT_EQ(Read(stats)[1], 80008 + 2000 + 1);
}

TEST_P(ExtremumTest, CountsTies) {
  for (const DType dtype : kNumbers) {
    const Tensor x = Make(dtype, {2, 3, 2}, {1, 5, 3, 5, 3, 2, 4, 4, 4, 4, 0, 1});
    const Tensor wide = MakeInside(dtype, 6, 2, Read(x)).View({2, 3, 2}, {15, 5, 1}, 0);
    for (const Tensor& view : {x, wide}) {
      EXPECT_EQ(Ties(view, Make(dtype, {2, 2}, {3, 5, 4, 4}), {1}), (Doubles{2, 2, 2, 2}));
      EXPECT_EQ(Ties(view, Make(dtype, {2}, {5, 4}), {1, 2}), (Doubles{2, 4}));
      EXPECT_EQ(Ties(view, Make(dtype, {3}, {4, 4, 3}), {0, 2}), (Doubles{2, 2, 1}));
      EXPECT_EQ(Ties(view, Make(dtype, {}, {4}), {0, 1, 2}), (Doubles{4}));
    }
  }
  EXPECT_EQ(Ties(Empty(DType::kF32, {2, 0}), Make(DType::kF32, {2}, {1, 2}), {1}), (Doubles{0, 0}));
  EXPECT_EQ(Ties(Empty(DType::kF32, {0, 2}), Empty(DType::kF32, {0}), {1}), Doubles());
}

TEST_P(ExtremumTest, CountsManyTies) {
  const int64_t n = 20011;
  for (const DType dtype : kNumbers) {
    EXPECT_EQ(Ties(Make(dtype, {n}, Doubles(n, 0)), Make(dtype, {}, {0}), {0}), Doubles{n});
    EXPECT_EQ(Ties(Make(dtype, {n}, Doubles(n, 0)), Make(dtype, {}, {1}), {0}), Doubles{0});
    Doubles values = RandomWhole(n, -50, 50);
    values[0] = values[4002] = values[4003] = values[n - 1] = 60;
    for (const Tensor& x : {Make(dtype, {1, n}, values), MakeInside(dtype, 1, n, values),
                            MakeTransposed(dtype, 1, n, values)}) {
      EXPECT_EQ(Ties(x, Make(dtype, {}, {60}), {0, 1}), Doubles{4});
    }
    EXPECT_EQ(Ties(MakeInside(dtype, n, 1, values), Make(dtype, {1}, {60}), {0}), Doubles{4});
    EXPECT_EQ(Ties(Make(dtype, {1}, {7}).BroadcastTo({n}), Make(dtype, {}, {7}), {0}), Doubles{n});
  }
  for (const DType dtype : kFloats) {
    EXPECT_EQ(Ties(Make(dtype, {n}, Doubles(n, kNaN)), Make(dtype, {}, {kNaN}), {0}), Doubles{0});
    EXPECT_EQ(Ties(Make(dtype, {n}, Doubles(n, -0.)), Make(dtype, {}, {0}), {0}), Doubles{n});
  }
}

// Every set of dimensions of views, against an extremum of odd strides too.
TEST_P(ExtremumTest, CountsTiesOverAnyDimensions) {
  const int64_t shapes[][3] = {{3, 1031, 5}, {5, 3, 1031}, {259, 5, 67}, {1, 700, 9}};
  for (const auto& [a, b, c] : shapes) {
    const Doubles values = RandomWhole(a * b * c, 0, 3, a);
    const Tensor plain = Make(DType::kF32, {a, b, c}, values);
    const Tensor inside =
        MakeInside(DType::kF32, a * b, c, values).View({a, b, c}, {b * (c + 3), c + 3, 1}, 0);
    for (int mask = 1; mask < 8; ++mask) {
      std::vector<int> dims;
      Dims kept, place(3, 0);  // of one output
      for (int d = 2; d >= 0; --d) {
        if (mask >> d & 1) {
          dims.insert(dims.begin(), d);
        } else {
          place[d] = NumElements(kept);
          kept.insert(kept.begin(), plain.size(d));
        }
      }
      const int64_t outputs = NumElements(kept);
      const Doubles extremum = RandomWhole(outputs, 0, 3, mask);
      Doubles want(outputs, 0);
      for (int64_t i = 0; i < a * b * c; ++i) {
        const int64_t at = i / (b * c) * place[0] + i / c % b * place[1] + i % c * place[2];
        want[at] += values[i] == extremum[at];
      }
      Dims apart = RowMajorStrides(kept);
      for (int64_t& stride : apart) stride *= 2;
      Doubles doubled(2 * outputs, 9);
      for (int64_t i = 0; i < outputs; ++i) doubled[2 * i] = extremum[i];
      const Tensor odd = Make(DType::kF32, {2 * outputs}, doubled).View(kept, apart, 0);
      for (const Tensor& x : {plain, inside}) {
        EXPECT_EQ(Ties(x, Make(DType::kF32, kept, extremum), dims), want) << a << " mask " << mask;
        EXPECT_EQ(Ties(x, odd, dims), want) << a << " mask " << mask;
      }
    }
  }
}

TEST_P(ExtremumTest, SharesGradientsEvenly) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(dtype, {2, 4}, {1, 5, 5, 0, 7, 7, 7, 7});
    const Tensor max = Make(dtype, {2}, {5, 7}), dy = Make(dtype, {2}, {3, 8});
    EXPECT_EQ(Share(x, max, {1}, {2, 4}, dy), (Doubles{0, 1.5, 1.5, 0, 2, 2, 2, 2}));
    // Two more lie on other shards.
    EXPECT_EQ(Share(x, max, {1}, {4, 4}, dy), (Doubles{0, .75, .75, 0, 2, 2, 2, 2}));
    const Tensor whole = Make(dtype, {}, {7}), one = Make(dtype, {}, {1});
    EXPECT_EQ(Share(x, whole, {0, 1}, {4}, one), (Doubles{0, 0, 0, 0, .25, .25, .25, .25}));
    // As PyTorch's: where the result is NaN, so are all gradients.
    ExpectNear(Share(Make(dtype, {2}, {kNaN, 1}), Make(dtype, {}, {kNaN}), {0}, {0}, one),
               {kNaN, kNaN}, 0, 0);
  }
  EXPECT_EQ(Share(Empty(DType::kF32, {2, 0}), Make(DType::kF32, {2}, {1, 2}), {1}, {1, 1},
                  Make(DType::kF32, {2}, {1, 2})),
            Doubles());
}

// Whole numbers, of which many tie.
TEST_P(ExtremumTest, TopKIsTheStartOfTheSortedRow) {
  const int64_t shapes[][2] = {{1, 1}, {3, 7}, {5, 33}, {70, 4}, {2, 1027}, {3, 1200}};
  for (const DType dtype : kNumbers) {
    for (const auto& [rows, n] : shapes) {
      const Doubles values = RandomWhole(rows * n, -20, 20, n);
      for (const int64_t k : {int64_t{0}, int64_t{1}, std::min<int64_t>(n, 9), n}) {
        if (k > 100 && dtype != DType::kF32) continue;  // long over fakes
        ExpectTop(Make(dtype, {rows, n}, values), values, k);
        ExpectTop(MakeTransposed(dtype, rows, n, values), values, k);
        ExpectTop(MakeInside(dtype, rows, n, values), values, k);
      }
    }
  }
}

TEST_P(ExtremumTest, TopKOfRowsInAnyOrder) {
  const Doubles values = RandomValues(2 * 3 * 5, -1, 1);
  Doubles swapped;  // [3, 2, 5]
  for (int64_t i = 0; i < 30; ++i) {
    const int64_t row = i / 5, a = row % 2, b = row / 2;
    swapped.push_back(values[(a * 3 + b) * 5 + i % 5]);
  }
  const Tensor x = Make(DType::kF64, {2, 3, 5}, values);
  ExpectTop(x, values, 2);
  ExpectTop(x.Transpose(0, 1), swapped, 2);
  ExpectTop(Make(DType::kF64, {5}, {2, 9, 4, 9, 1}), {2, 9, 4, 9, 1}, 3);
  ExpectTop(Make(DType::kF32, {1}, {4}).BroadcastTo({3, 6}), Doubles(18, 4), 5);
}

TEST_P(ExtremumTest, TopKOfWhatIsNoNumber) {
  const Doubles rows = {1,   kNaN, kInf, kNaN, -kInf, -kInf, -kInf, -kInf, -0.,
                        0.5, 0,    -0.,  -1,   -kInf, kInf,  0,     kInf,  kNaN};
  for (const DType dtype : kFloats) {
    for (const int64_t k : {1, 4, 6}) ExpectTop(Make(dtype, {3, 6}, rows), rows, k);
    EXPECT_TRUE(std::signbit(Read(TopOf(Make(dtype, {2}, {-1, -0.}), 1).values)[0]));
  }
  // The most as a key, and the least.
  const double most = 0x1p63;
  const Tensor x = Make(DType::kI64, {5}, {-most, most, 5, most, -most});
  EXPECT_EQ(Read(TopOf(x, 5).indices), (Doubles{1, 3, 2, 0, 4}));
}

TEST_P(ExtremumTest, TopKOfALongRow) {
  const int64_t n = 50'000, k = 50;
  Doubles ascending(n);
  std::iota(ascending.begin(), ascending.end(), -3);
  const Doubles descending(ascending.rbegin(), ascending.rend());
  for (const Doubles& row : {RandomValues(n, -1, 1), RandomWhole(n, 0, 3), ascending, descending}) {
    ExpectTop(Make(DType::kF64, {n}, row), row, k);
  }
}

TEST_P(ExtremumTest, TopKOfNothing) {
  EXPECT_EQ(Read(TopOf(Empty(DType::kF32, {0, 3}), 2).values), Doubles());
  EXPECT_EQ(Read(TopOf(Empty(DType::kI32, {2, 0}), 0).indices), Doubles());
  EXPECT_EQ(TopGrad(Empty(DType::kI64, {0, 2}), Empty(DType::kF32, {0, 2}), 3), Doubles());
  EXPECT_EQ(TopGrad(Empty(DType::kI64, {2, 0}), Empty(DType::kF32, {2, 0}), 0), Doubles());
}

TEST_P(ExtremumTest, TopKGivesGradientsToWhatItPicked) {
  const int64_t shapes[][3] = {{3, 7, 2}, {2, 5, 5}, {4, 6, 0}, {40, 70, 9}};
  for (const DType dtype : kFloats) {
    for (const auto& [rows, n, k] : shapes) {
      const Doubles places = PlacesOfLargest(RandomValues(rows * n, -1, 1), n, k);
      const Doubles grads = RandomWhole(rows * k, -9, 9);
      Doubles want(rows * n, 0), ones(rows * n, 0);
      for (int64_t p = 0; p < rows * k; ++p) {
        const int64_t at = p / k * n + static_cast<int64_t>(places[p]);
        want[at] = grads[p];
        ones[at] = 1;
      }
      const Tensor indices = Make(DType::kI64, {rows, k}, places);
      EXPECT_EQ(TopGrad(indices, Make(dtype, {rows, k}, grads), n), want);
      EXPECT_EQ(TopGrad(indices, MakeTransposed(dtype, rows, k, grads), n), want);
      EXPECT_EQ(
          TopGrad(MakeInside(DType::kI64, rows, k, places), MakeInside(dtype, rows, k, grads), n),
          want);
      EXPECT_EQ(TopGrad(indices, Make(dtype, {}, {1}).BroadcastTo({rows, k}), n), ones);
    }
  }
}

TEST_P(ExtremumTest, TakesElementsByTheirIndices) {
  for (const auto& [rows, n, k] : {std::array<int64_t, 3>{3, 5, 2}, {1, 1, 4}, {40, 7, 9}}) {
    const Doubles x = RandomWhole(rows * n, -9, 9), places = RandomWhole(rows * k, 0, n, 3);
    const Doubles dy = RandomWhole(rows * k, -9, 9, 4);
    Doubles want, sums(rows * n, 0);
    for (int64_t p = 0; p < rows * k; ++p) {
      const int64_t at = p / k * n + static_cast<int64_t>(places[p]);
      want.push_back(x[at]);
      sums[at] += dy[p];
    }
    for (const DType dtype : kNumbers) {
      const Tensor y = Empty(dtype, {rows, k});
      for (const Tensor& from : {Make(dtype, {rows, n}, x), MakeTransposed(dtype, rows, n, x)}) {
        for (const Tensor& indices :
             {Make(DType::kI64, {rows, k}, places), MakeTransposed(DType::kI64, rows, k, places)}) {
          ASSERT_THAT(Take(device(), from, indices, y), IsOk());
          EXPECT_EQ(Read(y), want);
        }
      }
      if (!IsFloat(dtype)) continue;
      const Tensor indices = MakeTransposed(DType::kI64, rows, k, places);
      EXPECT_EQ(TopGrad(indices, Make(dtype, {rows, k}, dy), n), sums);
      EXPECT_EQ(TopGrad(indices, MakeTransposed(dtype, rows, k, dy), n), sums);
    }
  }
  const Tensor none = Empty(DType::kF32, {3, 0});
  EXPECT_THAT(Take(device(), Empty(DType::kF32, {3, 4}), Empty(DType::kI64, {3, 0}), none), IsOk());
  const Tensor bools = Empty(DType::kBool, {1, 2});
  ASSERT_THAT(Take(device(), Make(DType::kBool, {1, 3}, {0, 1, 1}),
                   Make(DType::kI64, {1, 2}, {2, 0}), bools),
              IsOk());
  EXPECT_EQ(Read(bools), Doubles({1, 0}));
}

// Backward may be on its way before the host knows that Take has failed.
TEST_P(ExtremumTest, TakeGradPassesOverIndicesOutOfRange) {
  for (const DType dtype : kFloats) {
    const Tensor indices = Make(DType::kI64, {1, 5}, {1, -1, 3, 1, int64_t{1} << 40});
    EXPECT_EQ(TopGrad(indices, Make(dtype, {1, 5}, {1, 2, 4, 8, 16}), 3), Doubles({0, 9, 0}));
  }
}

TEST_P(ExtremumTest, AnIndexOutOfRangeFailsTheDevice) {
  (void)Take(device(), Make(DType::kF32, {2, 2}, {1, 2, 3, 4}),
             Make(DType::kI64, {2, 3}, {0, 1, 0, 1, 2, 0}), Empty(DType::kF32, {2, 3}));
  const absl::Status failure =
      absl::OutOfRangeError("Take: index 2 at position 4 is outside [0, 2)");
  EXPECT_EQ(device().Synchronize(), failure);
  EXPECT_EQ(device().failure(), failure);
}

}  // namespace
}  // namespace dtensor::kernels
