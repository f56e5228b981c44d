// ContextPattern: how context parallelism lays a sequence over mesh axes, and which attention goes
// with it.
//
//   pattern           axes        the sequence is split       attention
//   ring              one         contiguous                  ring
//   zigzag            one         zigzag                      ring
//   striped           one         block(1)                    ring
//   double_ring       outer, in   zigzag over both            a ring of rings (ring_schedule.h)
//   ulysses           one or two  contiguous                  all-to-all: all positions, some heads
//   ulysses+ring      u, r        contiguous, by r then u     all-to-all over u, ring over r
//   ulysses+zigzag    u, r        zigzag by r, then by u      all-to-all over u, ring over r
//   ulysses+striped   u, r        block(1) by r, then by u    all-to-all over u, ring over r
//
// A pattern of several axes takes a group of the mesh, in its order: dp=2,u=2,r=2;cp=u*r and the
// axis "cp". Other axes that shard the sequence (sequence parallelism) are minor to these:
// [cp:zigzag,tp].
//
// Every pattern gives correct results with every mask. With a causal mask, zigzag balances the work
// evenly and striped nearly so, while with ring the first rank is idle most of the time. Without a
// mask all are balanced.
#ifndef DTENSOR_PARALLEL_PLANS_CONTEXT_PATTERN_H_
#define DTENSOR_PARALLEL_PLANS_CONTEXT_PATTERN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class ContextPattern {
 public:
  // Errors: kInvalidArgument, listing the patterns.
  static absl::StatusOr<ContextPattern> Parse(absl::string_view name);

  // The input edges that bring [b, s, ...] to the pattern's layout on the mesh's `axis`.
  // Errors: kInvalidArgument for an axis that the mesh lacks, and for more or fewer axes than the
  // pattern takes, naming the remedy.
  absl::StatusOr<std::vector<ModuleEdge>> EdgesOn(const DeviceMesh& mesh, absl::string_view axis,
                                                  bool allow_uneven) const;

  // Fixes how attention runs on those axes: its algorithm, and the axes of an all-to-all.
  // Requires: EdgesOn is OK for this mesh and axis.
  void Pin(const DeviceMesh& mesh, absl::string_view axis, AttentionOptions& options) const;
  // The axes around which keys and values are sent in a ring; may be none. Requires: as Pin.
  AxisList RingAxes(const DeviceMesh& mesh, absl::string_view axis) const;

 private:
  struct Row;
  static const Row kRows[];
  explicit ContextPattern(const Row& row) : row_(&row) {}
  bool both() const;  // an all-to-all over the first axis of two, and a ring over the second
  const Row* row_;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_CONTEXT_PATTERN_H_
