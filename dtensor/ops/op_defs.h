// The operators' definitions, by the file that has them. Attention's is in
// dtensor/attention/attention_op.h.
#ifndef DTENSOR_OPS_OP_DEFS_H_
#define DTENSOR_OPS_OP_DEFS_H_

#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// What `attrs` of each holds is said where it is defined.
// matmul.cc
extern const OpDef kMatMulOp, kLinearOp;
// elementwise.cc
extern const OpDef kAddOp, kSubOp, kMulOp, kScaleOp, kSiluOp, kSiluMulOp;
extern const OpDef kCastOp, kCastToIntegerOp;
// norm.cc
extern const OpDef kSoftmaxOp, kRmsNormOp;
// reduce.cc
extern const OpDef kSumOp, kMeanOp, kSumOfSquaresOp;
// view.cc
extern const OpDef kReshapeOp, kTransposeOp;
// slice.cc
extern const OpDef kSliceOp, kSplitOp, kConcatOp;
// embedding.cc
extern const OpDef kEmbeddingOp;
// rope.cc
extern const OpDef kRopeOp;
// cross_entropy.cc
extern const OpDef kCrossEntropyOp;

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_OP_DEFS_H_
