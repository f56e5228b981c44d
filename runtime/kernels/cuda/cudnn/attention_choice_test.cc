#include "dtensor/runtime/kernels/cuda/cudnn/attention_choice.h"

#include <cstdint>
#include <functional>
#include <string>

#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "gtest/gtest.h"

namespace dtensor::kernels::cuda {
namespace {

alignas(16) char memory[64];

AttentionOperand Rows(int64_t rows, int64_t heads, int64_t dim) {
  return {memory, rows * heads * dim, dim, heads * dim};
}

// A causal step, forward and backward, that cuDNN computes: 128 queries of 8 heads, 2 key heads.
AttentionArgs Step() {
  AttentionArgs args;
  AttentionSizes& sizes = args.sizes;
  sizes.dtype = sizes.out_dtype = DType::kBF16;
  sizes.batch = 2;
  sizes.q_heads = 8;
  sizes.kv_heads = 2;
  sizes.q_rows = sizes.keys = 128;
  sizes.dim = 64;
  AttentionOperands& x = args.operands;
  x.q = x.o = x.dout = x.dq = Rows(128, 8, 64);
  x.k = x.v = x.dk = x.dv = Rows(128, 2, 64);
  x.lse = {memory, 8 * 128, 128, 1};
  args.mask = AttentionMask::Causal();
  args.q_positions = args.k_positions = IndexSet::Interval(0, 128);
  return args;
}

TEST(AttentionChoice, WholeAndCausalBlocksAreCudnns) {
  AttentionArgs args = Step();
  EXPECT_TRUE(ChooseAttention(args).by_cudnn);
  EXPECT_TRUE(ChooseAttention(args).causal);
  EXPECT_TRUE(ChooseAttentionGrad(args).causal);
  // All keys are before all queries.
  args.q_positions = IndexSet::Interval(128, 256);
  EXPECT_TRUE(ChooseAttention(args).by_cudnn);
  EXPECT_FALSE(ChooseAttention(args).causal);
  EXPECT_TRUE(ChooseAttentionGrad(args).by_cudnn);
  // As many rows as there are is no condition of a whole block.
  args.mask = AttentionMask::Full();
  args.q_positions = IndexSet::Interval(0, 100);
  args.sizes.q_rows = 100;
  args.operands.lse = {memory, 800, 100, 1};
  EXPECT_TRUE(ChooseAttention(args).by_cudnn);
}

// A rank's own block of a zigzag or striped ring is causal by its rows, wherever these are.
TEST(AttentionChoice, ARanksOwnBlockIsCausal) {
  AttentionArgs args = Step();
  args.q_positions = args.k_positions = IndexSet::FromIntervals({{0, 64, 0, 1}, {960, 64, 0, 1}});
  EXPECT_TRUE(ChooseAttention(args).causal);
  args.q_positions = args.k_positions = IndexSet::FromIntervals({{3, 1, 8, 128}});
  EXPECT_TRUE(ChooseAttention(args).causal);
  // Striped, another rank's: each row sees its own stripe's keys before it, or none of the last.
  args.k_positions = IndexSet::FromIntervals({{5, 1, 8, 128}});
  EXPECT_FALSE(ChooseAttention(args).by_cudnn);
}

struct Exception {
  std::string why;
  std::function<void(AttentionArgs&)> change;
};

TEST(AttentionChoice, AllElseIsThePortableKernels) {
  const Exception exceptions[] = {
      {"16 bits", [](auto& a) { a.sizes.dtype = DType::kF32; }},
      {"dropped", [](auto& a) { a.sizes.drops = true; }},
      {"other sizes", [](auto& a) { a.sizes.varies = true; }},
      {"multiple of 8", [](auto& a) { a.sizes.dim = 60; }},
      {"multiple of 8", [](auto& a) { a.sizes.dim = 136; }},
      {"fewer than 64", [](auto& a) { a.sizes.q_rows = 63; }},
      {"fewer than 64", [](auto& a) { a.sizes.keys = 63; }},
      {"aligned", [](auto& a) { a.operands.q.data = memory + 2; }},
      {"aligned", [](auto& a) { a.operands.k.row_stride = 132; }},
      {"aligned", [](auto& a) { a.operands.v.head_stride = 0; }},
      {"mask", [](auto& a) { a.mask = *AttentionMask::Window(16); }},
      {"mask", [](auto& a) { a.mask = *AttentionMask::Prefix(20); }},
      {"mask", [](auto& a) { a.k_positions = IndexSet::Interval(1, 129); }},
  };
  for (const Exception& exception : exceptions) {
    AttentionArgs args = Step();
    exception.change(args);
    for (const AttentionChoice& choice : {ChooseAttention(args), ChooseAttentionGrad(args)}) {
      EXPECT_FALSE(choice.by_cudnn) << exception.why;
      ASSERT_NE(choice.why_not, nullptr) << exception.why;
      EXPECT_NE(std::string(choice.why_not).find(exception.why), std::string::npos)
          << choice.why_not;
    }
  }
}

TEST(AttentionChoice, WhatIsWrittenMustFitWhereItIsWrittenDirectly) {
  AttentionArgs args = Step();
  args.operands.o.data = memory + 4;
  args.operands.lse.row_stride = 2;
  EXPECT_FALSE(ChooseAttention(args).by_cudnn);
  args.sizes.last = false;  // o and lse are not this step's
  EXPECT_TRUE(ChooseAttention(args).by_cudnn);
}

TEST(AttentionChoice, BackwardNeedsOAndMemory) {
  AttentionArgs args = Step();
  args.operands.o.data = nullptr;
  EXPECT_FALSE(ChooseAttentionGrad(args).by_cudnn);
  args = Step();
  args.operands.dk.row_stride = 132;
  EXPECT_FALSE(ChooseAttentionGrad(args).by_cudnn);
  args = Step();
  args.sizes.q_rows = args.sizes.keys = 16384;  // 4 heads a key head: 2 GiB
  args.q_positions = args.k_positions = IndexSet::Interval(0, 16384);
  args.operands.lse = {memory, 8 * 16384, 16384, 1};
  EXPECT_TRUE(ChooseAttention(args).by_cudnn);
  EXPECT_FALSE(ChooseAttentionGrad(args).by_cudnn);
}

TEST(AttentionChoice, BackwardRunsInPiecesThatFit) {
  AttentionSizes sizes = Step().sizes;
  AttentionRuns runs = RunsOf(sizes);
  EXPECT_EQ(runs.batch, 2);
  EXPECT_EQ(runs.kv_heads, 2);
  sizes.kv_heads = 6;  // of 8 heads each: 128 MiB
  sizes.q_heads = 48;
  sizes.q_rows = 2048;
  sizes.keys = 4096;
  runs = RunsOf(sizes);
  EXPECT_EQ(runs.batch, 1);
  EXPECT_EQ(runs.kv_heads, 3);  // 4 would fit, and do not divide 6
  sizes.batch = 1;
  sizes.keys = 1024;
  runs = RunsOf(sizes);
  EXPECT_EQ(runs.kv_heads, 6);
}

}  // namespace
}  // namespace dtensor::kernels::cuda
