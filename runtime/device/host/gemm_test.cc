#include "dtensor/runtime/device/gemm.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/host/host_gemm.h"
#include "dtensor/runtime/device/host/onednn_gemm.h"
#include "dtensor/runtime/device/host/reference_gemm.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);

namespace dtensor {
namespace {

using ::testing::HasSubstr;

// How a matrix lies in memory.
enum class Order { kRows, kPaddedRows, kColumns, kPaddedColumns, kLoose, kBroadcast };
enum class Batching { kNone, kPacked, kShared, kInterleaved };  // kShared: stride 0

struct Sizes {
  int64_t m, n, k;
};

// A matrix in host memory that it owns, every element of which has a value.
template <typename T>
class HostMatrix {
 public:
  HostMatrix(int64_t rows, int64_t columns, int64_t batch, Order order, Batching batching) {
    SetStrides(rows, columns, order);
    const int64_t extent = (rows - 1) * x_.row_stride + (columns - 1) * x_.col_stride + 1;
    switch (batching) {
      case Batching::kNone:
      case Batching::kShared:
        x_.batch_stride = 0;
        break;
      case Batching::kPacked:
        x_.batch_stride = std::max(rows * columns, extent);
        break;
      case Batching::kInterleaved:  // line by line, as the heads of attention are
        x_.batch_stride = x_.col_stride == 1 ? std::max(columns, x_.row_stride) : rows;
        if (x_.col_stride == 1)
          x_.row_stride = x_.batch_stride * batch;
        else
          x_.col_stride *= batch;
        break;
    }
    const int64_t last =
        (batch - 1) * x_.batch_stride + (rows - 1) * x_.row_stride + (columns - 1) * x_.col_stride;
    values_.resize(last + 1 + 16);
    x_.data = values_.data();
  }

  const GemmMatrix& matrix() const { return x_; }
  std::vector<T>& values() { return values_; }
  T& At(int64_t i, int64_t row, int64_t column) {
    return values_[i * x_.batch_stride + row * x_.row_stride + column * x_.col_stride];
  }

 private:
  void SetStrides(int64_t rows, int64_t columns, Order order) {
    switch (order) {
      case Order::kRows:
        x_.row_stride = columns, x_.col_stride = 1;
        break;
      case Order::kPaddedRows:
        x_.row_stride = columns + 3, x_.col_stride = 1;
        break;
      case Order::kColumns:
        x_.row_stride = 1, x_.col_stride = rows;
        break;
      case Order::kPaddedColumns:
        x_.row_stride = 1, x_.col_stride = rows + 5;
        break;
      case Order::kLoose:
        x_.row_stride = 2 * columns + 1, x_.col_stride = 2;
        break;
      case Order::kBroadcast:
        x_.row_stride = 0, x_.col_stride = 1;
        break;
    }
  }

  GemmMatrix x_;
  std::vector<T> values_;
};

// Small integers: every sum is exact in every accumulator, so that results are compared bit by bit.
// In double they are large, so that a sum taken in float would be wrong.
template <typename T>
void Fill(std::vector<T>& values, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t largest = std::is_same_v<T, double> ? 1 << 20 : 3;
  std::uniform_int_distribution<int64_t> number(-largest, largest);
  for (T& value : values) {
    if constexpr (sizeof(T) == 2) {
      value = T(static_cast<float>(number(random)));
    } else {
      value = static_cast<T>(number(random));
    }
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(value);
  } else {
    return static_cast<double>(value);
  }
}

template <typename T>
T FromDouble(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

struct Case {
  Sizes sizes;
  int64_t batch;
  Order a, b, c;
  Batching a_batching, b_batching, c_batching;
  bool accumulate;

  std::string ToString() const {
    return absl::StrCat("m ", sizes.m, " n ", sizes.n, " k ", sizes.k, " batch ", batch, " orders ",
                        int(a), int(b), int(c), " batching ", int(a_batching), int(b_batching),
                        int(c_batching), " accumulate ", accumulate);
  }
};

using Run = std::function<absl::Status(const GemmProblem&)>;

// Whether `run` gives what three plain loops give, and touches nothing beside C.
template <typename T, typename Out>
bool Agrees(DType dtype, DType out_dtype, const Case& test, const Run& run) {
  const auto [m, n, k] = test.sizes;
  HostMatrix<T> a(m, k, test.batch, test.a, test.a_batching);
  HostMatrix<T> b(k, n, test.batch, test.b, test.b_batching);
  HostMatrix<Out> c(m, n, test.batch, test.c, test.c_batching);
  Fill(a.values(), 1), Fill(b.values(), 2), Fill(c.values(), 3);
  HostMatrix<Out> expected(m, n, test.batch, test.c, test.c_batching);
  expected.values() = c.values();
  for (int64_t i = 0; i < test.batch; ++i) {
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        double sum = test.accumulate ? ToDouble(c.At(i, row, column)) : 0;
        for (int64_t p = 0; p < k; ++p)
          sum += ToDouble(a.At(i, row, p)) * ToDouble(b.At(i, p, column));
        expected.At(i, row, column) = FromDouble<Out>(sum);
      }
    }
  }
  const absl::Status status = run(
      {dtype, out_dtype, test.batch, m, n, k, a.matrix(), b.matrix(), c.matrix(), test.accumulate});
  EXPECT_THAT(status, IsOk()) << test.ToString();
  return std::memcmp(c.values().data(), expected.values().data(),
                     c.values().size() * sizeof(Out)) == 0;
}

bool AgreesAs(DType dtype, DType out_dtype, const Case& test, const Run& run) {
  return VisitDType(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, bool>) {
      return false;
    } else {
      return dtype == out_dtype ? Agrees<T, T>(dtype, out_dtype, test, run)
                                : Agrees<T, float>(dtype, out_dtype, test, run);
    }
  });
}

class ProductTest : public testing::TestWithParam<std::tuple<DType, DType>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  DType out_dtype() const { return std::get<1>(GetParam()); }
  void Expect(const Case& test) {
    EXPECT_TRUE(AgreesAs(dtype(), out_dtype(), test, [&](const GemmProblem& p) {
      return device_->Gemm(p);
    })) << test.ToString();
    // One that failed would fail the rest too.
    if (!device_->failure().ok()) device_ = MakeCpuDevice();
  }
  std::unique_ptr<Device> device_ = MakeCpuDevice();
};

constexpr Sizes kSizes[] = {{1, 1, 1},   {1, 17, 33}, {17, 1, 33},  {17, 33, 1},
                            {3, 5, 7},   {1, 1, 64},  {40, 40, 40}, {70, 260, 8},
                            {5, 9, 600}, {1, 64, 64}, {64, 1, 64}};
constexpr Order kOrders[] = {Order::kRows,          Order::kPaddedRows, Order::kColumns,
                             Order::kPaddedColumns, Order::kLoose,      Order::kBroadcast};

TEST_P(ProductTest, EveryOrderOfOperands) {
  for (const Sizes& sizes : kSizes) {
    for (Order a : kOrders) {
      for (Order b : kOrders) {
        for (bool accumulate : {false, true}) {
          const Order c = accumulate ? Order::kPaddedRows : Order::kRows;
          Expect(
              {sizes, 1, a, b, c, Batching::kNone, Batching::kNone, Batching::kNone, accumulate});
        }
      }
    }
  }
}

TEST_P(ProductTest, EveryKindOfBatch) {
  constexpr Batching kBatchings[] = {Batching::kPacked, Batching::kShared, Batching::kInterleaved};
  for (const Sizes& sizes : {Sizes{3, 5, 7}, Sizes{1, 8, 4}, Sizes{8, 1, 4}, Sizes{32, 32, 16}}) {
    for (Batching a : kBatchings) {
      for (Batching b : kBatchings) {
        for (Batching c : {Batching::kPacked, Batching::kInterleaved}) {
          for (Order order : {Order::kRows, Order::kColumns, Order::kLoose}) {
            if (order == Order::kLoose && (a == Batching::kInterleaved || b == a)) continue;
            Expect({sizes, 3, Order::kRows, order, Order::kRows, a, b, c, order != Order::kRows});
          }
        }
      }
    }
  }
}

TEST_P(ProductTest, NothingToSumIsZeroOrUnchanged) {
  for (bool accumulate : {false, true}) {
    std::vector<char> c(1000, 1);
    const int64_t size = SizeOf(out_dtype());
    const GemmMatrix nothing;
    const GemmProblem p = {dtype(), out_dtype(),          2,         3, 4, 0, nothing,
                           nothing, {c.data(), 5, 1, 20}, accumulate};
    ASSERT_THAT(device_->Gemm(p), IsOk());
    for (int64_t i = 0; i < 40; ++i) {
      const bool inside = i % 20 < 15 && i % 5 < 4;
      EXPECT_EQ(c[i * size], inside && !accumulate ? 0 : 1) << i;
    }
  }
}

TEST_P(ProductTest, NoRowsColumnsOrMatricesTouchNothing) {
  for (auto [batch, m, n] : {std::tuple{0, 3, 4}, {2, 0, 4}, {2, 3, 0}}) {
    const GemmProblem p = {dtype(), out_dtype(), batch, m, n, 5};
    EXPECT_THAT(device_->Gemm(p), IsOk());
  }
}

std::string NameOf(const testing::TestParamInfo<ProductTest::ParamType>& info) {
  return absl::StrCat(ToString(std::get<0>(info.param)), "_", ToString(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(
    DTypes, ProductTest,
    testing::Values(std::tuple(DType::kF32, DType::kF32), std::tuple(DType::kF64, DType::kF64),
                    std::tuple(DType::kBF16, DType::kBF16), std::tuple(DType::kBF16, DType::kF32),
                    std::tuple(DType::kF16, DType::kF16), std::tuple(DType::kF16, DType::kF32),
                    std::tuple(DType::kI32, DType::kI32), std::tuple(DType::kI64, DType::kI64)),
    NameOf);

// A product of random reals without gaps.
std::vector<float> MultiplyReals(DType dtype, Sizes sizes, int offset, const Run& run) {
  const auto [m, n, k] = sizes;
  std::mt19937_64 random(7);
  std::normal_distribution<float> number;
  std::vector<float> a(m * k + offset), b(k * n + offset), c(m * n);
  std::vector<BFloat16> a16(a.size()), b16(b.size());
  for (size_t i = offset; i < a.size(); ++i) a16[i] = BFloat16(a[i] = number(random));
  for (size_t i = offset; i < b.size(); ++i) b16[i] = BFloat16(b[i] = number(random));
  const bool narrow = dtype == DType::kBF16;
  void* const a_data = narrow ? static_cast<void*>(&a16[offset]) : &a[offset];
  void* const b_data = narrow ? static_cast<void*>(&b16[offset]) : &b[offset];
  EXPECT_THAT(run({dtype, DType::kF32, 1, m, n, k, {a_data, k}, {b_data, n}, {c.data(), n}}),
              IsOk());
  return c;
}

// An infinity is that of its row, and no NaN, wherever A's columns lie.
TEST(ProductTest, AnInfiniteTermIsMetOnce) {
  const auto device = MakeCpuDevice();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Sizes& sizes : {Sizes{4, 1, 3}, Sizes{1, 4, 1}, Sizes{16, 16, 7}, Sizes{3, 40, 65}}) {
    for (Order order : {Order::kRows, Order::kPaddedRows, Order::kColumns, Order::kPaddedColumns}) {
      const auto [m, n, k] = sizes;
      HostMatrix<BFloat16> a(m, k, 1, order, Batching::kNone);
      HostMatrix<BFloat16> b(k, n, 1, Order::kRows, Batching::kNone);
      HostMatrix<float> c(m, n, 1, Order::kRows, Batching::kNone);
      for (BFloat16& value : a.values()) value = BFloat16(1);
      for (BFloat16& value : b.values()) value = BFloat16(1);
      a.At(0, 0, k - 1) = BFloat16(infinity);
      DT_ASSERT_OK(device->Gemm(
          {DType::kBF16, DType::kF32, 1, m, n, k, a.matrix(), b.matrix(), c.matrix(), false}));
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t column = 0; column < n; ++column) {
          EXPECT_EQ(c.At(0, row, column), row == 0 ? infinity : static_cast<float>(k))
              << m << " x " << k << " x " << n << ", order " << static_cast<int>(order);
        }
      }
    }
  }
}

TEST(ProductTest, SameBitsEachTime) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Sizes sizes = {100, 200, 300};
    HostGemm first, second;
    const auto run_first = [&](const GemmProblem& p) { return first.Run(p); };
    const auto run_second = [&](const GemmProblem& p) { return second.Run(p); };
    const std::vector<float> once = MultiplyReals(dtype, sizes, 0, run_first);
    EXPECT_EQ(once, MultiplyReals(dtype, sizes, 0, run_first));
    // Nor does anything depend on addresses, or on what ran before.
    MultiplyReals(dtype, {30, 20, 10}, 0, run_second);
    for (int offset : {0, 1, 3}) {
      EXPECT_EQ(once, MultiplyReals(dtype, sizes, offset, run_second)) << offset;
    }
  }
}

TEST(ProductTest, RanksMultiplyAtOnce) {
  const auto multiply = [](std::vector<float>* result) {
    const auto device = MakeCpuDevice();
    *result = MultiplyReals(DType::kF32, {64, 96, 128}, 0,
                            [&](const GemmProblem& p) { return device->Gemm(p); });
  };
  std::vector<float> results[2];
  std::thread other(multiply, &results[1]);
  multiply(&results[0]);
  other.join();
  EXPECT_EQ(results[0], results[1]);
}

TEST(ProductTest, OperandsMayShareMemory) {
  std::vector<float> x = {1, 2, 3, 4, 5, 6}, c(4);
  const GemmProblem p = {DType::kF32,      DType::kF32,     1, 2, 2, 3, {x.data(), 3, 1},
                         {x.data(), 1, 3}, {c.data(), 2, 1}};
  ASSERT_THAT(MakeCpuDevice()->Gemm(p), IsOk());
  EXPECT_EQ(c, (std::vector<float>{14, 32, 32, 77}));
}

TEST(ProductTest, RefusesWhatItCannotSay) {
  const auto device = MakeMetaDevice();
  const auto refuses = [&](const GemmProblem& p, const char* why) {
    EXPECT_THAT(device->Gemm(p), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  const GemmProblem good = {
      DType::kF32,         DType::kF32,        2, 3, 4, 5, {nullptr, 5, 1, 15},
      {nullptr, 4, 1, 20}, {nullptr, 4, 1, 12}};
  EXPECT_THAT(device->Gemm(good), IsOk());
  GemmProblem p = good;
  p.m = -1;
  refuses(p, "negative");
  p = good, p.dtype = DType::kBool;
  refuses(p, "bool");
  p = good, p.out_dtype = DType::kBF16;
  refuses(p, "type");
  p = good, p.dtype = p.out_dtype = DType::kI64, p.out_dtype = DType::kF32;
  refuses(p, "type");
  p = good, p.a.row_stride = -5;
  refuses(p, "stride is negative");
  p = good, p.c.col_stride = 2;
  refuses(p, "row-major");
  p = good, p.c.row_stride = 3;
  refuses(p, "overlap");
  p = good, p.c.batch_stride = 0;
  refuses(p, "overlap");
}

TEST(OneDnnProductTest, KeepsPrimitivesByShape) {
  OneDnnGemm gemm;
  std::vector<float> x(100), c(100);
  GemmProblem p = {DType::kF32,   DType::kF32,  1, 4, 4, 4, {x.data(), 4},
                   {x.data(), 4}, {c.data(), 4}};
  EXPECT_THAT(gemm.Run(p), IsOkAndHolds(true));
  p.a.data = x.data() + 20;
  EXPECT_THAT(gemm.Run(p), IsOkAndHolds(true));
  EXPECT_EQ(gemm.cached(), 1);
  p.accumulate = true;
  EXPECT_THAT(gemm.Run(p), IsOkAndHolds(true));
  EXPECT_EQ(gemm.cached(), 2);
  p.a.row_stride = 5;
  EXPECT_THAT(gemm.Run(p), IsOkAndHolds(true));
  EXPECT_EQ(gemm.cached(), 3);
}

TEST(OneDnnProductTest, LeavesTheCallersThreadsAlone) {
  omp_set_num_threads(3);
  std::vector<float> x(16), c(16);
  const GemmProblem p = {DType::kF32,   DType::kF32,  1, 4, 4, 4, {x.data(), 4},
                         {x.data(), 4}, {c.data(), 4}};
  EXPECT_THAT(OneDnnGemm().Run(p), IsOkAndHolds(true));
  EXPECT_EQ(omp_get_max_threads(), 3);
}

// Else the tests above would compare ReferenceGemm and the fallback for bf16 alone, or never.
TEST(OneDnnProductTest, RunsBF16WhereTheCpuCan) {
  std::vector<BFloat16> x(100), c(100);
  const GemmProblem p = {DType::kBF16,  DType::kBF16, 1, 4, 4, 4, {x.data(), 4},
                         {x.data(), 4}, {c.data(), 4}};
  const char* isa = std::getenv("DNNL_MAX_CPU_ISA");
  const bool narrowed = isa != nullptr && std::string(isa) == "AVX2";
  EXPECT_THAT(OneDnnGemm().Run(p),
              IsOkAndHolds(!narrowed && __builtin_cpu_supports("avx512bw") != 0));
}

TEST(SimpleProductTest, EveryVectorLength) {
  for (int bytes : {16, 32, 64}) {
    ReferenceGemm gemm(bytes);
    for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
      for (const Sizes& sizes : kSizes) {
        const Case test = {sizes,
                           2,
                           Order::kPaddedRows,
                           Order::kColumns,
                           Order::kPaddedRows,
                           Batching::kPacked,
                           Batching::kShared,
                           Batching::kPacked,
                           true};
        EXPECT_TRUE(AgreesAs(dtype, dtype, test, [&](const GemmProblem& p) { return gemm.Run(p); }))
            << bytes << " " << test.ToString();
      }
    }
  }
}

TEST(SimpleProductTest, IntegersWrapAround) {
  std::vector<int32_t> a = {1 << 30, 1 << 30}, b = {2, 2}, c = {5};
  const GemmProblem p = {DType::kI32,   DType::kI32,   1,   1, 1, 2, {a.data(), 2},
                         {b.data(), 1}, {c.data(), 1}, true};
  ASSERT_THAT(ReferenceGemm().Run(p), IsOk());
  EXPECT_EQ(c[0], 5);
}

}  // namespace
}  // namespace dtensor
