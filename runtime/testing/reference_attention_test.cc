// The reference, against what needs none: attention to one key, and slopes.
#include "dtensor/runtime/testing/reference_attention.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/testing/doubles.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

ReferenceProblem Problem(const std::string& mask, int64_t queries, int64_t keys) {
  return {.batch = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 5,
          .q_positions = IndexSet::Interval(0, queries),
          .k_positions = IndexSet::Interval(0, keys),
          .mask = AttentionMask::Parse(mask).value(),
          .scale = 1 / std::sqrt(5.0L)};
}

AttentionInputs RandomInputs(const ReferenceProblem& p) {
  const int64_t queries = p.batch * p.q_positions.size() * p.heads * p.head_dim;
  const int64_t keys = p.batch * p.k_positions.size() * p.kv_heads * p.head_dim;
  return {RandomNormal(queries, DType::kF64, 1), RandomNormal(keys, DType::kF64, 2),
          RandomNormal(keys, DType::kF64, 3), RandomNormal(queries, DType::kF64, 4)};
}

TEST(ReferenceAttentionTest, OfOneKeyAllIsKnown) {
  const ReferenceProblem problem = Problem("window:1", 3, 3);
  const AttentionInputs in = RandomInputs(problem);
  const AttentionReference out = ReferenceAttention(problem, in);
  Doubles dv(in.v.size());
  for (int64_t row = 0; row < 2 * 3 * 4; ++row) {
    const int64_t i = row / 4, h = row % 4, key = i * 2 + h / 2;  // 2 heads read one
    double score = 0;
    for (int64_t x = 0; x < 5; ++x) {
      score += in.q[row * 5 + x] * in.k[key * 5 + x] / std::sqrt(5.0);
      dv[key * 5 + x] += in.dout[row * 5 + x];
      EXPECT_EQ(out.o[row * 5 + x], in.v[key * 5 + x]);
      EXPECT_NEAR(static_cast<double>(out.dq[row * 5 + x]), 0, 1e-17);
    }
    EXPECT_NEAR(static_cast<double>(out.lse[(i / 3 * 4 + h) * 3 + i % 3]), score, 1e-14);
  }
  for (size_t i = 0; i < dv.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(out.dk[i]), 0, 1e-17);
    EXPECT_NEAR(static_cast<double>(out.dv[i]), dv[i], 1e-14);
  }
}

TEST(ReferenceAttentionTest, QueriesThatSeeNothingAreNoNan) {
  const ReferenceProblem problem = Problem("window:2", 7, 4);
  const AttentionReference out = ReferenceAttention(problem, RandomInputs(problem));
  EXPECT_EQ(out.lse[6], -std::numeric_limits<long double>::infinity());
  EXPECT_TRUE(std::isfinite(out.lse[4]));
  for (const long double x : out.dk) EXPECT_TRUE(std::isfinite(x));
  for (int64_t x = 0; x < 4 * 5; ++x) EXPECT_EQ(out.o[6 * 4 * 5 + x], 0);
  for (int64_t x = 0; x < 4 * 5; ++x) EXPECT_EQ(out.dq[6 * 4 * 5 + x], 0);
}

// Positions alone say what is seen, wherever rows lie.
TEST(ReferenceAttentionTest, RowsLieAnywhere) {
  ReferenceProblem problem = Problem("documents:0,3,10", 4, 4);
  const AttentionInputs in = RandomInputs(problem);
  problem.q_positions = IndexSet::FromIntervals({{1, 1, 0, 1}, {4, 1, 0, 1}, {11, 2, 0, 1}});
  problem.k_positions = IndexSet::FromIntervals({{0, 2, 0, 1}, {5, 1, 0, 1}, {12, 1, 0, 1}});
  const AttentionReference out = ReferenceAttention(problem, in);
  const auto sees = [&](int64_t row) { return std::isfinite(out.lse[row]); };
  // 1 sees 0 and 1; 4 nothing, as 5 is behind it; 11 nothing, as 12 is; 12 itself.
  EXPECT_EQ((std::vector<bool>{sees(0), sees(1), sees(2), sees(3)}),
            (std::vector<bool>{true, false, false, true}));
  for (int64_t x = 0; x < 5; ++x) {
    EXPECT_EQ(out.o[3 * 4 * 5 + x], in.v[3 * 2 * 5 + x]);
    EXPECT_EQ(out.dv[2 * 2 * 5 + x], 0);
  }
}

// d sum(o do) / dx by central differences, with weights that are dropped and ones that are not.
TEST(ReferenceAttentionTest, GradientsAreSlopes) {
  for (const double rate : {0.0, 0.4}) {
    ReferenceProblem problem = Problem("prefix:2", 6, 7);
    problem.dropout = {rate, 77, IndexSet::Interval(3, 5), IndexSet::Interval(8, 12)};
    AttentionInputs in = RandomInputs(problem);
    const AttentionReference out = ReferenceAttention(problem, in);
    const auto loss = [&] {
      const std::vector<long double> o = ReferenceAttention(problem, in).o;
      long double sum = 0;
      for (size_t i = 0; i < o.size(); ++i) sum += o[i] * in.dout[i];
      return sum;
    };
    const std::pair<Doubles*, const std::vector<long double>*> operands[] = {
        {&in.q, &out.dq}, {&in.k, &out.dk}, {&in.v, &out.dv}};
    for (const auto& [x, gradient] : operands) {
      for (size_t i = 0; i < x->size(); i += 7) {
        const double at = (*x)[i];
        (*x)[i] = at + 0x1p-16;
        const long double above = loss();
        (*x)[i] = at - 0x1p-16;
        const long double below = loss();
        (*x)[i] = at;
        EXPECT_NEAR(static_cast<double>((above - below) * 0x1p15L),
                    static_cast<double>((*gradient)[i]), 1e-8)
            << i;
      }
    }
  }
}

TEST(ReferenceAttentionTest, DropsItsShare) {
  const kernels::AttentionDropout dropout = {0.3, 5, IndexSet::Interval(0, 2),
                                             IndexSet::Interval(0, 3)};
  int kept = 0;
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t j = 0; j < 100; ++j) {
      const long double factor = DropoutFactor(dropout, 1, 2, i, j);
      EXPECT_TRUE(factor == 0 || std::abs(factor * 0.7L - 1) < 1e-15L);
      kept += factor != 0;
    }
  }
  EXPECT_NEAR(kept, 7000, 4 * std::sqrt(10000 * 0.3 * 0.7));
}

}  // namespace
}  // namespace dtensor
