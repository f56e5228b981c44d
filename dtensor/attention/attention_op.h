// Attention's definition as an operator.
#ifndef DTENSOR_ATTENTION_ATTENTION_OP_H_
#define DTENSOR_ATTENTION_ATTENTION_OP_H_

#include <tuple>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/attention/attention.h"
#include "dtensor/attention/attention_plan.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/tensor/op.h"

namespace dtensor {
namespace internal {

struct AttentionAttrs {
  AttentionPlanKind plan = AttentionPlanKind::kAutomatic;
  bool backward = false;  // gradients are recorded
  AxisList all_to_all;    // ascending; of size 1: none
  AttentionMask mask;
  double scale = 0;  // 0: 1/sqrt(d)
  double dropout = 0;
  // The position of query 0 (AttentionProblem::query_offset) without CallValues::offset, by which
  // the queries of a call are further on. CallValues::offset is 0 if a ring or another plan may be
  // taken.
  int64_t query_offset = AttentionProblem::kEndTogether;
  auto fields() const {
    return std::make_tuple(plan, backward, all_to_all, mask.kind(), mask.width(), mask.starts(),
                           scale, dropout, query_offset);
  }
};

absl::Span<const OpDef* const> AttentionOps();

// The axes that the options name are looked up in `mesh`. Errors: kInvalidArgument for an axis that
// it lacks.
absl::StatusOr<AttentionAttrs> AttrsOf(const AttentionOptions& options, const DeviceMesh& mesh,
                                       bool backward);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_OP_H_
