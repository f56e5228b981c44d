// Attention and its gradients, straight from their formulas: what kernels, rings and the command
// line's runs of them are held against. There is no other reference.
//
// Query head h reads key/value head h / (heads / kv_heads). For each batch entry, head and query i,
// over the keys j that i sees:
//
//   s_ij  = scale q_i k_j                         lse_i = log sum_j exp(s_ij)
//   p_ij  = exp(s_ij - lse_i)                     o_i   = sum_j z_ij p_ij v_j
//   ds_ij = p_ij (z_ij do_i v_j - do_i o_i)       dq_i  = scale sum_j ds_ij k_j
//   dv_j  = sum_i z_ij p_ij do_i                  dk_j  = scale sum_i ds_ij q_i
//
// z is what dropout multiplies a weight by: 1 without. A query that sees nothing: o = 0, lse =
// -inf, and it adds nothing to gradients. All is computed in long double, one element at a time,
// and nothing is rounded: wide enough to tell the errors of f64. O(pairs that see each other *
// head_dim) on as many cores as there are key heads; memory for the values, and a query's weights.
#ifndef DTENSOR_RUNTIME_TESTING_REFERENCE_ATTENTION_H_
#define DTENSOR_RUNTIME_TESTING_REFERENCE_ATTENTION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/testing/doubles.h"

namespace dtensor {

// Requires: heads that kv_heads divides; with dropout, its global index for each batch entry and
// head.
struct ReferenceProblem {
  int64_t batch = 1, heads = 1, kv_heads = 1, head_dim = 1;
  IndexSet q_positions, k_positions;  // global; rows lie in ascending order of them
  AttentionMask mask;                 // on these positions
  long double scale = 1;
  kernels::AttentionDropout dropout;
};

// Row-major, with s queries and t keys. q, dout: [batch, s, heads, head_dim]; k, v: [batch, t,
// kv_heads, head_dim].
struct AttentionInputs {
  Doubles q, k, v, dout;
};

// Row-major. o and dq are like q, dk and dv like k; lse: [batch, heads, s].
template <typename T>
struct AttentionValues {
  std::vector<T> o, lse, dq, dk, dv;
  friend bool operator==(const AttentionValues&, const AttentionValues&) = default;
};
using AttentionDoubles = AttentionValues<double>;         // what a run gave
using AttentionReference = AttentionValues<long double>;  // what is right
inline constexpr const char* kAttentionValues[] = {"o", "lse", "dq", "dk", "dv"};

// `tell`, where it is given, is told now and then what part of the work is done, above 0, by the
// caller's thread, and at the end 1. Nothing but the end is told where other threads were sooner.
AttentionReference ReferenceAttention(const ReferenceProblem& problem,
                                      const AttentionInputs& inputs,
                                      const std::function<void(double done)>& tell = {});

// z of a batch entry and query head of the tensors, and the global positions of a query and a key.
long double DropoutFactor(const kernels::AttentionDropout& dropout, int64_t batch, int64_t head,
                          int64_t q_position, int64_t k_position);

// RelativeRms of each of kAttentionValues.
template <typename T>
std::array<double, 5> RelativeErrors(const AttentionDoubles& got, const AttentionValues<T>& want,
                                     const std::array<long double, 5>& term_sizes = {}) {
  return {RelativeRms(got.o, want.o, term_sizes[0]), RelativeRms(got.lse, want.lse, term_sizes[1]),
          RelativeRms(got.dq, want.dq, term_sizes[2]), RelativeRms(got.dk, want.dk, term_sizes[3]),
          RelativeRms(got.dv, want.dv, term_sizes[4])};
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_REFERENCE_ATTENTION_H_
