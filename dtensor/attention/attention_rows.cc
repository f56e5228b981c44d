#include "dtensor/attention/attention_rows.h"

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

// Entries [begin, end), which are alike, with the first `keys` keys of the block.
class Run {
 public:
  Run(const AttentionRows& rows, int64_t begin, int64_t batch, const kernels::AttentionStep& step)
      : begin_(begin), end_(begin + 1), step_(step), keys_(step.k_positions.size()) {
    const auto alike = [&](const std::vector<int64_t>& numbers) {
      return numbers.empty() || numbers[end_] == numbers[begin];
    };
    while (end_ < batch && alike(rows.offsets) && alike(rows.ends)) ++end_;
    if (!rows.offsets.empty()) step_.q_positions = step_.q_positions.Shifted(rows.offsets[begin]);
    if (!rows.ends.empty()) {
      step_.k_positions = step_.k_positions.Intersect(IndexSet::Interval(0, rows.ends[begin]));
    }
    step_.varies = end_ - begin < batch || step_.k_positions.size() < keys_;
    keys_ = step_.k_positions.size();
    if (step_.dropout.rate != 0) step_.dropout.batches = step.dropout.batches.Slice(begin, end_);
  }

  int64_t end() const { return end_; }
  const kernels::AttentionStep& step() const { return step_; }
  Tensor Entries(const Tensor& x) const {
    return x.defined() ? x.Narrow(0, begin_, end_ - begin_) : x;
  }
  Tensor Keys(const Tensor& x) const { return Entries(x).Narrow(1, 0, keys_); }

 private:
  int64_t begin_, end_;
  kernels::AttentionStep step_;
  int64_t keys_;
};

template <typename Fn>
absl::Status ForEachRun(const AttentionRows& rows, int64_t batch,
                        const kernels::AttentionStep& step, Fn fn) {
  for (int64_t begin = 0; begin < batch;) {
    const Run run(rows, begin, batch, step);
    DT_RETURN_IF_ERROR(fn(run));
    begin = run.end();
  }
  return absl::OkStatus();
}

bool AreAlike(const AttentionRows& rows) { return rows.offsets.empty() && rows.ends.empty(); }

}  // namespace

absl::Status AttendInRows(Device& device, const AttentionRows& rows, const Tensor& q,
                          const Tensor& k, const Tensor& v, const kernels::AttentionStep& step,
                          const kernels::AttentionCarry* carry, const Tensor& o,
                          const Tensor& lse) {
  if (AreAlike(rows)) return kernels::Attention(device, q, k, v, step, carry, o, lse);
  return ForEachRun(rows, q.size(0), step, [&](const Run& run) {
    kernels::AttentionCarry part;
    if (carry != nullptr) {
      part = {run.Entries(carry->o), run.Entries(carry->max), run.Entries(carry->sum)};
    }
    return kernels::Attention(device, run.Entries(q), run.Keys(k), run.Keys(v), run.step(),
                              carry != nullptr ? &part : nullptr, run.Entries(o), run.Entries(lse));
  });
}

absl::Status AttendInRowsGrad(Device& device, const AttentionRows& rows, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& lse,
                              const Tensor& delta, const Tensor& dout,
                              const kernels::AttentionStep& step, const Tensor& dq,
                              const Tensor& dk, const Tensor& dv, const Tensor* o) {
  if (AreAlike(rows)) {
    return kernels::AttentionGrad(device, q, k, v, lse, delta, dout, step, dq, dk, dv, o);
  }
  for (const Tensor* gradient : {&dk, &dv}) {
    DT_RETURN_IF_ERROR(kernels::Fill(device, *gradient, 0));
  }
  return ForEachRun(rows, q.size(0), step, [&](const Run& run) {
    const Tensor of_run = o != nullptr ? run.Entries(*o) : Tensor();
    return kernels::AttentionGrad(device, run.Entries(q), run.Keys(k), run.Keys(v),
                                  run.Entries(lse), run.Entries(delta), run.Entries(dout),
                                  run.step(), run.Entries(dq), run.Keys(dk), run.Keys(dv),
                                  o != nullptr ? &of_run : nullptr);
  });
}

}  // namespace dtensor
