// AttentionPlan: how attention can bring queries and keys together that are both
// sharded along the sequence, by the same axes, and what each is expected to take.
//
//   ring         q, k and v stay; keys and values go from rank to rank (ring_schedule.h)
//   gather       every rank gets all keys and values; their gradients are reduced and scattered
//   all-to-all   axes move from the sequence to the heads, and o moves back (Jacobs et al.,
//                "DeepSpeed Ulysses", 2023); over the axes that stay there is a ring
//
// Prediction. Products take 4 d operations a pair of query and key and head forward, 10 d backward;
// bytes take their time on the slowest link, one after the other. In a step of a ring keys and
// values move while the kernel runs, and the slowest rank is waited for; gradients, and what other
// plans move, hide behind nothing. Backward counts where gradients are recorded: a ring brings keys
// and values again, since it keeps none of them.
//
// A pure function: equal on every rank.
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

// As the operator's rule places its operands (ops.h): on one mesh, batches and heads split alike,
// so that hkv divides hq on every rank, and nothing Partial.
struct AttentionProblem {
  static constexpr int64_t kEndTogether = -1;

  Layout q, kv;            // of [b, s, hq, d] and [b, t, hkv, d]
  Dims q_shape, kv_shape;  // global. Requires: hkv divides hq, hkv > 0
  DType dtype = DType::kF32;
  AttentionMask mask;
  bool backward = false;  // gradients are recorded
  // The position of query 0 where key 0 is at 0; or kEndTogether, and the last of both are at one.
  int64_t query_offset = kEndTogether;

  // Positions of query 0 and key 0.
  int64_t first_query() const {
    const int64_t ahead = kv_shape[1] - q_shape[1];
    return query_offset != kEndTogether ? query_offset : ahead > 0 ? ahead : 0;
  }
  int64_t first_key() const {
    const int64_t behind = q_shape[1] - kv_shape[1];
    return query_offset == kEndTogether && behind > 0 ? behind : 0;
  }
};

// The axes that split both sequences, major to minor in q: empty unless the same axes split both.
AxisList StreamedAxes(const AttentionProblem& problem);

// The ring over StreamedAxes() as rank `mesh_rank` of the mesh has it: sizes are local.
// Requires: StreamedAxes() is not empty.
RingProblem RingOf(const AttentionProblem& problem, int mesh_rank);

struct AttentionPlan {
  AttentionPlanKind kind = AttentionPlanKind::kRing;
  AxisList all_to_all;  // the axes that move to the heads, ascending
  Layout q, kv;         // where the operands go first
  double seconds = 0;   // predicted, of the slowest rank
  int64_t bytes = 0;    // received, summed over ranks
  // What a rank holds at most beside its own operands, results and sums: buffers and copies.
  int64_t extra_bytes = 0;
  // Of these, what each call keeps from forward until backward: a model holds it once for a layer.
  int64_t kept_bytes = 0;

  // "all-to-all over u, ring over r: 1.2 ms, 4096 bytes received; extra bytes on a rank: 512, kept
  // for backward 128"
  std::string ToString(const DeviceMesh& mesh) const;
};

// All plans there are: ring, gather, then all-to-all over each set of axes whose ranks share the
// heads evenly. Empty where nothing is streamed, or there is nothing to do. Errors: as
// RingSchedule::Create.
absl::StatusOr<std::vector<AttentionPlan>> AttentionPlans(const AttentionProblem& problem,
                                                          const CostModel& links);

// The plan of least time among those whose extra bytes are at most `max_extra_bytes` (-1: any); of
// those that take up to 5% more, which is less than predictions are worth, that of fewest kept
// bytes, then of fewest extra bytes. If none fits, the ring: redistributions would be refused.
// Requires: what AttentionPlans returned, and not empty.
const AttentionPlan& ChooseAttentionPlan(const std::vector<AttentionPlan>& plans,
                                         int64_t max_extra_bytes);

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_PLAN_H_
