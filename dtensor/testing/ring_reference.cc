#include "dtensor/testing/ring_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

using Real = long double;

Doubles Random(int64_t n, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Doubles values(n);
  for (double& value : values) value = static_cast<float>(BFloat16(normal(random)));
  return values;
}

Real Dot(const double* x, const double* y, int64_t n) {
  Real sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += Real{x[i]} * y[i];
  return sum;
}

void Add(Real factor, const double* x, int64_t n, Real* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * x[i];
}

Doubles Rounded(const std::vector<Real>& values) { return Doubles(values.begin(), values.end()); }

class Naive {
 public:
  Naive(const RingProblem& problem, double scale, const WholeInputs& in)
      : p_(problem),
        scale_(scale),
        in_(in),
        o_(in.q.size()),
        dq_(in.q.size()),
        dk_(in.k.size()),
        dv_(in.k.size()) {}

  WholeResults Run() {
    Doubles lse;
    for (int64_t b = 0; b < p_.batch; ++b) {
      for (int64_t h = 0; h < p_.heads; ++h) {
        for (int64_t i = 0; i < p_.q_length; ++i) lse.push_back(RunRow(b, h, i));
      }
    }
    return {Rounded(o_), lse, Rounded(dq_), Rounded(dk_), Rounded(dv_)};
  }

 private:
  // Returns the row's log-sum-exp.
  double RunRow(int64_t b, int64_t h, int64_t i) {
    const int64_t d = p_.head_dim, kv = h / (p_.heads / p_.kv_heads);
    const int64_t row = ((b * p_.q_length + i) * p_.heads + h) * d;
    std::vector<int64_t> keys;  // elements of k and v where seen ones begin
    std::vector<Real> weights;
    for (int64_t j = 0; j < p_.kv_length; ++j) {
      if (!p_.mask.Allows(i, j)) continue;
      keys.push_back(((b * p_.kv_length + j) * p_.kv_heads + kv) * d);
      weights.push_back(scale_ * Dot(&in_.q[row], &in_.k[keys.back()], d));
    }
    if (keys.empty()) return -std::numeric_limits<double>::infinity();
    const Real largest = *std::max_element(weights.begin(), weights.end());
    Real sum = 0, delta = 0;
    for (Real& weight : weights) sum += weight = std::exp(weight - largest);
    for (size_t j = 0; j < keys.size(); ++j) {
      Add(weights[j] /= sum, &in_.v[keys[j]], d, &o_[row]);
      delta += weights[j] * Dot(&in_.dout[row], &in_.v[keys[j]], d);
    }
    for (size_t j = 0; j < keys.size(); ++j) {
      const Real dp = Dot(&in_.dout[row], &in_.v[keys[j]], d);
      const Real ds = scale_ * weights[j] * (dp - delta);
      Add(ds, &in_.k[keys[j]], d, &dq_[row]);
      Add(ds, &in_.q[row], d, &dk_[keys[j]]);
      Add(weights[j], &in_.dout[row], d, &dv_[keys[j]]);
    }
    return static_cast<double>(largest + std::log(sum));
  }

  const RingProblem& p_;
  const Real scale_;
  const WholeInputs& in_;
  std::vector<Real> o_, dq_, dk_, dv_;
};

// The other way of RowsAt. Ranks write rows of their own.
absl::Status PutRowsAt(const Tensor& part, int64_t outer, int64_t length, int64_t width,
                       const IndexSet& positions, Doubles& whole) {
  DT_ASSIGN_OR_RETURN(const Doubles values, ToDoubles(part));
  for (int64_t b = 0; b < outer; ++b) {
    for (int64_t i = 0; i < positions.size(); ++i) {
      std::copy_n(&values[(b * positions.size() + i) * width], width,
                  &whole[(b * length + positions.At(i)) * width]);
    }
  }
  return absl::OkStatus();
}

absl::Status RunRank(const RingSchedule& schedule, const RingOptions& options,
                     const WholeInputs& in, Communicator& communicator, Device& device,
                     WholeResults& out) {
  const RankRing ring(schedule, communicator.rank());
  const RingProblem& p = schedule.problem();
  const IndexSet& queries = schedule.q_positions(ring.ring_rank());
  const IndexSet& keys = schedule.kv_positions(ring.ring_rank());
  const int64_t s = p.q_length, t = p.kv_length;
  const auto make = [&](const Doubles& whole, int64_t length, int64_t heads, const IndexSet& at) {
    return FromDoubles(device, p.dtype, RowsAt(whole, p.batch, length, heads * p.head_dim, at),
                       {p.batch, at.size(), heads, p.head_dim});
  };
  DT_ASSIGN_OR_RETURN(const Tensor q, make(in.q, s, p.heads, queries));
  DT_ASSIGN_OR_RETURN(const Tensor k, make(in.k, t, p.kv_heads, keys));
  DT_ASSIGN_OR_RETURN(const Tensor v, make(in.v, t, p.kv_heads, keys));
  DT_ASSIGN_OR_RETURN(const Tensor dout, make(in.dout, s, p.heads, queries));
  DT_ASSIGN_OR_RETURN(const RingResults r, RunBoth(ring, options, q, k, v, dout, communicator));
  const int64_t query = p.heads * p.head_dim, key = p.kv_heads * p.head_dim;
  DT_RETURN_IF_ERROR(PutRowsAt(r.o, p.batch, s, query, queries, out.o));
  DT_RETURN_IF_ERROR(PutRowsAt(r.lse, p.batch * p.heads, s, 1, queries, out.lse));
  DT_RETURN_IF_ERROR(PutRowsAt(r.dq, p.batch, s, query, queries, out.dq));
  DT_RETURN_IF_ERROR(PutRowsAt(r.dk, p.batch, t, key, keys, out.dk));
  return PutRowsAt(r.dv, p.batch, t, key, keys, out.dv);
}

}  // namespace

WholeInputs RandomInputs(const RingProblem& p) {
  const int64_t queries = p.batch * p.q_length * p.heads * p.head_dim;
  const int64_t keys = p.batch * p.kv_length * p.kv_heads * p.head_dim;
  return {Random(queries, 1), Random(keys, 2), Random(keys, 3), Random(queries, 4)};
}

WholeResults NaiveAttention(const RingProblem& problem, double scale, const WholeInputs& inputs) {
  return Naive(problem, scale, inputs).Run();
}

Doubles RowsAt(const Doubles& whole, int64_t outer, int64_t length, int64_t width,
               const IndexSet& positions) {
  Doubles rows;
  for (int64_t b = 0; b < outer; ++b) {
    for (int64_t i = 0; i < positions.size(); ++i) {
      const double* row = &whole[(b * length + positions.At(i)) * width];
      rows.insert(rows.end(), row, row + width);
    }
  }
  return rows;
}

absl::StatusOr<Tensor> FromDoubles(Device& device, DType dtype, const Doubles& values,
                                   const Dims& shape) {
  return VisitDType(dtype, [&](auto zero) -> absl::StatusOr<Tensor> {
    using T = decltype(zero);
    std::vector<T> converted;
    for (const double value : values) {
      if constexpr (std::is_arithmetic_v<T>) {
        converted.push_back(static_cast<T>(value));
      } else {
        converted.push_back(T(static_cast<float>(value)));
      }
    }
    if constexpr (std::is_same_v<T, bool>)
      return absl::InvalidArgumentError("not a float");
    else
      return FromHost<T>(device, converted, shape);
  });
}

absl::StatusOr<Doubles> ToDoubles(const Tensor& tensor) {
  Doubles values;
  DT_RETURN_IF_ERROR(VisitDType(tensor.dtype(), [&](auto zero) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto read, ToHost<decltype(zero)>(tensor));
    for (const auto value : read) {
      if constexpr (std::is_same_v<decltype(zero), double>) {
        values.push_back(value);
      } else {
        values.push_back(static_cast<float>(value));
      }
    }
    return absl::OkStatus();
  }));
  return values;
}

absl::StatusOr<RingResults> RunBoth(const RankRing& ring, const RingOptions& options,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& dout, Communicator& communicator) {
  const auto like = [](const Tensor& x, DType dtype, const Dims& shape) -> absl::StatusOr<Tensor> {
    DT_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::Empty(x.device(), dtype, shape));
    DT_RETURN_IF_ERROR(kernels::Fill(x.device(), tensor, std::nan("")));
    return tensor;
  };
  RingResults r;
  DT_ASSIGN_OR_RETURN(r.o, like(q, q.dtype(), q.shape()));
  DT_ASSIGN_OR_RETURN(r.lse, like(q, AccumulatorOf(q.dtype()), {q.size(0), q.size(2), q.size(1)}));
  DT_ASSIGN_OR_RETURN(r.dq, like(q, q.dtype(), q.shape()));
  DT_ASSIGN_OR_RETURN(r.dk, like(k, k.dtype(), k.shape()));
  DT_ASSIGN_OR_RETURN(r.dv, like(v, v.dtype(), v.shape()));
  DT_RETURN_IF_ERROR(RunRing(ring, options, q, k, v, communicator, "Ring", r.o, r.lse));
  DT_RETURN_IF_ERROR(RunRingBackward(ring, options, q, k, v, r.o, r.lse, dout, communicator, "Ring",
                                     r.dq, r.dk, r.dv));
  return r;
}

absl::StatusOr<WholeResults> RunRanksOfRing(const RingSchedule& schedule,
                                            const RingOptions& options, const WholeInputs& inputs,
                                            const RunOptions& run_options) {
  const RingProblem& p = schedule.problem();
  WholeResults out = {Doubles(inputs.q.size()), Doubles(p.batch * p.heads * p.q_length),
                      Doubles(inputs.q.size()), Doubles(inputs.k.size()), Doubles(inputs.k.size())};
  DT_RETURN_IF_ERROR(RunLocalRanks(
      schedule.ring_size(),
      [&](Communicator& communicator, Device& device) {
        return RunRank(schedule, options, inputs, communicator, device, out);
      },
      run_options));
  return out;
}

double RelativeRms(const Doubles& x, const Doubles& y) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (x.size() != y.size()) return kInf;
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] && !std::isfinite(y[i])) continue;
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) return kInf;
    error += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return error == 0 ? 0 : std::sqrt(error / norm);
}

}  // namespace dtensor
