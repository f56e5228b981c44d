// AttentionPlan: the ways in which attention can bring queries and keys together if both are
// sharded along the sequence over the same axes, and how long each is expected to take.
//
//   ring         q, k and v stay; keys and values go from rank to rank (ring_schedule.h)
//   gather       every rank gathers all keys and values; their gradients are reduce-scattered
//   all-to-all   axes move from the sequence to the heads, and o moves back (Jacobs et al.,
//                "DeepSpeed Ulysses", 2023); over the axes that stay there is a ring
//
// Prediction: matrix products take 4 d operations per query-key pair and head in forward, 10 d in
// backward. Bytes take their time on the slowest link, one transfer after the other. In a step of a
// ring, keys and values move while the kernel runs, and the slowest rank determines the time.
// Gradients, and what the other plans move, are not overlapped. Backward counts if gradients are
// recorded; there a ring moves keys and values again, since it keeps none of them.
//
// This is a pure function: it gives the same result on every rank.
#ifndef DTENSOR_ATTENTION_ATTENTION_PLAN_H_
#define DTENSOR_ATTENTION_ATTENTION_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

enum class AttentionPlanKind : uint8_t { kAutomatic, kRing, kGather, kAllToAll };
absl::string_view ToString(AttentionPlanKind kind);  // "automatic", "ring", "gather", "all-to-all"

// The operands as the operator's rule places them (ops.h): on one mesh, with batches and heads
// sharded alike, so that hkv divides hq on every rank, and with nothing Partial.
struct AttentionProblem {
  static constexpr int64_t kEndTogether = -1;

  Layout q, kv;            // of [b, s, hq, d] and [b, t, hkv, d]
  Dims q_shape, kv_shape;  // global. Requires: hkv divides hq, hkv > 0
  DType dtype = DType::kF32;
  AttentionMask mask;
  bool backward = false;  // gradients are recorded
  // The position of query 0, if key 0 is at 0; or kEndTogether: the last query and the last key are
  // at one position.
  int64_t query_offset = kEndTogether;

  // The positions of query 0 and of key 0.
  int64_t first_query() const {
    const int64_t ahead = kv_shape[1] - q_shape[1];
    return query_offset != kEndTogether ? query_offset : ahead > 0 ? ahead : 0;
  }
  int64_t first_key() const {
    const int64_t behind = q_shape[1] - kv_shape[1];
    return query_offset == kEndTogether && behind > 0 ? behind : 0;
  }
};

// The axes that shard both sequences, major to minor in q; empty unless the same axes shard both.
AxisList StreamedAxes(const AttentionProblem& problem);

// The ring over StreamedAxes() for rank `mesh_rank` of the mesh: sizes are this rank's local ones.
// Requires: StreamedAxes() is not empty.
RingProblem RingOf(const AttentionProblem& problem, int mesh_rank);

struct AttentionPlan {
  AttentionPlanKind kind = AttentionPlanKind::kRing;
  AxisList all_to_all;  // the axes that move to the heads, ascending
  Layout q, kv;         // to which the operands are redistributed first
  double seconds = 0;   // predicted, of the slowest rank
  int64_t bytes = 0;    // received, summed over ranks
  // The most that a rank holds besides its own operands, results and sums: buffers and copies.
  int64_t extra_bytes = 0;
  // The part of it that each call keeps from forward until backward; a model keeps this once per
  // layer.
  int64_t kept_bytes = 0;

  // "all-to-all over u, ring over r: 1.2 ms, 4096 bytes received; extra bytes on a rank: 512, kept
  // for backward 128"
  std::string ToString(const DeviceMesh& mesh) const;
};

// All possible plans: ring, gather, then all-to-all over each set of axes whose ranks share the
// heads evenly. Empty if nothing is streamed, or there is no work. Errors: as RingSchedule::Create.
absl::StatusOr<std::vector<AttentionPlan>> AttentionPlans(const AttentionProblem& problem,
                                                          const CostModel& links);

// Considers the plans whose extra bytes are at most `max_extra_bytes` (-1: all). Of those that take
// at most 5% longer than the fastest, which is within the error of the prediction, chooses the one
// with the fewest kept bytes, then with the fewest extra bytes. If no plan fits, chooses the ring,
// since the redistributions of the others would be refused. Requires: what AttentionPlans returned,
// and not empty.
const AttentionPlan& ChooseAttentionPlan(const std::vector<AttentionPlan>& plans,
                                         int64_t max_extra_bytes);

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_PLAN_H_
