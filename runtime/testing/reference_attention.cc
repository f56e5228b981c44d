#include "dtensor/runtime/testing/reference_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "dtensor/runtime/core/philox.h"

namespace dtensor {
namespace {

using Real = long double;
static_assert(std::numeric_limits<Real>::digits > std::numeric_limits<double>::digits,
              "errors of f64 need a wider type");

Real Dot(const double* x, const double* y, int64_t n) {
  Real sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += Real{x[i]} * y[i];
  return sum;
}

// sum += factor * x
void Add(Real factor, const double* x, int64_t n, Real* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * x[i];
}

std::vector<int64_t> Elements(const IndexSet& positions) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < positions.size(); ++i) elements.push_back(positions.At(i));
  return elements;
}

class Reference {
 public:
  Reference(const ReferenceProblem& problem, const AttentionInputs& in)
      : p_(problem),
        in_(in),
        queries_(Elements(problem.q_positions)),
        keys_(Elements(problem.k_positions)),
        s_(std::ssize(queries_)),
        t_(std::ssize(keys_)) {
    out_.o.resize(in.q.size());
    out_.dq.resize(in.q.size());
    out_.dk.resize(in.k.size());
    out_.dv.resize(in.k.size());
    out_.lse.resize(p_.batch * p_.heads * s_, -std::numeric_limits<Real>::infinity());
  }

  AttentionReference Run(const std::function<void(double done)>& tell) {
    std::atomic<int64_t> next = 0;
    const int64_t n = p_.batch * p_.kv_heads, cores = std::thread::hardware_concurrency();
    const auto work = [&](const std::function<void(double done)>& told) {
      for (int64_t i = next++; i < n; i = next++) {
        RunKeyHead(i / p_.kv_heads, i % p_.kv_heads, told);
      }
    };
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < std::min(cores, n); ++i) others.emplace_back(work, nullptr);
    work(tell);
    others.clear();  // waits for them
    if (tell) tell(1);
    return std::move(out_);
  }

 private:
  // All queries that read one head of keys. Heads share nothing.
  void RunKeyHead(int64_t b, int64_t kv_head, const std::function<void(double done)>& tell) {
    const int64_t group = p_.heads / p_.kv_heads;
    const auto queries = static_cast<double>(p_.batch * p_.heads * s_);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int64_t i = 0; i < s_; ++i) {
        RunQuery(b, h, kv_head, i);
        const int64_t done = ++queries_done_;
        if (tell) tell(static_cast<double>(done) / queries);
      }
    }
  }

  struct Pair {
    int64_t key;  // the element of k and v where the row begins
    Real p;       // s, then exp(s - largest), then p
    Real z, dp;   // dp = z do v
  };

  void RunQuery(int64_t b, int64_t h, int64_t kv_head, int64_t i) {
    const int64_t d = p_.head_dim, row = ((b * s_ + i) * p_.heads + h) * d;
    const double *q = &in_.q[row], *dout = &in_.dout[row];
    std::vector<Pair> pairs = Seen(b, h, kv_head, i);
    if (pairs.empty()) return;
    Real largest = -std::numeric_limits<Real>::infinity(), sum = 0, delta = 0;
    for (Pair& x : pairs) largest = std::max(largest, x.p = p_.scale * Dot(q, &in_.k[x.key], d));
    for (Pair& x : pairs) sum += x.p = std::exp(x.p - largest);
    out_.lse[(b * p_.heads + h) * s_ + i] = largest + std::log(sum);
    for (Pair& x : pairs) {
      x.p /= sum;
      x.dp = x.z * Dot(dout, &in_.v[x.key], d);
      delta += x.p * x.dp;  // in the end do o
      Add(x.z * x.p, &in_.v[x.key], d, &out_.o[row]);
    }
    for (const Pair& x : pairs) {
      const Real ds = p_.scale * x.p * (x.dp - delta);
      Add(ds, &in_.k[x.key], d, &out_.dq[row]);
      Add(ds, q, d, &out_.dk[x.key]);
      Add(x.z * x.p, dout, d, &out_.dv[x.key]);
    }
  }

  // The keys that query i sees: an interval of positions, and so of rows.
  std::vector<Pair> Seen(int64_t b, int64_t h, int64_t kv_head, int64_t i) const {
    const KeyRange range = p_.mask.KeysOf(queries_[i]);
    std::vector<Pair> pairs;
    for (auto key = std::ranges::lower_bound(keys_, range.begin);
         key != keys_.end() && *key < range.end; ++key) {
      const int64_t j = key - keys_.begin();
      pairs.push_back({.key = ((b * t_ + j) * p_.kv_heads + kv_head) * p_.head_dim,
                       .z = DropoutFactor(p_.dropout, b, h, queries_[i], *key)});
    }
    return pairs;
  }

  const ReferenceProblem& p_;
  const AttentionInputs& in_;
  const std::vector<int64_t> queries_, keys_;  // positions
  const int64_t s_, t_;
  std::atomic<int64_t> queries_done_ = 0;  // of all threads
  AttentionReference out_;
};

}  // namespace

AttentionReference ReferenceAttention(const ReferenceProblem& problem,
                                      const AttentionInputs& inputs,
                                      const std::function<void(double done)>& tell) {
  return Reference(problem, inputs).Run(tell);
}

// As kernels/attention.h says it.
long double DropoutFactor(const kernels::AttentionDropout& dropout, int64_t batch, int64_t head,
                          int64_t q_position, int64_t k_position) {
  if (dropout.rate == 0) return 1;
  const auto u32 = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto words = Philox({u32(k_position / 4), u32(q_position), u32(dropout.heads.At(head)),
                             u32(dropout.batches.At(batch))},
                            {u32(dropout.seed), u32(dropout.seed >> 32)});
  const double draw = (words[k_position % 4] >> 8) * 0x1p-24;
  return draw >= dropout.rate ? 1 / (1 - static_cast<long double>(dropout.rate)) : 0;
}

}  // namespace dtensor
