// How much work kernels say they are, on the meta device, against numbers worked out by hand.
#include "dtensor/runtime/core/work.h"

#include <cstddef>
#include <memory>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/box.h"
#include "dtensor/runtime/kernels/comparison.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/extremum.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/norm.h"
#include "dtensor/runtime/kernels/optimizer.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/runtime/kernels/softmax.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr DType kF32 = DType::kF32, kF64 = DType::kF64, kBF16 = DType::kBF16, kI64 = DType::kI64;

class WorkTest : public testing::Test {
 protected:
  Tensor Of(DType dtype, const Dims& shape) {
    return Tensor::Empty(*device_, dtype, shape).value();
  }

  // Of one kernel.
  template <typename Call>
  WorkCounts Counts(const Call& call) {
    const std::unique_ptr<Device> device = MakeMetaDevice();
    EXPECT_THAT(call(*device), IsOk());
    EXPECT_EQ(ClockOf(*device)->work().kernels, 1);
    return ClockOf(*device)->work();
  }
  template <typename Call>
  double Bytes(const Call& call) {
    const WorkCounts counts = Counts(call);
    EXPECT_EQ(counts.gemm_flops, PerDType());
    EXPECT_EQ(counts.attention_flops, PerDType());
    return counts.bytes;
  }

  const std::unique_ptr<Device> device_ = MakeMetaDevice();
};

TEST_F(WorkTest, ElementwiseReadsAndWritesEachOperand) {
  const Tensor x = Of(kF32, {6, 5}), y = Of(kF32, {6, 5}), out = Of(kF32, {6, 5});
  EXPECT_EQ(Bytes([&](Device& d) { return Binary(d, BinaryOp::kAdd, x, y, out); }), 3 * 120);
  // One row, seen six times.
  const Tensor row = Of(kF32, {5}).BroadcastTo({6, 5});
  EXPECT_EQ(Bytes([&](Device& d) { return Binary(d, BinaryOp::kAdd, x, row, out); }), 240 + 20);
  const Tensor terms[] = {x, y, x};
  EXPECT_EQ(Bytes([&](Device& d) { return AddN(d, terms, out); }), 4 * 120);
  EXPECT_EQ(Bytes([&](Device& d) { return Affine(d, x, 2, 1, out); }), 240);
  EXPECT_EQ(Bytes([&](Device& d) { return Fill(d, out, 1); }), 120);
  const Tensor half = Of(kBF16, {6, 5});
  EXPECT_EQ(Bytes([&](Device& d) { return Unary(d, UnaryOp::kCopy, x, half); }), 120 + 60);
  EXPECT_EQ(Bytes([&](Device& d) {
              return SiluMulGrad(d, x, y, x, out, Of(kF32, {6, 5}));
            }),
            5 * 120);
  const Tensor flags = Of(DType::kBool, {6, 5});
  EXPECT_EQ(Bytes([&](Device& d) { return Compare(d, CompareOp::kLess, x, y, flags); }), 240 + 30);
  EXPECT_EQ(Bytes([&](Device& d) { return Where(d, flags, x, y, out); }), 30 + 360);
}

TEST_F(WorkTest, NothingIsNoBytes) {
  const Tensor none = Of(kF32, {0, 5});
  EXPECT_EQ(Bytes([&](Device& d) { return Binary(d, BinaryOp::kAdd, none, none, none); }), 0);
  EXPECT_EQ(Bytes([&](Device& d) { return Softmax(d, SoftmaxForm::kPlain, none, none); }), 0);
}

TEST_F(WorkTest, CopiesReadAndWrite) {
  const Tensor x = Of(kF64, {6, 5}), y = Of(kF64, {5, 6});
  EXPECT_EQ(Bytes([&](Device& d) { return Copy(d, x.Transpose(0, 1), y); }), 2 * 240);
  const auto box = [](int64_t n, absl::InlinedVector<int, 4> peers) {
    return ReceiveBox{.peers = peers, .dims = {{.length = n}}};
  };
  const Tensor from = Of(kBF16, {8}), to = Of(kF32, {8});
  const Tensor* const sources[] = {&from, &from, &from};
  const BoxMove moves[] = {BoxMove(box(5, {0}), to, absl::MakeConstSpan(sources, 1)),
                           BoxMove(box(2, {0, 1, 2}), to, sources)};
  EXPECT_EQ(Bytes([&](Device& d) { return MoveBoxes(d, "Test", moves); }),
            5 * (2 + 4) + 2 * (3 * 2 + 4));
  EXPECT_EQ(Bytes([&](Device& d) { return FillIdentity(d, ReduceOp::kMax, to); }), 32);
  EXPECT_EQ(Bytes([&](Device& d) { return FillIdentity(d, ReduceOp::kSum, to); }), 32);
}

TEST_F(WorkTest, RowsAndTheirStatistics) {
  const Tensor x = Of(kBF16, {3, 8}), y = Of(kBF16, {3, 8}), w = Of(kBF16, {8});
  const Tensor each = Of(kF32, {3}), other = Of(kF32, {3});
  EXPECT_EQ(Bytes([&](Device& d) { return Softmax(d, SoftmaxForm::kPlain, x, y); }), 96);
  EXPECT_EQ(Bytes([&](Device& d) { return SoftmaxStats(d, x, Of(kF32, {3, 2})); }), 48 + 24);
  EXPECT_EQ(Bytes([&](Device& d) {
              return SoftmaxMerge(d, SoftmaxForm::kLog, x, Of(kF32, {4, 3, 2}), y);
            }),
            96 + 96);
  EXPECT_EQ(Bytes([&](Device& d) { return RmsNorm(d, x, w, 0, y, each); }), 96 + 16 + 12);
  EXPECT_EQ(Bytes([&](Device& d) {
              return RmsNormGrad(d, x, w, each, y, Of(kBF16, {3, 8}), w);
            }),
            3 * 48 + 2 * 16 + 12);
  EXPECT_EQ(Bytes([&](Device& d) { return LayerNorm(d, x, w, w, 0, y, each, other); }),
            96 + 32 + 24);
  EXPECT_EQ(Bytes([&](Device& d) { return RowMoments(d, x, Of(kF64, {3, 3})); }), 48 + 72);
}

TEST_F(WorkTest, Reductions) {
  const Tensor x = Of(kF32, {6, 5});
  EXPECT_EQ(Bytes([&](Device& d) { return Reduce(d, ReduceOp::kSum, x, {0}, Of(kF32, {5})); }),
            120 + 20);
  EXPECT_EQ(Bytes([&](Device& d) { return SumOfSquares(d, x, Of(kF32, {})); }), 120 + 4);
  EXPECT_EQ(Bytes([&](Device& d) { return Bincount(d, Of(DType::kI32, {6}), Of(kF32, {3})); }),
            24 + 12);
  EXPECT_EQ(Bytes([&](Device& d) {
              return ArgMaxStats(d, x, 1, IndexSet::Interval(0, 5), Of(kI64, {6, 2}));
            }),
            120 + 6 * 16);
  EXPECT_EQ(Bytes([&](Device& d) { return CountTies(d, x, Of(kF32, {6}), {1}, Of(kI64, {6})); }),
            120 + 24 + 48);
  const Tensor picked = Of(kF32, {6, 2}), indices = Of(DType::kI64, {6, 2});
  EXPECT_EQ(Bytes([&](Device& d) { return TopK(d, x, 2, picked, indices); }), 120 + 48 + 96);
  EXPECT_EQ(Bytes([&](Device& d) { return TakeGrad(d, indices, picked, x); }), 96 + 48 + 120);
  EXPECT_EQ(Bytes([&](Device& d) { return Take(d, x, indices, picked); }), 96 + 2 * 48);
}

TEST_F(WorkTest, IndexedKernels) {
  const Tensor ids = Of(DType::kI32, {7}), table = Of(kF32, {4, 8}), y = Of(kF32, {7, 8});
  const IndexSet rows = IndexSet::Interval(0, 4);
  EXPECT_EQ(Bytes([&](Device& d) { return Embedding(d, ids, table, rows, 4, y); }),
            28 + 2 * 7 * 32);
  EXPECT_EQ(Bytes([&](Device& d) { return EmbeddingGrad(d, ids, y, rows, table); }),
            28 + 7 * 32 + 4 * 32);
  const Tensor q = Of(kF32, {2, 3, 4, 8});
  EXPECT_EQ(Bytes([&](Device& d) {
              return Rope(d, q, IndexSet::Interval(0, 3), {1e4}, false, Of(kF32, {2, 3, 4, 8}));
            }),
            2 * 768);
  const Tensor out = Of(kF32, {4, 8});
  EXPECT_EQ(Bytes([&](Device& d) {
              return RandomNormal(d, {IndexSet::Interval(2, 6), IndexSet::Interval(0, 8)}, {9, 8},
                                  1, 0, 0, 1, out);
            }),
            128);
  EXPECT_EQ(Bytes([&](Device& d) {
              return CrossEntropyStats(d, y, ids, IndexSet::Interval(0, 8), {.num_classes = 8},
                                       Of(kF32, {7, 3}));
            }),
            7 * 32 + 28 + 84);
}

TEST_F(WorkTest, OptimizersReadAndWriteStates) {
  const Tensor f32 = Of(kF32, {10}), bf16 = Of(kBF16, {10}), none;
  EXPECT_EQ(Bytes([&](Device& d) {
              return AdamW(d, {.lr = 1, .step = 1}, f32, f32, f32, f32, none, none);
            }),
            2 * 40 + 40 + 4 * 40);
  EXPECT_EQ(Bytes([&](Device& d) {
              return AdamW(d, {.lr = 1, .step = 1}, bf16, bf16, f32, f32, none, f32);
            }),
            2 * 20 + 20 + 6 * 40);
  EXPECT_EQ(Bytes([&](Device& d) { return Sgd(d, {.lr = 1}, f32, f32, none, none, none); }), 120);
  EXPECT_EQ(Bytes([&](Device& d) {
              return Sgd(d, {.lr = 1, .momentum = 0.5}, f32, f32, f32, none, none);
            }),
            200);
}

TEST_F(WorkTest, ProductsCountTwoForEachMultiplication) {
  const GemmProblem gemm = {.dtype = kBF16,
                            .out_dtype = kF32,
                            .batch = 2,
                            .m = 3,
                            .n = 5,
                            .k = 7,
                            .a = {nullptr, 7, 1, 21},
                            .b = {nullptr, 5, 1, 0},  // one for both
                            .c = {nullptr, 5, 1, 15},
                            .accumulate = true};
  const WorkCounts counts = Counts([&](Device& d) { return d.Gemm(gemm); });
  EXPECT_EQ(counts.gemm_flops[static_cast<size_t>(kBF16)], 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(counts.bytes, 2 * (2 * 21 + 35) + 2 * 4 * 2 * 15);
}

// Causal attention of 4 positions: 10 pairs; 2 heads of 8.
TEST_F(WorkTest, AttentionCountsThePairsThatItsMaskAllows) {
  const Dims shape = {1, 4, 2, 8};
  const Tensor q = Of(kBF16, shape), k = Of(kBF16, {1, 4, 1, 8}), o = Of(kBF16, shape);
  const Tensor lse = Of(kF32, {1, 2, 4}), delta = Of(kF32, {1, 2, 4});
  const AttentionStep step = WholeAttention(1, /*causal=*/true, 4, 4);
  const WorkCounts forward =
      Counts([&](Device& d) { return Attention(d, q, k, k, step, nullptr, o, lse); });
  EXPECT_EQ(forward.attention_flops[static_cast<size_t>(kBF16)], 2 * 2 * 10 * 2 * 8);
  EXPECT_EQ(forward.bytes, 128 + 2 * 64 + 128 + 32);
  const WorkCounts backward = Counts([&](Device& d) {
    return AttentionGrad(d, q, k, k, lse, delta, o, step, Of(kBF16, shape), k, k);
  });
  EXPECT_EQ(backward.attention_flops[static_cast<size_t>(kBF16)], 5 * 2 * 10 * 2 * 8);
  EXPECT_EQ(backward.bytes, 2 * 128 + 2 * 64 + 2 * 32 + 128 + 2 * 64);
  EXPECT_EQ(Bytes([&](Device& d) { return AttentionDelta(d, o, o, delta); }), 2 * 128 + 32);
}

}  // namespace
}  // namespace dtensor::kernels
