#include "dtensor/runtime/comm/messages/box_pieces.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using box_testing::Backed;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Of each element in row-major order: its index in every dimension, in the source and the result.
using Index = std::vector<std::pair<int64_t, int64_t>>;

std::vector<Index> ElementsOf(const BoxDims& box) {
  std::vector<Index> all = {{}};
  for (const MatchedRun& run : box) {
    std::vector<Index> longer;
    for (const Index& start : all) {
      for (int64_t j = 0; j < run.count; ++j) {
        for (int64_t i = 0; i < run.length; ++i) {
          longer.push_back(start);
          longer.back().emplace_back(run.src + j * run.src_stride + i,
                                     run.dst + j * run.dst_stride + i);
        }
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string ToText(const BoxDims& box) {
  std::string text;
  for (const MatchedRun& run : box) {
    absl::StrAppend(&text, "[", run.length, "+", run.src_stride, "/", run.dst_stride, " x",
                    run.count, "]");
  }
  return text;
}

BoxDims RandomBox(TestRandom& random) {
  return box_testing::RandomReceiveBox(random, static_cast<int>(random.In(0, 4)), {}).dims;
}

TEST(CutBox, CoversTheBoxOnceInOrder) {
  TestRandom random(1);
  for (int i = 0; i < 3000; ++i) {
    const BoxDims box = RandomBox(random);
    const int64_t most = random.In(1, random.Chance(50) ? 5 : 500);
    std::vector<Index> covered;
    for (const BoxDims& piece : CutBox(box, most)) {
      const std::vector<Index> elements = ElementsOf(piece);
      EXPECT_FALSE(elements.empty());
      EXPECT_LE(elements.size(), most);
      EXPECT_EQ(NumElements(ShapeOf(piece)), elements.size());
      covered.insert(covered.end(), elements.begin(), elements.end());
    }
    EXPECT_EQ(covered, ElementsOf(box)) << ToText(box) << " in pieces of " << most;
  }
}

// Sender and receiver, which see the runs from their own side, cut alike.
TEST(CutBox, IsTheSameFromBothSides) {
  TestRandom random(2);
  for (int i = 0; i < 500; ++i) {
    const BoxDims box = RandomBox(random);
    BoxDims other = box;
    for (MatchedRun& run : other) {
      std::swap(run.src, run.dst);
      std::swap(run.src_stride, run.dst_stride);
    }
    const int64_t most = random.In(1, 50);
    const std::vector<BoxDims> mine = CutBox(box, most), theirs = CutBox(other, most);
    ASSERT_EQ(mine.size(), theirs.size());
    for (size_t p = 0; p < mine.size(); ++p) EXPECT_EQ(ShapeOf(mine[p]), ShapeOf(theirs[p]));
  }
}

TEST(CutBox, Edges) {
  const BoxDims box = {{.src = 3, .dst = 5, .length = 4}};
  EXPECT_THAT(CutBox(box, 4), ElementsAre(box));
  EXPECT_THAT(CutBox(box, INT64_MAX), ElementsAre(box));
  EXPECT_EQ(CutBox(box, 1).size(), 4);
  EXPECT_THAT(CutBox({}, 1), ElementsAre(BoxDims{}));  // a scalar
  EXPECT_THAT(CutBox({{.length = 0}, {.length = 5}}, 1), IsEmpty());
  EXPECT_THAT(CutBox({{.length = 1, .count = 0}}, 1), IsEmpty());
}

// Few pieces: none is smaller than half of what it may be where one dimension allows that.
TEST(CutBox, PiecesAreAsLargeAsTheyMayBe) {
  EXPECT_EQ(CutBox({{.length = 1000}}, 100).size(), 10);
  EXPECT_EQ(CutBox({{.length = 10}, {.length = 100}}, 100).size(), 10);
  EXPECT_EQ(CutBox({{.length = 10}, {.length = 100}}, 250).size(), 5);
  // Every other element, and three of five.
  EXPECT_EQ(CutBox({{.length = 1, .count = 1000, .src_stride = 2, .dst_stride = 1}}, 100).size(),
            10);
  EXPECT_EQ(
      CutBox({{.length = 3, .count = 20, .src_stride = 5, .dst_stride = 4}, {.length = 10}}, 100)
          .size(),
      7);
  EXPECT_EQ(CutBox({{.length = 30, .count = 2, .src_stride = 50, .dst_stride = 30}}, 20).size(), 4);
}

class BoxPieces : public testing::Test {
 protected:
  Backed Holding(TestRandom& random, const BoxDims& box, BoxSide side) {
    const ReceiveBox receive{.dims = box};
    return box_testing::RandomTensor(random, *device_,
                                     random.Chance(50) ? DType::kF32 : DType::kBF16,
                                     side == BoxSide::kSource ? box_testing::SourceShape(receive)
                                                              : box_testing::DstShape(receive));
  }
  // In elements from the tensor's first.
  static std::vector<int64_t> Positions(const Tensor& tensor, const BoxDims& box, BoxSide side) {
    std::vector<int64_t> positions;
    for (const Index& index : ElementsOf(box)) {
      int64_t position = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        position +=
            tensor.strides()[d] * (side == BoxSide::kSource ? index[d].first : index[d].second);
      }
      positions.push_back(position);
    }
    return positions;
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice();
};

TEST_F(BoxPieces, RunOfIsThereExactlyWhereBytesAreConsecutive) {
  TestRandom random(3);
  int with = 0, without = 0;
  for (int i = 0; i < 5000; ++i) {
    const BoxDims box = RandomBox(random);
    const BoxSide side = random.Chance(50) ? BoxSide::kSource : BoxSide::kResult;
    const Backed held = Holding(random, box, side);
    for (const BoxDims& piece : CutBox(box, random.In(1, 40))) {
      const std::vector<int64_t> positions = Positions(held.tensor, piece, side);
      bool consecutive = true;
      for (size_t e = 1; e < positions.size(); ++e) {
        consecutive = consecutive && positions[e] == positions[0] + static_cast<int64_t>(e);
      }
      // Runs that touch would be one: no set of indices has such.
      for (const MatchedRun& run : piece)
        consecutive = consecutive && (run.count == 1 || run.size() == 1);
      const auto bytes = RunOf(held.tensor, piece, side);
      ASSERT_EQ(bytes.has_value(), consecutive) << ToText(piece);
      ++(consecutive ? with : without);
      if (!bytes) continue;
      const int64_t size = SizeOf(held.tensor.dtype());
      EXPECT_EQ(bytes->size(), positions.size() * size);
      EXPECT_EQ(bytes->data(), held.tensor.data<std::byte>() + positions[0] * size);
    }
  }
  EXPECT_GT(with, 1000);
  EXPECT_GT(without, 1000);
}

// As few rows as there can be, which together are the piece in its order.
TEST_F(BoxPieces, RowsOfAreThePieceInItsOrder) {
  TestRandom random(5);
  int with = 0, without = 0;
  for (int i = 0; i < 1000; ++i) {
    const BoxDims piece = RandomBox(random);
    if (NumElements(ShapeOf(piece)) == 0) continue;
    const BoxSide side = random.Chance(50) ? BoxSide::kSource : BoxSide::kResult;
    const Backed held = Holding(random, piece, side);
    const std::vector<int64_t> positions = Positions(held.tensor, piece, side);
    const size_t size = SizeOf(held.tensor.dtype()), least = random.In(1, 40);
    const auto rows = RowsOf(held.tensor, piece, side, least);
    const auto all = RowsOf(held.tensor, piece, side, 1);
    ASSERT_TRUE(all.has_value());
    ASSERT_EQ(rows.has_value(), all->rows().size() == 1 || all->rows().front().size() >= least)
        << ToText(piece);
    ++(rows ? with : without);
    size_t e = 0;
    for (const absl::Span<std::byte> row : all->rows()) {
      ASSERT_EQ(row.size(), all->rows().front().size());
      ASSERT_LE(e + row.size() / size, positions.size());
      for (size_t byte = 0; byte < row.size(); byte += size, ++e) {
        ASSERT_EQ(row.data() + byte, held.tensor.data<std::byte>() + positions[e] * size)
            << ToText(piece) << " element " << e;
      }
    }
    EXPECT_EQ(e, positions.size());
    EXPECT_EQ(all->bytes(), positions.size() * size);
  }
  EXPECT_GT(with, 150);
  EXPECT_GT(without, 50);
}

// Rows of a matrix, whose columns have gaps or none.
TEST_F(BoxPieces, RowsAreAsLongAsTheyCanBe) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor matrix, Tensor::Empty(*device_, DType::kF32, {8, 10}));
  const auto rows_of = [&](const BoxDims& piece) {
    const auto rows = RowsOf(matrix, piece, BoxSide::kSource, 1);
    return std::pair(rows->rows().size(), rows->rows().front().size());
  };
  EXPECT_EQ(rows_of({{.length = 8}, {.length = 10}}), std::pair(size_t{1}, size_t{320}));
  EXPECT_EQ(rows_of({{.length = 8}, {.length = 9}}), std::pair(size_t{8}, size_t{36}));
  EXPECT_EQ(rows_of({{.length = 1, .count = 4, .src_stride = 2}, {.length = 10}}),
            std::pair(size_t{4}, size_t{40}));
  EXPECT_EQ(rows_of({{.length = 2, .count = 2, .src_stride = 4}, {.length = 10}}),
            std::pair(size_t{2}, size_t{80}));
  EXPECT_EQ(rows_of({{.length = 2}, {.length = 2, .count = 3, .src_stride = 4}}),
            std::pair(size_t{6}, size_t{8}));
}

TEST_F(BoxPieces, ViewOfIsThePieceWhereRunsHaveNoGaps) {
  TestRandom random(6);
  int with = 0;
  for (int i = 0; i < 300; ++i) {
    const BoxDims piece = RandomBox(random);
    const Backed held = Holding(random, piece, BoxSide::kSource);
    const bool has_gaps = absl::c_any_of(piece, [](const auto& run) { return run.count != 1; });
    const auto view = ViewOf(held.tensor, piece);
    ASSERT_EQ(view.has_value(), !has_gaps);
    if (!view || view->numel() == 0) continue;
    ++with;
    EXPECT_EQ(view->shape(), ShapeOf(piece));
    BoxDims whole = piece;
    for (MatchedRun& run : whole) run.src = 0;
    const std::vector<int64_t> here = Positions(*view, whole, BoxSide::kSource);
    const std::vector<int64_t> there = Positions(held.tensor, piece, BoxSide::kSource);
    const int64_t size = SizeOf(held.tensor.dtype());
    for (size_t e = 0; e < here.size(); ++e) {
      ASSERT_EQ(view->data<std::byte>() + here[e] * size,
                held.tensor.data<std::byte>() + there[e] * size);
    }
  }
  EXPECT_GT(with, 50);
}

TEST_F(BoxPieces, PacksRowMajor) {
  TestRandom random(4);
  for (int i = 0; i < 500; ++i) {
    const BoxDims box = RandomBox(random);
    const Backed source = Holding(random, box, BoxSide::kSource);
    for (const BoxDims& piece : CutBox(box, random.In(1, 60))) {
      DT_ASSERT_OK_AND_ASSIGN(const Tensor packed,
                              Tensor::Empty(*device_, source.tensor.dtype(), ShapeOf(piece)));
      DT_ASSERT_OK(PackPiece(source.tensor, piece, packed));
      DT_ASSERT_OK(device_->Synchronize());
      const int64_t size = SizeOf(packed.dtype());
      const std::vector<int64_t> positions = Positions(source.tensor, piece, BoxSide::kSource);
      for (size_t e = 0; e < positions.size(); ++e) {
        ASSERT_EQ(std::memcmp(packed.data<std::byte>() + e * size,
                              source.tensor.data<std::byte>() + positions[e] * size, size),
                  0)
            << ToText(piece) << " element " << e;
      }
    }
  }
}

}  // namespace
}  // namespace dtensor
