#include "dtensor/runtime/kernels/arguments/strided_loop.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

// All offsets of one operand, element by element.
std::vector<int64_t> Offsets(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  const StridedLoop<1> loop(shape, {strides});
  std::vector<int64_t> offsets;
  loop.ForEachRow([&](const auto& row) {
    for (int64_t i = 0; i < loop.inner_size(); ++i) {
      offsets.push_back(row[0] + i * loop.inner_stride(0));
    }
  });
  return offsets;
}

TEST(StridedLoop, VisitsInRowMajorOrder) {
  EXPECT_EQ(Offsets({2, 3}, {3, 1}), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Offsets({2, 3}, {1, 2}), (std::vector<int64_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(Offsets({2, 2, 2}, {1, 10, 100}),
            (std::vector<int64_t>{0, 100, 10, 110, 1, 101, 11, 111}));
  EXPECT_EQ(Offsets({2, 2}, {0, 1}), (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(Offsets({2, 1, 2}, {2, 77, 1}), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(StridedLoop, ScalarsAndEmptyShapes) {
  EXPECT_EQ(Offsets({}, {}), (std::vector<int64_t>{0}));
  EXPECT_EQ(Offsets({1, 1}, {5, 9}), (std::vector<int64_t>{0}));
  EXPECT_EQ(Offsets({3, 0}, {0, 1}), (std::vector<int64_t>{}));
  EXPECT_EQ(Offsets({0, 3}, {3, 1}), (std::vector<int64_t>{}));
}

TEST(StridedLoop, JoinsOnlyWhatAllOperandsCanWalk) {
  using Span = absl::Span<const int64_t>;
  const std::vector<int64_t> shape = {4, 5, 6}, packed = {30, 6, 1}, row = {0, 0, 1};
  EXPECT_EQ(StridedLoop<1>(shape, {Span(packed)}).inner_size(), 120);
  EXPECT_EQ((StridedLoop<2>(shape, {Span(packed), Span(row)}).inner_size()), 6);
  int rows = 0;
  StridedLoop<2>(shape, {Span(packed), Span(row)}).ForEachRow([&](const auto& offsets) {
    EXPECT_EQ(offsets[0], 6 * rows++);
    EXPECT_EQ(offsets[1], 0);
  });
  EXPECT_EQ(rows, 20);
}

}  // namespace
}  // namespace dtensor::kernels
