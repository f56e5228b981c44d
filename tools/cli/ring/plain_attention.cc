#include "dtensor/tools/cli/ring/plain_attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"

namespace dtensor::cli {
namespace {

static_assert(std::numeric_limits<long double>::digits > std::numeric_limits<double>::digits,
              "errors of f64 need a wider type");

using Doubles = std::vector<double>;

// Query rows are taken four at a time, interleaved (first all rows' first elements, then all second
// ones): as many sums as fit the x87's registers, and a quarter of the passes over keys. Rows
// behind the last one are 0.
constexpr int64_t kRows = 4;
using Four = std::array<long double, kRows>;

// Exact for all floats.
Doubles ToDoubles(const Tensor& tensor) {
  return kernels::VisitFloat(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Doubles doubles(tensor.numel());
    std::transform(tensor.data<T>(), tensor.data<T>() + tensor.numel(), doubles.begin(),
                   [](T x) { return kernels::Cast<double>(x); });
    return doubles;
  });
}

// The products of each of four rows with `column`, all of n elements.
template <typename T>
Four Products(const T* rows, const double* column, int64_t n) {
  long double a = 0, b = 0, c = 0, d = 0;
  for (int64_t i = 0; i < n; ++i) {
    const long double x = column[i];
    a += x * rows[kRows * i];
    b += x * rows[kRows * i + 1];
    c += x * rows[kRows * i + 2];
    d += x * rows[kRows * i + 3];
  }
  return {a, b, c, d};
}

// sum[i] += weights[0] * the first row's element i + ... + weights[3] * the fourth's.
void AddRows(const long double* weights, const double* rows, int64_t n, long double* sum) {
  const long double a = weights[0], b = weights[1], c = weights[2], d = weights[3];
  for (int64_t i = 0; i < n; ++i) {
    const double* x = rows + kRows * i;
    sum[i] += a * x[0] + b * x[1] + c * x[2] + d * x[3];
  }
}

// One head of keys and values, [n, d], and their columns.
struct KeyHead {
  // Of all heads; `first` is this one's first element.
  KeyHead(const Doubles& all_k, const Doubles& all_v, int64_t first, int64_t n, int64_t d)
      : first(first),
        k(all_k.data() + first),
        v(all_v.data() + first),
        k_columns(Columns(k, n, d)),
        v_columns(Columns(v, n, d)) {}

  static Doubles Columns(const double* rows, int64_t n, int64_t d) {
    Doubles columns(n * d);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t x = 0; x < d; ++x) columns[x * n + j] = rows[j * d + x];
    }
    return columns;
  }

  int64_t first;
  const double *k, *v;
  Doubles k_columns, v_columns;
};

class Plain {
 public:
  Plain(const RingProblem& problem, const RingInputs& inputs)
      : p_(problem),
        d_(problem.head_dim),
        scale_(1 / std::sqrt(static_cast<long double>(problem.head_dim))),
        q_(ToDoubles(inputs.q)),
        k_(ToDoubles(inputs.k)),
        v_(ToDoubles(inputs.v)),
        dout_(ToDoubles(inputs.dout)) {
    truth_.o.resize(q_.size());
    truth_.dq.resize(q_.size());
    truth_.dk.resize(k_.size());
    truth_.dv.resize(v_.size());
    truth_.lse.resize(p_.batch * p_.heads * p_.q_length);
  }

  // All that reads one of batch * kv_heads heads of keys, and its gradients. Heads share nothing.
  void RunKeyHead(int64_t key_head) {
    const int64_t group = p_.heads / p_.kv_heads, n = p_.kv_length;
    const KeyHead head_keys(k_, v_, key_head * n * d_, n, d_);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      for (int64_t i = 0; i < p_.q_length; i += kRows) RunRows(head_keys, head, i);
    }
  }

  RingTruth Take() { return std::move(truth_); }

 private:
  // What row i of a head sees; nothing behind the last row.
  KeyRange KeysOf(int64_t i) const {
    if (i >= p_.q_length) return {};
    const KeyRange keys = p_.mask.KeysOf(i);
    const int64_t end = std::min(keys.end, p_.kv_length);
    return keys.begin < end ? KeyRange{keys.begin, end} : KeyRange{};
  }

  // What any of rows i to i + 3 sees, and what lies between.
  KeyRange KeysOfFour(int64_t i) const {
    KeyRange all;
    for (int64_t r = 0; r < kRows; ++r) {
      const KeyRange keys = KeysOf(i + r);
      if (keys.begin == keys.end) continue;
      const bool first = all.begin == all.end;
      all = {first ? keys.begin : std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
    }
    return all;
  }

  Doubles Interleaved(const Doubles& rows, int64_t first, int64_t count) const {
    Doubles four(kRows * d_);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t x = 0; x < d_; ++x) four[x * kRows + r] = rows[(first + r) * d_ + x];
    }
    return four;
  }

  // Turns row r's scores into weights, 0 at keys that it does not see: those outside of [begin,
  // end). Returns the log-sum-exp.
  static long double Softmax(int64_t begin, int64_t end, int64_t r, Wide& weights) {
    long double largest = -std::numeric_limits<long double>::infinity(), sum = 0;
    for (int64_t j = begin; j < end; ++j) largest = std::max(largest, weights[j * kRows + r]);
    for (int64_t j = 0; j * kRows < std::ssize(weights); ++j) {
      long double& weight = weights[j * kRows + r];
      weight = begin <= j && j < end ? std::exp(weight - largest) : 0;
      sum += weight;
    }
    for (int64_t j = begin; j < end; ++j) weights[j * kRows + r] /= sum;
    return begin < end ? largest + std::log(sum) : largest;
  }

  // Rows i to i + 3 of a head of queries.
  void RunRows(const KeyHead& head_keys, int64_t head, int64_t i) {
    const KeyRange keys = KeysOfFour(i);
    const int64_t row = head * p_.q_length + i, count = std::min(kRows, p_.q_length - i);
    const Doubles q = Interleaved(q_, row, count), dout = Interleaved(dout_, row, count);
    Wide weights(kRows * (keys.end - keys.begin));
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Four products = Products(q.data(), head_keys.k + j * d_, d_);
      for (int64_t r = 0; r < kRows; ++r)
        weights[(j - keys.begin) * kRows + r] = scale_ * products[r];
    }
    for (int64_t r = 0; r < count; ++r) {
      const KeyRange seen = KeysOf(i + r);
      truth_.lse[row + r] = Softmax(seen.begin - keys.begin, seen.end - keys.begin, r, weights);
    }
    const Four delta = Output(head_keys.v_columns, keys, weights, dout, row, count);
    Gradients(head_keys, keys, weights, delta, q, dout, row, count);
  }

  // Returns each row's product of o and its gradient.
  Four Output(const Doubles& v_columns, const KeyRange& keys, const Wide& weights,
              const Doubles& dout, int64_t row, int64_t count) {
    Four delta = {};
    for (int64_t x = 0; x < d_; ++x) {
      const double* column = &v_columns[x * p_.kv_length];
      const Four o = Products(weights.data(), column + keys.begin, keys.end - keys.begin);
      for (int64_t r = 0; r < count; ++r) {
        truth_.o[(row + r) * d_ + x] = o[r];
        delta[r] += o[r] * dout[x * kRows + r];
      }
    }
    return delta;
  }

  void Gradients(const KeyHead& head_keys, const KeyRange& keys, const Wide& weights,
                 const Four& delta, const Doubles& q, const Doubles& dout, int64_t row,
                 int64_t count) {
    Wide ds(weights.size());
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Four dp = Products(dout.data(), head_keys.v + j * d_, d_);
      const long double* weight = &weights[(j - keys.begin) * kRows];
      long double* of_scores = &ds[(j - keys.begin) * kRows];
      for (int64_t r = 0; r < kRows; ++r) of_scores[r] = scale_ * weight[r] * (dp[r] - delta[r]);
      AddRows(of_scores, q.data(), d_, &truth_.dk[head_keys.first + j * d_]);
      AddRows(weight, dout.data(), d_, &truth_.dv[head_keys.first + j * d_]);
    }
    for (int64_t x = 0; x < d_; ++x) {
      const double* column = &head_keys.k_columns[x * p_.kv_length];
      const Four dq = Products(ds.data(), column + keys.begin, keys.end - keys.begin);
      for (int64_t r = 0; r < count; ++r) truth_.dq[(row + r) * d_ + x] = dq[r];
    }
  }

  const RingProblem& p_;
  const int64_t d_;
  const long double scale_;
  const Doubles q_, k_, v_, dout_;
  RingTruth truth_;
};

}  // namespace

RingTruth PlainAttention(const RingProblem& problem, const RingInputs& inputs) {
  Plain plain(problem, inputs);
  std::atomic<int64_t> next = 0;
  const int64_t key_heads = problem.batch * problem.kv_heads;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (int64_t head = next++; head < key_heads; head = next++) plain.RunKeyHead(head);
    });
  }
  threads.clear();  // waits for them
  return plain.Take();
}

}  // namespace dtensor::cli
