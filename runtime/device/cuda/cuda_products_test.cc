// Products on a GPU: their values, what is promised of parts of them, and what is refused.
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CudaProductsTest = CudaTest;

// Of operands of one type into a result of the same or a wider one.
struct ProductTypes {
  DType operands, result;
};

// Small integers, whose sums are exact, against the cpu device; twice, for the same bits.
class CudaProductTest : public CudaTest, public testing::WithParamInterface<ProductTypes> {
 protected:
  // With `pad` elements behind each row or column of an operand.
  template <typename T, typename Result>
  std::vector<Result> Gemm(Device& device, bool a_columns, bool b_columns, int64_t batch,
                           int64_t pad) {
    const int64_t m = 65, n = 34, k = 129;
    const int64_t a_leading = (a_columns ? m : k) + pad, b_leading = (b_columns ? k : n) + pad;
    const int64_t a_size = a_leading * (a_columns ? k : m), c_size = m * (n + pad);
    const Tensor a = Numbers<T>(device, batch * a_size, 1);
    const Tensor b = Numbers<T>(device, b_leading * (b_columns ? n : k), 2);
    const Tensor c = Numbers<Result>(device, batch * c_size, 3);
    GemmProblem p = {GetParam().operands, GetParam().result, batch, m, n, k};
    p.a = {a.raw(), a_columns ? 1 : a_leading, a_columns ? a_leading : 1, a_size};
    p.b = {b.raw(), b_columns ? 1 : b_leading, b_columns ? b_leading : 1, 0};
    p.c = {c.raw(), n + pad, 1, c_size};
    p.accumulate = batch > 1;
    EXPECT_THAT(device.Gemm(p), IsOk());
    return ToHost<Result>(c).value();
  }
  template <typename T>
  Tensor Numbers(Device& device, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<T> values(count);
    for (T& value : values) value = T(static_cast<float>(static_cast<int>(random() % 7) - 3));
    return FromHost<T>(device, values, {count}).value();
  }
  template <typename T, typename Result>
  void CompareWithTheCpu() {
    const auto cpu = MakeCpuDevice();
    for (int bits = 0; bits < 16; ++bits) {
      const bool a = bits & 1, b = bits & 2;
      const int64_t batch = bits & 4 ? 3 : 1, pad = bits & 8 ? 3 : 0;
      const auto expected = Gemm<T, Result>(*cpu, a, b, batch, pad);
      for (int i = 0; i < 2; ++i) {
        const auto result = Gemm<T, Result>(*device_, a, b, batch, pad);
        ASSERT_EQ(result.size(), expected.size());
        for (size_t j = 0; j < result.size(); ++j) {
          ASSERT_EQ(static_cast<float>(result[j]), static_cast<float>(expected[j])) << bits;
        }
      }
    }
  }
};

TEST_P(CudaProductTest, AgreesWithTheCpu) {
  const auto [operands, result] = GetParam();
  VisitDType(operands, [&, wider = result != operands](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      if (wider) return CompareWithTheCpu<T, float>();
    }
    if constexpr (!std::is_same_v<T, bool>) CompareWithTheCpu<T, T>();
  });
}

INSTANTIATE_TEST_SUITE_P(
    DTypes, CudaProductTest,
    testing::Values(ProductTypes{DType::kF32, DType::kF32}, ProductTypes{DType::kF64, DType::kF64},
                    ProductTypes{DType::kBF16, DType::kBF16},
                    ProductTypes{DType::kF16, DType::kF16}, ProductTypes{DType::kBF16, DType::kF32},
                    ProductTypes{DType::kF16, DType::kF32}),
    [](const auto& info) {
      return absl::StrCat(ToString(info.param.operands), "_into_", ToString(info.param.result));
    });

// 256 + 1 has more bits than bf16, and -256 takes what is left of it: parts of a sum are added in
// f32.
TEST_F(CudaProductsTest, PartsOfASumAreNotRounded) {
  const auto tensor = [&](std::vector<float> values) {
    std::vector<BFloat16> narrow;
    for (const float value : values) narrow.push_back(BFloat16(value));
    return FromHost<BFloat16>(*device_, narrow, {static_cast<int64_t>(values.size())}).value();
  };
  const Tensor a = tensor({256, 1, -256, 0}), b = tensor({1, 1, 1, 1}), c = tensor({0});
  GemmProblem p = {DType::kBF16, DType::kBF16, 1, 1, 1, 4};
  p.a = {a.raw(), 4, 1, 4};
  p.b = {b.raw(), 1, 1, 4};
  p.c = {c.raw(), 1, 1, 1};
  ASSERT_THAT(device_->Gemm(p), IsOk());
  DT_ASSERT_OK_AND_ASSIGN(const std::vector<BFloat16> sum, ToHost<BFloat16>(c));
  EXPECT_EQ(static_cast<float>(sum[0]), 1);
}

// One more than the largest integer that the operands' type counts to: a result in f32 has it.
template <typename T>
void MultiplyIntoF32(Device& device, float most) {
  const T one(1.0f), many(most);
  const Tensor a = FromHost<T>(device, std::vector<T>{many, one}, {1, 2}).value();
  const Tensor b = FromHost<T>(device, std::vector<T>{one, one}, {2, 1}).value();
  const Tensor c = FromHost<float>(device, std::vector<float>{-1}, {1, 1}).value();
  GemmProblem p = {a.dtype(), DType::kF32, 1, 1, 1, 2};
  p.a = {a.raw(), 2, 1, 0};
  p.b = {b.raw(), 1, 1, 0};
  p.c = {c.raw(), 1, 1, 0};
  ASSERT_THAT(device.Gemm(p), IsOk());
  EXPECT_THAT(ToHost<float>(c), IsOkAndHolds(ElementsAre(most + 1)));
}

TEST_F(CudaProductsTest, ResultsInF32AreNotRoundedToTheOperandsType) {
  MultiplyIntoF32<BFloat16>(*device_, 256);
  MultiplyIntoF32<Float16>(*device_, 2048);
}

// Operands of 13 bits, of which TF32 keeps 11, and sums below 2^24: exact in f32, in any order.
// Large enough, and aligned, for kernels that use tensor cores.
TEST_F(CudaProductsTest, F32IsNotMultipliedInTf32) {
  constexpr int64_t n = 128;
  std::vector<float> many(n * n), few(n * n);
  for (int64_t i = 0; i < n * n; ++i) {
    many[i] = static_cast<float>(4097 + 2 * (i % 5));
    few[i] = static_cast<float>(i % 7 - 3);
  }
  const auto cpu = MakeCpuDevice();
  for (const bool many_first : {true, false}) {
    const auto multiply = [&](Device& device) {
      const Tensor a = FromHost<float>(device, many_first ? many : few, {n, n}).value();
      const Tensor b = FromHost<float>(device, many_first ? few : many, {n, n}).value();
      const Tensor c = Tensor::Empty(device, DType::kF32, {n, n}).value();
      GemmProblem p = {DType::kF32, DType::kF32, 1, n, n, n};
      p.a = {a.raw(), n, 1, 0};
      p.b = {b.raw(), n, 1, 0};
      p.c = {c.raw(), n, 1, 0};
      EXPECT_THAT(device.Gemm(p), IsOk());
      return ToHost<float>(c).value();
    };
    EXPECT_EQ(multiply(*device_), multiply(*cpu)) << many_first;
  }
}

// --- Parts of a product: rows that say of which whole they are.

class CudaPartsTest : public CudaTest, public testing::WithParamInterface<ProductTypes> {
 protected:
  // [rows, columns], in the open interval (-1, 1).
  Tensor Noise(DType dtype, int64_t rows, int64_t columns) {
    std::uniform_real_distribution<float> number(-1, 1);
    std::vector<float> values(rows * columns);
    for (float& value : values) value = number(random_);
    return NarrowedTo(dtype, values, {rows, columns});
  }
  Tensor NarrowedTo(DType dtype, const std::vector<float>& values, const Dims& shape) {
    if (dtype == DType::kF32) return FromHost<float>(*device_, values, shape).value();
    const std::vector<BFloat16> narrow(values.begin(), values.end());
    return FromHost<BFloat16>(*device_, narrow, shape).value();
  }
  // Each bit of it.
  static std::vector<char> Bytes(const Tensor& tensor) {
    std::vector<char> bytes(tensor.bytes());
    EXPECT_THAT(tensor.device().CopyToHost(bytes.data(), tensor.raw(), tensor.bytes()), IsOk());
    EXPECT_THAT(tensor.device().Synchronize(), IsOk());
    return bytes;
  }

 private:
  std::mt19937 random_{5};
};

// By the algorithm of the whole, where that takes the part: the fake refuses one that nobody
// checked for it. On a GPU cuBLASLt may refuse some parts, but not all of them, or no product could
// be made beside what it waits for.
TEST_P(CudaPartsTest, HaveTheBitsOfTheWholeOrAreRefused) {
  constexpr int64_t m = 96, n = 64, k = 64;
  const auto [operands, result] = GetParam();
  const Tensor a = Noise(operands, m, k), b = Noise(operands, k, n);
  const Tensor whole = Noise(result, m, n);
  GemmProblem p = {operands, result, 1, m, n, k};
  p.a = {a.raw(), k, 1, 0};
  p.b = {b.raw(), n, 1, 0};
  p.c = {whole.raw(), n, 1, 0};
  ASSERT_THAT(device_->Gemm(p), IsOk());
  p.whole_rows = m;
  int made = 0;
  for (const int64_t rows : {16, 32, 48}) {
    for (p.first_row = 0; p.first_row < m; p.first_row += rows) {
      const Tensor kept = Noise(result, rows, n),
                   part = Tensor::Empty(*device_, result, {rows, n}).value();
      ASSERT_THAT(device_->CopyOnDevice(part.raw(), kept.raw(), kept.bytes()), IsOk());
      p.m = rows;
      p.a.data = a.Narrow(0, p.first_row, rows).raw();
      p.c.data = part.raw();
      p.only_asks = true;
      const absl::Status said = device_->Gemm(p);
      EXPECT_EQ(Bytes(part), Bytes(kept)) << "it was only asked";
      p.only_asks = false;
      EXPECT_EQ(device_->Gemm(p), said);
      const Tensor expected = said.ok() ? whole.Narrow(0, p.first_row, rows) : kept;
      EXPECT_EQ(Bytes(part), Bytes(expected)) << rows << " rows from " << p.first_row;
      EXPECT_THAT(said, AnyOf(IsOk(), StatusIs(absl::StatusCode::kUnimplemented)));
      made += said.ok();
    }
  }
  EXPECT_GT(made, 0);
  EXPECT_THAT(device_->failure(), IsOk());
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaPartsTest,
                         testing::Values(ProductTypes{DType::kF32, DType::kF32},
                                         ProductTypes{DType::kBF16, DType::kBF16},
                                         ProductTypes{DType::kBF16, DType::kF32}),
                         [](const auto& info) {
                           return absl::StrCat(ToString(info.param.operands), "_into_",
                                               ToString(info.param.result));
                         });

// Rows of 97 floats: those after the first are less aligned than the whole, whose algorithm may
// need that.
TEST_F(CudaProductsTest, APartThatIsLessAlignedIsRefused) {
  const Tensor x = FromHost<float>(*device_, std::vector<float>(97 * 97, 1), {97, 97}).value();
  const Tensor y = FromHost<float>(*device_, std::vector<float>(97 * 97, 1), {97, 97}).value();
  GemmProblem p = {DType::kF32, DType::kF32, 1, 1, 97, 97};
  p.whole_rows = 97;
  p.first_row = 1;
  p.b = {x.raw(), 97, 1, 0};
  p.a = {x.Narrow(0, 1, 1).raw(), 97, 1, 0};
  p.c = {y.Narrow(0, 1, 1).raw(), 97, 1, 0};
  EXPECT_THAT(device_->Gemm(p), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(device_->failure(), IsOk());
}

// cuBLASLt's count of them has 32 bits.
TEST_F(CudaProductsTest, MoreMatricesThanCanBeCountedAreRefused) {
  const Tensor x = FromHost<float>(*device_, std::vector<float>(4), {4}).value();
  GemmProblem p = {DType::kF32, DType::kF32, (int64_t{1} << 32) + 5, 1, 1, 1};
  p.a = p.b = {x.raw(), 1, 1, 0};
  p.c = {x.raw(), 1, 1, 1};
  p.only_asks = true;
  EXPECT_THAT(device_->Gemm(p), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("in parts")));
}

// Each has a workspace of its own: TSan sees one that is shared.
TEST_F(CudaProductsTest, TwoDevicesMultiplyAtTheSameTime) {
  DT_ASSERT_OK_AND_ASSIGN(const auto other, MakeCudaDevice(0));
  const std::vector<float> ones(64 * 64, 1);
  for (int round = 0; round < 4; ++round) {
    std::vector<Tensor> results;
    for (Device* device : {device_.get(), other.get()}) {
      const Tensor a = FromHost<float>(*device, ones, {64, 64}).value();
      results.push_back(FromHost<float>(*device, ones, {64, 64}).value());
      GemmProblem p = {DType::kF32, DType::kF32, 1, 64, 64, 64};
      p.a = p.b = {a.raw(), 64, 1, 0};
      p.c = {results.back().raw(), 64, 1, 0};
      ASSERT_THAT(device->Gemm(p), IsOk());
    }
    for (const Tensor& c : results) {
      EXPECT_THAT(ToHost<float>(c), IsOkAndHolds(std::vector<float>(64 * 64, 64)));
    }
  }
}

}  // namespace
}  // namespace dtensor
