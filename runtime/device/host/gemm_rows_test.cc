// Products in parts of their rows: the bits of the whole, or a refusal.
//
// DTENSOR_GEMM_ROWS=N takes N products (100 unless set), DTENSOR_GEMM_ROWS_SEED others.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

int Number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

GemmMatrix Matrix(void* data, int64_t rows, int64_t columns, bool transposed, int64_t gap) {
  if (transposed) return {data, 1, rows + gap, 0};
  return {data, columns + gap, 1, 0};
}

char* Row(const GemmMatrix& x, int64_t row, DType dtype) {
  return static_cast<char*>(x.data) + row * x.row_stride * SizeOf(dtype);
}

// A random product, once as a whole and once as [0, first), [first, end), [end, m).
class Product {
 public:
  Product(DType dtype, std::mt19937& random) : device_(MakeCpuDevice()), random_(random) {
    const auto size = [&] { return random() % 4 == 0 ? 1 + random() % 4 : 1 + random() % 300; };
    p_.dtype = p_.out_dtype = dtype;
    p_.m = size(), p_.n = size(), p_.k = size() + (random() % 8 == 0 ? 1000 : 0);
    p_.accumulate = random() % 4 == 0;
    if (dtype == DType::kBF16 && random() % 2 == 0) p_.out_dtype = DType::kF32;
    const auto gap = [&] { return random() % 2 == 0 ? 0 : random() % 20; };
    a_ = Numbers((p_.m + 20) * (p_.k + 20), dtype);
    b_ = Numbers((p_.k + 20) * (p_.n + 20), dtype);
    whole_ = Numbers((p_.m + 20) * (p_.n + 20), p_.out_dtype);
    parts_ = whole_;
    p_.a = Matrix(a_.data(), p_.m, p_.k, random() % 4 == 0, gap());
    p_.b = Matrix(b_.data(), p_.k, p_.n, random() % 2 == 0, gap());
    p_.c = Matrix(whole_.data(), p_.m, p_.n, false, gap());
  }

  std::string ToString() const {
    return absl::StrCat(dtensor::ToString(p_.dtype), " ", p_.m, " x ", p_.k, " x ", p_.n, ", A ",
                        p_.a.row_stride, " ", p_.a.col_stride, ", B ", p_.b.row_stride, " ",
                        p_.b.col_stride, ", C ", p_.c.row_stride, p_.accumulate ? ", added" : "");
  }

  absl::Status RunWhole() { return device_->Gemm(p_); }
  absl::Status RunParts() {
    const int64_t first = random_() % p_.m, end = first + 1 + random_() % (p_.m - first);
    const int64_t cuts[] = {0, first, end, p_.m};
    for (int i = 2; i >= 0; --i) {  // in any order
      GemmProblem part = p_;
      part.whole_rows = p_.m;
      part.first_row = cuts[i];
      part.m = cuts[i + 1] - cuts[i];
      part.a.data = Row(p_.a, cuts[i], p_.dtype);
      part.c.data = parts_.data() + (Row(p_.c, cuts[i], p_.out_dtype) - whole_.data());
      part.only_asks = true;
      if (absl::Status s = device_->Gemm(part); !s.ok()) return s;
      part.only_asks = false;
      if (absl::Status s = device_->Gemm(part); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  bool SameBits() const { return whole_ == parts_; }
  bool IsUntouched(const std::vector<char>& before) const { return parts_ == before; }
  const std::vector<char>& parts() const { return parts_; }

 private:
  std::vector<char> Numbers(int64_t count, DType dtype) {
    std::normal_distribution<double> normal;
    std::vector<char> bytes(count * SizeOf(dtype));
    for (int64_t i = 0; i < count; ++i) {
      const double value = normal(random_);
      char* const at = bytes.data() + i * SizeOf(dtype);
      const auto put = [at](auto x) { std::memcpy(at, &x, sizeof(x)); };
      if (dtype == DType::kF32) put(static_cast<float>(value));
      if (dtype == DType::kF64) put(value);
      if (dtype == DType::kBF16) put(BFloat16(static_cast<float>(value)));
      if (dtype == DType::kF16) put(Float16(static_cast<float>(value)));
    }
    return bytes;
  }

  std::unique_ptr<Device> device_;
  std::mt19937& random_;
  GemmProblem p_;
  std::vector<char> a_, b_, whole_, parts_;
};

TEST(GemmRowsTest, PartsHaveTheBitsOfTheWholeOrAreRefused) {
  std::mt19937 random(Number("DTENSOR_GEMM_ROWS_SEED", 1));
  const int count = Number("DTENSOR_GEMM_ROWS", 100);
  std::map<DType, int> made;  // in parts
  for (int i = 0; i < count; ++i) {
    const DType types[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
    const DType dtype = types[random() % 4];
    Product product(dtype, random);
    SCOPED_TRACE(product.ToString());
    ASSERT_THAT(product.RunWhole(), IsOk());
    const std::vector<char> before = product.parts();
    const absl::Status status = product.RunParts();
    if (status.ok()) {
      ++made[dtype];
      ASSERT_TRUE(product.SameBits());
    } else {
      ASSERT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("make all")));
      ASSERT_TRUE(product.IsUntouched(before));
    }
  }
  std::printf("made in parts: f32 %d, bf16 %d, f16 %d, f64 %d of %d\n", made[DType::kF32],
              made[DType::kBF16], made[DType::kF16], made[DType::kF64], count);
  EXPECT_GT(made[DType::kF64], count / 8);  // by our own loops, on any CPU
}

TEST(GemmRowsTest, WhatIsNoPartIsRefused) {
  const auto device = MakeCpuDevice();
  std::vector<float> x(64);
  GemmProblem p = {.m = 2, .n = 2, .k = 2, .whole_rows = 3, .first_row = 2};
  p.a = p.b = {x.data(), 2, 1, 0};
  p.c = {x.data() + 32, 2, 1, 0};
  EXPECT_THAT(device->Gemm(p),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no part of 3 rows")));
  p.first_row = 1;
  p.batch = 2;
  EXPECT_THAT(device->Gemm(p), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace dtensor
