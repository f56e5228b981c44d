// What products ask of cuBLASLt, which only its fake can tell.
#include "dtensor/runtime/device/cuda/cublaslt_gemm.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cuda/fake/cublaslt_counts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

class CublasLtGemmTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    DT_ASSERT_OK_AND_ASSIGN(memory_, Tensor::Empty(*device_, DType::kF64, {3 * kEach}));
    DT_ASSERT_OK(device_->FillBytes(memory_.raw(), 0, memory_.bytes()));
  }
  // Three operands in memory that is good for any of these products; 256 bytes are a multiple of
  // its alignment.
  GemmProblem Product(int64_t m, int64_t n, int64_t k) const {
    char* const at = static_cast<char*>(memory_.raw());
    GemmProblem p = {DType::kF32, DType::kF32, 1, m, n, k};
    p.a = {at, k, 1, 0};
    p.b = {at + 8 * kEach, n, 1, 0};
    p.c = {at + 16 * kEach, n, 1, 0};
    return p;
  }
  // How many heuristics it asks for.
  int64_t AskedFor(const GemmProblem& p) {
    const int64_t before = fake_cuda::HeuristicsAsked();
    EXPECT_THAT(device_->Gemm(p), IsOk());
    return fake_cuda::HeuristicsAsked() - before;
  }
  static GemmMatrix Moved(GemmMatrix x, int64_t bytes) {
    x.data = static_cast<char*>(x.data) + bytes;
    return x;
  }

 private:
  static constexpr int64_t kEach = 1 << 13;
  Tensor memory_;
};

TEST_F(CublasLtGemmTest, ARepeatedShapeIsAskedForOnce) {
  GemmProblem p = Product(8, 16, 32);
  EXPECT_EQ(AskedFor(p), 1);
  EXPECT_EQ(AskedFor(p), 0);
  p.a = Moved(p.a, 256);
  p.c = Moved(p.c, 512);
  EXPECT_EQ(AskedFor(p), 0) << "elsewhere, as well aligned";
}

TEST_F(CublasLtGemmTest, PartsTakeWhatTheWholeWasGiven) {
  GemmProblem p = Product(64, 16, 64);
  EXPECT_EQ(AskedFor(p), 1);
  p.whole_rows = 64;
  p.m = 16;
  EXPECT_EQ(AskedFor(p), 0);
}

// All that an algorithm may depend on is part of what a plan is found by.
TEST_F(CublasLtGemmTest, WhatDiffersIsAskedForAnew) {
  const GemmProblem first = Product(8, 16, 32);
  std::vector<GemmProblem> others = {Product(9, 16, 32), Product(8, 17, 32), Product(8, 16, 33)};
  const auto other = [&](auto change) { change(others.emplace_back(first)); };
  other([](GemmProblem& p) { p.dtype = p.out_dtype = DType::kF64; });
  other([](GemmProblem& p) { p.dtype = p.out_dtype = DType::kBF16; });
  other([](GemmProblem& p) { p.dtype = DType::kBF16; });
  other([](GemmProblem& p) { p.accumulate = true; });
  other([](GemmProblem& p) { p.a.row_stride = 40; });
  other([](GemmProblem& p) { p.b.row_stride = 40; });
  other([](GemmProblem& p) { p.c.row_stride = 40; });
  other([](GemmProblem& p) { p.a = {p.a.data, 1, 8, 0}; });
  other([](GemmProblem& p) { p.b = {p.b.data, 1, 32, 0}; });
  other([](GemmProblem& p) { p.a = Moved(p.a, 4); });
  other([](GemmProblem& p) { p.b = Moved(p.b, 16); });
  other([](GemmProblem& p) { p.c = Moved(p.c, 64); });
  for (const int64_t batch : {2, 3}) {
    other([&](GemmProblem& p) {
      p.batch = batch;
      p.a.batch_stride = p.b.batch_stride = p.c.batch_stride = 1024;
    });
  }
  ASSERT_EQ(AskedFor(first), 1);
  for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(AskedFor(others[i]), 1) << i;
  for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(AskedFor(others[i]), 0) << i;
  EXPECT_EQ(AskedFor(first), 0);
}

// A program whose shapes never repeat does not fill the host's memory: 4096 plans are kept.
TEST_F(CublasLtGemmTest, PlansDoNotGrowForEver) {
  constexpr int64_t kMost = 4096;
  for (int64_t n = 1; n <= kMost; ++n) ASSERT_EQ(AskedFor(Product(1, n, 2)), 1) << n;
  EXPECT_EQ(AskedFor(Product(1, 1, 2)), 0) << "all of them are there";
  EXPECT_EQ(AskedFor(Product(1, kMost + 1, 2)), 1);
  EXPECT_EQ(AskedFor(Product(1, 1, 2)), 1) << "it had to go";
  EXPECT_EQ(AskedFor(Product(1, kMost + 1, 2)), 0);
}

// Nothing was launched, so the device goes on. The memory is of a part.
TEST_F(CublasLtGemmTest, SizesWithoutAnAlgorithmAreRefused) {
  GemmProblem p = Product(4, 16, 32);
  p.whole_rows = (int64_t{1} << 31) + 8;
  for (const bool only_asks : {true, false}) {
    p.only_asks = only_asks;
    EXPECT_THAT(device_->Gemm(p), StatusIs(absl::StatusCode::kUnimplemented,
                                           HasSubstr("1 x (2147483656, 32) and (32, 16)")));
  }
  EXPECT_THAT(device_->failure(), IsOk());
  EXPECT_EQ(AskedFor(Product(4, 16, 32)), 1);
}

// The fake adds one product after the other, unless it may make a small result's sums in two parts.
TEST_F(CublasLtGemmTest, SumsAreNotMadeInParts) {
  constexpr int64_t m = 16, n = 8, k = 97;
  std::vector<float> numbers(m * k);
  for (int64_t i = 0; i < m * k; ++i) numbers[i] = 1 / (1.0f + static_cast<float>(i % 101));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor a, FromHost<float>(*device_, numbers, {m, k}));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor c, Tensor::Empty(*device_, DType::kF32, {m, n}));
  GemmProblem p = Product(m, n, k);
  p.a.data = a.raw();
  p.b.data = a.raw();
  p.c.data = c.raw();
  ASSERT_THAT(device_->Gemm(p), IsOk());
  std::vector<float> expected(m * n);
  for (int64_t i = 0; i < m * n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      expected[i] =
          static_cast<float>(expected[i] + double{numbers[i / n * k + j]} * numbers[j * n + i % n]);
    }
  }
  EXPECT_THAT(ToHost<float>(c), IsOkAndHolds(expected));
}

}  // namespace
}  // namespace dtensor
