// For tests: attention whose keys come in several steps.
#ifndef DTENSOR_RUNTIME_TESTING_ATTENTION_STEPS_H_
#define DTENSOR_RUNTIME_TESTING_ATTENTION_STEPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/testing/attention_case.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/reference_attention.h"

namespace dtensor::kernels {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Rows of the key tensors, ascending, one list for each step.
using Parts = std::vector<std::vector<int64_t>>;

inline Parts Contiguous(int64_t t, int64_t n) {
  Parts parts(n);
  for (int64_t j = 0; j < t; ++j) parts[j * n / t].push_back(j);
  return parts;
}
inline Parts Striped(int64_t t, int64_t n) {
  Parts parts(n);
  for (int64_t j = 0; j < t; ++j) parts[j % n].push_back(j);
  return parts;
}
// 2 n chunks; part i has the i-th from either end.
inline Parts Zigzag(int64_t t, int64_t n) {
  Parts parts(n);
  for (int64_t j = 0; j < t; ++j) {
    const int64_t chunk = j * 2 * n / t;
    parts[std::min(chunk, 2 * n - 1 - chunk)].push_back(j);
  }
  return parts;
}

inline Case WithPositions(Case c, const AttentionMask& mask) {
  c.mask = mask;
  c.q_positions = IndexSet::Interval(0, c.s);
  c.k_positions = IndexSet::Interval(0, c.t);
  return c;
}

inline IndexSet PositionsOf(const IndexSet& all, const std::vector<int64_t>& rows) {
  std::vector<IndexRun> runs;
  for (const int64_t row : rows) runs.push_back({all.At(row), 1, 0, 1});
  return IndexSet::FromIntervals(runs);
}

// Of [b, t, h, d], row-major: calls fn(element of all, element of the part) for each of the part's.
template <class Fn>
void ForEachInPart(const Case& c, const std::vector<int64_t>& rows, Fn fn) {
  const int64_t width = c.kv_heads * c.dim, n = static_cast<int64_t>(rows.size());
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t x = 0; x < width; ++x) {
        fn((b * c.t + rows[r]) * width + x, (b * n + r) * width + x);
      }
    }
  }
}

inline Doubles Gathered(const Case& c, const Doubles& all, const std::vector<int64_t>& rows) {
  Doubles part(c.batch * rows.size() * c.kv_heads * c.dim);
  ForEachInPart(c, rows, [&](int64_t i, int64_t j) { part[j] = all[i]; });
  return part;
}

// The keys of a step, with the step.
struct Block {
  Tensor k, v;
  AttentionStep step;
};

template <typename T>
absl::StatusOr<Block> BlockOf(Device& device, const Case& c, const AttentionInputs& in,
                              const Parts& parts, size_t i) {
  const Dims shape = {c.batch, static_cast<int64_t>(parts[i].size()), c.kv_heads, c.dim};
  Block block;
  DT_ASSIGN_OR_RETURN(block.k, FromValues<T>(device, shape, c.memory, Gathered(c, in.k, parts[i])));
  DT_ASSIGN_OR_RETURN(block.v, FromValues<T>(device, shape, c.memory, Gathered(c, in.v, parts[i])));
  block.step = c.Step();
  block.step.k_positions = PositionsOf(block.step.k_positions, parts[i]);
  block.step.first = i == 0;
  block.step.last = i + 1 == parts.size();
  return block;
}

// A carry, o, lse, delta and dq whose memory holds NaN.
template <typename T>
struct Rows {
  AttentionCarry carry;
  Tensor q, dout, o, lse, delta, dq;
};
template <typename T>
absl::StatusOr<Rows<T>> MakeRows(Device& device, const Case& c, const AttentionInputs& in) {
  using Wide = Stats<T>;
  const auto statistics = [&]() -> absl::StatusOr<Tensor> {
    const std::vector<Wide> nan(c.batch * c.q_heads * c.s, static_cast<Wide>(kNan));
    return FromHost<Wide>(device, nan, {c.batch, c.q_heads, c.s});
  };
  Rows<T> rows;
  DT_ASSIGN_OR_RETURN(rows.q, FromValues<T>(device, c.QShape(), c.memory, in.q));
  DT_ASSIGN_OR_RETURN(rows.dout, FromValues<T>(device, c.QShape(), c.memory, in.dout));
  DT_ASSIGN_OR_RETURN(rows.o, Filled<T>(device, c.QShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(rows.dq, Filled<Wide>(device, c.QShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(rows.carry.o, Filled<Wide>(device, c.QShape(), c.memory, kNan));
  for (Tensor* x : {&rows.carry.max, &rows.carry.sum, &rows.lse, &rows.delta}) {
    DT_ASSIGN_OR_RETURN(*x, statistics());
  }
  return rows;
}

// As RunBoth in attention_test.cc, with keys in parts; gradients are wide.
template <typename T>
absl::StatusOr<AttentionDoubles> RunSteps(Device& device, const Case& c, const AttentionInputs& in,
                                          const Parts& parts) {
  using Wide = Stats<T>;
  DT_ASSIGN_OR_RETURN(const Rows<T> rows, MakeRows<T>(device, c, in));
  for (size_t i = 0; i < parts.size(); ++i) {
    DT_ASSIGN_OR_RETURN(const Block b, BlockOf<T>(device, c, in, parts, i));
    DT_RETURN_IF_ERROR(Attention(device, rows.q, b.k, b.v, b.step, &rows.carry, rows.o, rows.lse));
  }
  DT_RETURN_IF_ERROR(AttentionDelta(device, rows.o, rows.dout, rows.delta));
  AttentionDoubles out;
  out.dk.resize(NumElements(c.KShape()));
  out.dv.resize(NumElements(c.KShape()));
  for (size_t i = 0; i < parts.size(); ++i) {
    DT_ASSIGN_OR_RETURN(const Block b, BlockOf<T>(device, c, in, parts, i));
    DT_ASSIGN_OR_RETURN(const Tensor dk, Filled<Wide>(device, b.k.shape(), c.memory, kNan));
    DT_ASSIGN_OR_RETURN(const Tensor dv, Filled<Wide>(device, b.k.shape(), c.memory, kNan));
    DT_RETURN_IF_ERROR(AttentionGrad(device, rows.q, b.k, b.v, rows.lse, rows.delta, rows.dout,
                                     b.step, rows.dq, dk, dv, &rows.o));
    DT_ASSIGN_OR_RETURN(const Doubles dk_values, ToDoubles(dk));
    DT_ASSIGN_OR_RETURN(const Doubles dv_values, ToDoubles(dv));
    ForEachInPart(c, parts[i], [&](int64_t all, int64_t part) {
      out.dk[all] = dk_values[part];
      out.dv[all] = dv_values[part];
    });
  }
  DT_ASSIGN_OR_RETURN(out.o, ToDoubles(rows.o));
  DT_ASSIGN_OR_RETURN(out.lse, ToDoubles(rows.lse));
  DT_ASSIGN_OR_RETURN(out.dq, ToDoubles(rows.dq));
  return out;
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_TESTING_ATTENTION_STEPS_H_
