#include "dtensor/testing/all_ops.h"

#include "dtensor/attention/attention_op.h"
#include "dtensor/ops/op_defs.h"

namespace dtensor::internal {

absl::Span<const OpDef* const> AllOps() {
  static constexpr const OpDef* kAll[] = {
      &kMatMulOp,    &kLinearOp,    &kAddOp,       &kSubOp,         &kMulOp,
      &kScaleOp,     &kSiluOp,      &kSiluMulOp,   &kCastOp,        &kCastToIntegerOp,
      &kSoftmaxOp,   &kRmsNormOp,   &kSumOp,       &kMeanOp,        &kSumOfSquaresOp,
      &kReshapeOp,   &kTransposeOp, &kSliceOp,     &kSplitOp,       &kConcatOp,
      &kEmbeddingOp, &kRopeOp,      &kAttentionOp, &kCrossEntropyOp};
  return kAll;
}

}  // namespace dtensor::internal
