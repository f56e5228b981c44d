#include "dtensor/testing/ring_runs.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/tensor/testing/suite_ranks.h"

namespace dtensor {

static auto ValueFields(AttentionDoubles& a) { return std::tie(a.o, a.lse, a.dq, a.dk, a.dv); }

namespace {

// The other way of RowsAt.
void PutRowsAt(const Doubles& values, int64_t outer, int64_t length, int64_t width,
               const IndexSet& positions, Doubles& whole) {
  for (int64_t b = 0; b < outer; ++b) {
    for (int64_t i = 0; i < positions.size(); ++i) {
      std::copy_n(&values[(b * positions.size() + i) * width], width,
                  &whole[(b * length + positions.At(i)) * width]);
    }
  }
}

absl::StatusOr<AttentionDoubles> RunRank(const RingSchedule& schedule, const RingOptions& options,
                                         const AttentionInputs& in, Communicator& communicator,
                                         Device& device) {
  const RankRing ring(schedule, communicator.rank());
  DT_ASSIGN_OR_RETURN(const RingArguments arguments, ArgumentsOf(ring, in, device));
  DT_ASSIGN_OR_RETURN(const RingResults r, RunBoth(ring, options, arguments, communicator));
  AttentionDoubles mine;
  DT_ASSIGN_OR_RETURN(mine.o, ToDoubles(r.o));
  DT_ASSIGN_OR_RETURN(mine.lse, ToDoubles(r.lse));
  DT_ASSIGN_OR_RETURN(mine.dq, ToDoubles(r.dq));
  DT_ASSIGN_OR_RETURN(mine.dk, ToDoubles(r.dk));
  DT_ASSIGN_OR_RETURN(mine.dv, ToDoubles(r.dv));
  return mine;
}

// Puts what `rank` has into the whole.
void Put(const RingSchedule& schedule, int rank, const AttentionDoubles& r, AttentionDoubles& out) {
  const RankRing ring(schedule, rank);
  const RingProblem& p = schedule.problem();
  const IndexSet& queries = schedule.q_positions(ring.ring_rank());
  const IndexSet& keys = schedule.kv_positions(ring.ring_rank());
  const int64_t s = p.q_length, t = p.kv_length;
  const int64_t query = p.heads * p.head_dim, key = p.kv_heads * p.head_dim;
  PutRowsAt(r.o, p.batch, s, query, queries, out.o);
  PutRowsAt(r.lse, p.batch * p.heads, s, 1, queries, out.lse);
  PutRowsAt(r.dq, p.batch, s, query, queries, out.dq);
  PutRowsAt(r.dk, p.batch, t, key, keys, out.dk);
  PutRowsAt(r.dv, p.batch, t, key, keys, out.dv);
}

}  // namespace

AttentionInputs RandomInputs(const RingProblem& p) {
  const int64_t queries = p.batch * p.q_length * p.heads * p.head_dim;
  const int64_t keys = p.batch * p.kv_length * p.kv_heads * p.head_dim;
  return {RandomNormal(queries, DType::kBF16, 1), RandomNormal(keys, DType::kBF16, 2),
          RandomNormal(keys, DType::kBF16, 3), RandomNormal(queries, DType::kBF16, 4)};
}

absl::StatusOr<RingArguments> ArgumentsOf(const RankRing& ring, const AttentionInputs& in,
                                          Device& device) {
  const RingProblem& p = ring.schedule().problem();
  const IndexSet& queries = ring.schedule().q_positions(ring.ring_rank());
  const IndexSet& keys = ring.schedule().kv_positions(ring.ring_rank());
  const auto make = [&](const Doubles& whole, int64_t length, int64_t heads, const IndexSet& at) {
    return FromDoubles(device, p.dtype, RowsAt(whole, p.batch, length, heads * p.head_dim, at),
                       {p.batch, at.size(), heads, p.head_dim});
  };
  RingArguments arguments;
  DT_ASSIGN_OR_RETURN(arguments.q, make(in.q, p.q_length, p.heads, queries));
  DT_ASSIGN_OR_RETURN(arguments.k, make(in.k, p.kv_length, p.kv_heads, keys));
  DT_ASSIGN_OR_RETURN(arguments.v, make(in.v, p.kv_length, p.kv_heads, keys));
  DT_ASSIGN_OR_RETURN(arguments.dout, make(in.dout, p.q_length, p.heads, queries));
  return arguments;
}

absl::StatusOr<RingResults> RunBoth(const RankRing& ring, const RingOptions& options,
                                    const RingArguments& in, Communicator& communicator) {
  const auto& [q, k, v, dout] = in;
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

absl::StatusOr<AttentionDoubles> RunRanksOfRing(const RingSchedule& schedule,
                                                const RingOptions& options,
                                                const AttentionInputs& inputs,
                                                const RunOptions& run_options) {
  const RingProblem& p = schedule.problem();
  AttentionDoubles out = {Doubles(inputs.q.size()), Doubles(p.batch * p.heads * p.q_length),
                          Doubles(inputs.q.size()), Doubles(inputs.k.size()),
                          Doubles(inputs.k.size())};
  DT_ASSIGN_OR_RETURN(const std::vector<AttentionDoubles> ranks,
                      OnSuiteRanks(
                          schedule.ring_size(),
                          [&](Context& context) {
                            return RunRank(schedule, options, inputs, context.communicator(),
                                           context.device());
                          },
                          run_options));
  for (int rank = 0; rank < schedule.ring_size(); ++rank) Put(schedule, rank, ranks[rank], out);
  return out;
}

}  // namespace dtensor
