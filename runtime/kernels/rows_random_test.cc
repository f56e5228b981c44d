// Softmax, norms and cross-entropy of rows that are whole or cut into shards, on random arguments
// (random_kernels.h).
#include <vector>

#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/norm.h"
#include "dtensor/runtime/kernels/softmax.h"
#include "dtensor/runtime/testing/random_kernels.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr int kRounds = 40;

class RowsRandomTest : public RandomKernelTest {
 protected:
  // What all rows of a call have: [..., n] in `shards` shards, each with another n.
  struct Rows {
    DType dtype;
    Dims lead;
    std::vector<int64_t> widths;
    int64_t total = 0;
    Dims Shard(size_t s) const {
      Dims shape = lead;
      shape.push_back(widths[s]);
      return shape;
    }
    // Of k statistics of each row of each shard.
    Dims Stats(int64_t k = 0) const {
      Dims shape = lead;
      shape.insert(shape.begin(), static_cast<int64_t>(widths.size()));
      if (k > 0) shape.push_back(k);
      return shape;
    }
  };
  Rows RandomRows() {
    Rows rows{.dtype = Float(), .lead = Shape(2, 30)};
    rows.widths.resize(random_.Coin() ? 1 : random_.In(2, 4));
    for (int64_t& width : rows.widths) {
      width = random_.Of<int64_t>({1, 3, 7, 8, 16, 31, 64, 100, 257, 512, 1000, 1024, 1032, 2056});
      if (rows.widths.size() > 1 && random_.Chance(10)) width = 0;
      rows.total += width;
    }
    if (rows.total == 0) rows.total = rows.widths[0] = 5;
    return rows;
  }
  std::vector<Twins> Shards(const Rows& rows, double low, double high, bool with_special = false) {
    std::vector<Twins> shards;
    for (size_t s = 0; s < rows.widths.size(); ++s) {
      shards.push_back(In(rows.dtype, rows.Shard(s), low, high, with_special));
    }
    return shards;
  }
  std::vector<Twins> Weights(const Rows& rows) {
    std::vector<Twins> weights;
    for (const int64_t n : rows.widths) weights.push_back(In(rows.dtype, {n}, -2, 2));
    return weights;
  }
  std::vector<Twins> Outs(const Rows& rows) {
    std::vector<Twins> outs;
    for (size_t s = 0; s < rows.widths.size(); ++s) {
      outs.push_back(Out(rows.dtype, rows.Shard(s)));
    }
    return outs;
  }
  void ExpectShards(const char* what, const std::vector<Twins>& shards, double absolute) {
    for (const Twins& shard : shards) ExpectAlike(what, shard, 4, absolute);
  }
  static double Lost(DType dtype) { return dtype == DType::kF64 ? 1e-9 : 2e-3; }
  static std::string Describe(const Rows& rows, const Twins& x) {
    return absl::StrCat(RandomKernelTest::Describe(x), " in ", rows.widths.size(), " shards");
  }
};
DT_INSTANTIATE_KERNEL_TESTS(RowsRandomTest);

TEST_P(RowsRandomTest, Softmax) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const Rows rows = RandomRows();
    const auto form = random_.Of({SoftmaxForm::kPlain, SoftmaxForm::kLog});
    const bool is_log = form == SoftmaxForm::kLog;
    const auto x = Shards(rows, -6, 6, random_.Chance(20)), y = Outs(rows);
    const auto dy = Shards(rows, -2, 2), dx = Outs(rows);
    // Of their own: what was rounded would be seen in gradients.
    const auto saved = Shards(rows, is_log ? -8 : 0, is_log ? 0 : 0.1);
    SCOPED_TRACE(Describe(rows, x[0]));
    if (x.size() == 1) {
      Both([&](Side of) { return kernels::Softmax(of.device, form, of(x[0]), of(y[0])); });
      Both([&](Side of) {
        return SoftmaxGrad(of.device, form, of(saved[0]), of(dy[0]), of(dx[0]));
      });
    } else {
      const Twins stats = Out(WideType(rows.dtype), rows.Stats(2));
      const Twins sums = Out(WideType(rows.dtype), rows.Stats());
      for (size_t s = 0; s < x.size(); ++s) {
        const Twins stat = Part(stats, s), sum = Part(sums, s);
        Both([&](Side of) { return SoftmaxStats(of.device, of(x[s]), of(stat)); });
        Both([&](Side of) {
          return SoftmaxGradSums(of.device, form, of(saved[s]), of(dy[s]), of(sum));
        });
      }
      for (size_t s = 0; s < x.size(); ++s) {
        Both([&](Side of) { return SoftmaxMerge(of.device, form, of(x[s]), of(stats), of(y[s])); });
        Both([&](Side of) {
          return SoftmaxGradMerge(of.device, form, of(saved[s]), of(dy[s]), of(sums), of(dx[s]));
        });
      }
    }
    ExpectShards("y", y, is_log ? 1e-5 : 1e-6);
    ExpectShards("dx", dx, Lost(rows.dtype));
  }
}

TEST_P(RowsRandomTest, RmsNorm) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const Rows rows = RandomRows();
    const DType wide = WideType(rows.dtype);
    const auto x = Shards(rows, -3, 3), w = Weights(rows), dy = Shards(rows, -2, 2);
    const auto y = Outs(rows), dx = Outs(rows);
    const Twins given = In(wide, rows.lead, 0.5, 1);
    const bool in_stages = x.size() > 1;
    const Twins squares = Out(wide, rows.Stats()), dots = Out(wide, rows.Stats());
    SCOPED_TRACE(Describe(rows, x[0]));
    for (size_t s = 0; in_stages && s < x.size(); ++s) {
      const Twins square = Part(squares, s), dot = Part(dots, s);
      Both([&](Side of) { return RowSquares(of.device, of(x[s]), of(square)); });
      Both([&](Side of) {
        return RmsNormGradDots(of.device, of(x[s]), of(w[s]), of(dy[s]), of(dot));
      });
    }
    for (size_t s = 0; s < x.size(); ++s) {
      const Twins rstd = Out(wide, rows.lead), dw = Out(rows.dtype, {rows.widths[s]});
      Both([&](Side of) {
        return kernels::RmsNorm(of.device, of(x[s]), of(w[s]), 1e-5, of(y[s]), of(rstd),
                                in_stages ? &of(squares) : nullptr, rows.total);
      });
      Both([&](Side of) {
        return RmsNormGrad(of.device, of(x[s]), of(w[s]), of(given), of(dy[s]), of(dx[s]), of(dw),
                           in_stages ? &of(dots) : nullptr, rows.total);
      });
      ExpectAlike("rstd", rstd, 10, 0);
      ExpectAlike("dw", dw, 4, 10 * Lost(rows.dtype));
    }
    ExpectShards("y", y, 1e-5);
    ExpectShards("dx", dx, Lost(rows.dtype));
  }
}

TEST_P(RowsRandomTest, LayerNorm) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const Rows rows = RandomRows();
    const DType wide = WideType(rows.dtype);
    const auto x = Shards(rows, -3, 3), w = Weights(rows), b = Weights(rows);
    const auto dy = Shards(rows, -2, 2), y = Outs(rows), dx = Outs(rows);
    const Twins given_mean = In(wide, rows.lead, -1, 1), given = In(wide, rows.lead, 0.5, 1);
    const bool in_stages = x.size() > 1;
    const Twins moments = Out(DType::kF64, rows.Stats(3)), sums = Out(wide, rows.Stats(2));
    SCOPED_TRACE(Describe(rows, x[0]));
    for (size_t s = 0; in_stages && s < x.size(); ++s) {
      const Twins moment = Part(moments, s), sum = Part(sums, s);
      Both([&](Side of) { return RowMoments(of.device, of(x[s]), of(moment)); });
      Both([&](Side of) {
        return LayerNormGradSums(of.device, of(x[s]), of(w[s]), of(given_mean), of(given),
                                 of(dy[s]), of(sum));
      });
    }
    for (size_t s = 0; s < x.size(); ++s) {
      const Twins mean = Out(wide, rows.lead), rstd = Out(wide, rows.lead);
      const Twins dw = Out(rows.dtype, {rows.widths[s]}), db = Out(rows.dtype, {rows.widths[s]});
      Both([&](Side of) {
        return kernels::LayerNorm(of.device, of(x[s]), of(w[s]), of(b[s]), 1e-5, of(y[s]), of(mean),
                                  of(rstd), in_stages ? &of(moments) : nullptr);
      });
      Both([&](Side of) {
        return LayerNormGrad(of.device, of(x[s]), of(w[s]), of(given_mean), of(given), of(dy[s]),
                             of(dx[s]), of(dw), of(db), in_stages ? &of(sums) : nullptr,
                             rows.total);
      });
      ExpectAlike("mean", mean, 4, 1e-5);
      // A row of one element has no variance: 1e-5 alone is below the root.
      ExpectAlike("rstd", rstd, 1000, 0);
      ExpectAlike("dw", dw, 4, 10 * Lost(rows.dtype));
      ExpectAlike("db", db, 4, 10 * Lost(rows.dtype));
    }
    ExpectShards("y", y, rows.dtype == DType::kF64 ? 1e-9 : 1e-3);
    ExpectShards("dx", dx, Lost(rows.dtype));
  }
}

TEST_P(RowsRandomTest, CrossEntropy) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    Rows rows = RandomRows();
    rows.lead = {random_.In(0, 30)};
    const DType wide = WideType(rows.dtype);
    const IndexSet all = Indices(rows.total);
    const CrossEntropyTerms terms = {.num_classes = all.runs().back().end() + random_.In(0, 5),
                                     .ignore = random_.Of<int64_t>({-100, 0}),
                                     .label_smoothing = random_.Of({0.0, 0.1})};
    Doubles targets(rows.lead[0]);
    for (double& t : targets) {
      t = static_cast<double>(random_.Chance(20) ? terms.ignore
                                                 : random_.In(0, terms.num_classes - 1));
    }
    const Twins target = Of(IndexType(), rows.lead, targets);
    // Wider than their classes are many: padded.
    Rows padded = rows;
    for (int64_t& width : padded.widths) width += random_.Of<int64_t>({0, 0, 1, 8});
    const auto x = Shards(padded, -6, 6), dx = Outs(padded);
    const Twins stats = Out(wide, rows.Stats(terms.num_stats()));
    const Twins max = Out(wide, rows.lead), log_sum = Out(wide, rows.lead);
    const Twins loss = Out(wide, rows.lead), dloss = In(wide, rows.lead, -1, 1);
    const Twins given_max = In(wide, rows.lead, 5, 6), given_log = In(wide, rows.lead, 0, 3);
    SCOPED_TRACE(Describe(rows, x[0]));
    int64_t begin = 0;
    for (size_t s = 0; s < x.size(); ++s) {
      const IndexSet classes = all.Slice(begin, begin + rows.widths[s]);
      begin += rows.widths[s];
      const Twins stat = Part(stats, s);
      Both([&](Side of) {
        return CrossEntropyStats(of.device, of(x[s]), of(target), classes, terms, of(stat));
      });
      Both([&](Side of) {
        return CrossEntropyGrad(of.device, of(x[s]), of(target), classes, terms,
                                {of(given_max), of(given_log)}, of(dloss), of(dx[s]));
      });
    }
    Both([&](Side of) {
      return CrossEntropyMerge(of.device, of(stats), of(target), terms, {of(max), of(log_sum)},
                               of(loss));
    });
    ExpectAlike("max", max, 0, 0);
    ExpectAlike("log_sum", log_sum, 10, 1e-6);
    ExpectAlike("loss", loss, 10, rows.dtype == DType::kF64 ? 1e-9 : 1e-3);
    ExpectShards("dx", dx, 1e-6);
  }
}

}  // namespace
}  // namespace dtensor::kernels
