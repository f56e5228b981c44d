#include "dtensor/testing/indexed_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                            DType::kI32, DType::kI64, DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin,
                             ReduceOp::kProduct};

bool Allowed(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kAvg) return IsFloat(dtype);
  return dtype != DType::kBool || op == ReduceOp::kMax || op == ReduceOp::kMin;
}

// Whether a whole number is one of the type's.
bool Fits(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kBF16:
      return static_cast<float>(BFloat16(static_cast<float>(value))) == static_cast<float>(value);
    case DType::kF16:
      return static_cast<float>(Float16(static_cast<float>(value))) == static_cast<float>(value);
    case DType::kBool:
      return value == 0 || value == 1;
    default:
      return value >= -(int64_t{1} << 24) * 3 && value <= (int64_t{1} << 24) * 3;
  }
}

int64_t Combine(ReduceOp op, int64_t a, int64_t b) {
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (op == ReduceOp::kMin) return std::min(a, b);
  return op == ReduceOp::kProduct ? a * b : a + b;
}

RedistributionPlan Plan(const char* mesh_text, const char* from, const char* to, const Dims& shape,
                        DType dtype) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text).value();
  return RedistributionPlan::Create(Layout::Parse(mesh, from).value(),
                                    Layout::Parse(mesh, to).value(), shape, dtype)
      .value();
}

TEST(TermCodeTest, TermsCombineToTheValueExactly) {
  for (DType dtype : kTypes) {
    for (ReduceOp op : kOps) {
      if (!Allowed(dtype, op)) continue;
      const TermCode code(dtype, op);
      for (int count : {1, 2, 3, 7, 64}) {
        for (int64_t number = 0; number < 200; ++number) {
          int64_t combined = code.Term(number, {5, 0, count});
          for (int i = 1; i < count; ++i) {
            const int64_t term = code.Term(number, {5, i, count});
            ASSERT_TRUE(Fits(dtype, term)) << ToString(dtype) << " " << term;
            combined = Combine(op, combined, term);
            if (dtype == DType::kF32) {
              ASSERT_LE(std::abs(combined), int64_t{1} << 24);
            }
          }
          if (op == ReduceOp::kAvg) {
            ASSERT_EQ(combined % count, 0);
            combined /= count;
          }
          ASSERT_EQ(combined, code.Value(number, 5)) << ToString(dtype) << " " << ToString(op);
        }
      }
    }
  }
}

TEST(TermCodeTest, LeavingOutOrDoublingATermShows) {
  for (ReduceOp op : kOps) {
    const TermCode code(DType::kF32, op);
    const bool may_be_idle = op == ReduceOp::kMax || op == ReduceOp::kMin;
    int shows = 0;
    for (int64_t number = 0; number < 300; ++number) {
      const int64_t first = code.Term(number, {0, 0, 2}), second = code.Term(number, {0, 1, 2});
      const int64_t divisor = op == ReduceOp::kAvg ? 2 : 1;
      shows += first / divisor != code.Value(number, 0);
      if (!may_be_idle) {
        shows += Combine(op, Combine(op, first, second), second) / divisor != code.Value(number, 0);
      }
    }
    EXPECT_GT(shows, 100) << ToString(op);
  }
}

// Each rank's source, checked as if it were the result of a move to where it is.
TEST(IndexedDataTest, ASourceIsRightAndEveryWrongElementIsFound) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  for (DType dtype : kTypes) {
    const RedistributionPlan plan =
        Plan("a=2,b=3", "[a:zigzag] [b]", "[a:zigzag] [b]", {7, 5}, dtype);
    const IndexedData data(plan);
    for (int rank = 0; rank < 6; ++rank) {
      DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, data.Source(rank, *device));
      EXPECT_EQ(data.Check(rank, tensor).count, 0) << ToString(dtype);
      if (tensor.numel() == 0) continue;
      std::byte* last = static_cast<std::byte*>(tensor.raw()) + tensor.bytes() - 1;
      *last ^= std::byte{1};
      EXPECT_EQ(data.Check(rank, tensor).count, 1) << ToString(dtype);
      EXPECT_THAT(data.Check(rank, tensor).first, testing::StartsWith("element "));
    }
  }
}

TEST(IndexedDataTest, AnotherRanksShardIsWrong) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const RedistributionPlan plan = Plan("a=2", "[a]", "[a]", {64}, DType::kF32);
  const IndexedData data(plan);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, data.Source(1, *device));
  EXPECT_GT(data.Check(0, tensor).count, 30);
}

// R -> P(max): coordinate 0 has the value, the others -infinity.
TEST(IndexedDataTest, NewTermsAreTheIdentityButOnce) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const RedistributionPlan plan = Plan("a=2", "[]", "[] P(max: a)", {4}, DType::kF32);
  const IndexedData data(plan);
  DT_EXPECT_OK(data.CheckKeepers());
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, data.Source(0, *device));
  EXPECT_EQ(data.Check(0, tensor).count, 0);
  EXPECT_EQ(data.Check(1, tensor).count, 4);
  std::fill_n(tensor.data<float>(), 4, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(data.Check(1, tensor).count, 0);
}

}  // namespace
}  // namespace dtensor
