// The operators' definitions, each in the file of its family, and their attributes. For test suites
// that go through all operators (testing/all_ops.h). Those of attention are in attention_op.h.
#ifndef DTENSOR_OPS_OP_DEFS_H_
#define DTENSOR_OPS_OP_DEFS_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/tensor/op.h"

namespace dtensor {
namespace internal {

// matmul.cc
absl::Span<const OpDef* const> MatMulOps();

// einsum.cc
struct EinsumAttrs {
  struct Size {
    std::string letter;
    int64_t size = 0;
    auto fields() const { return std::tie(letter, size); }
  };
  std::string rule;
  std::vector<Size> sizes;
  auto fields() const { return std::tie(rule, sizes); }
};
absl::Span<const OpDef* const> EinsumOps();

// arithmetic.cc
absl::Span<const OpDef* const> ArithmeticOps();

// functions.cc
struct GeluAttrs {
  GeluForm form = GeluForm::kErf;
  auto fields() const { return std::tie(form); }
};
absl::Span<const OpDef* const> FunctionOps();

// comparison.cc
struct ClampAttrs {
  double low = 0, high = 0;
  auto fields() const { return std::tie(low, high); }
};
absl::Span<const OpDef* const> ComparisonOps();

// cast.cc
struct CastAttrs {
  DType to = DType::kF32;
  auto fields() const { return std::tie(to); }
};
absl::Span<const OpDef* const> CastOps();

// dropout.cc
absl::Span<const OpDef* const> DropoutOps();

// norm.cc
struct RmsNormAttrs {
  double eps = 0;
  auto fields() const { return std::tie(eps); }
};
struct LayerNormAttrs {
  double eps = 0;
  auto fields() const { return std::tie(eps); }
};
absl::Span<const OpDef* const> NormOps();

// softmax.cc
absl::Span<const OpDef* const> SoftmaxOps();

// reduce.cc
struct ReduceAttrs {
  absl::InlinedVector<int, 4> dims;  // ascending
  auto fields() const { return std::tie(dims); }
};
absl::Span<const OpDef* const> ReduceOps();

// scan.cc
struct CumSumAttrs {
  int dim = 0;
  auto fields() const { return std::tie(dim); }
};
absl::Span<const OpDef* const> ScanOps();

// extremum.cc: Max and Min have ReduceAttrs.
struct ArgMaxAttrs {
  int dim = 0;
  auto fields() const { return std::tie(dim); }
};
struct TopKAttrs {
  int64_t k = 0;
  auto fields() const { return std::tie(k); }
};
absl::Span<const OpDef* const> ExtremumOps();

// view.cc
struct ReshapeAttrs {
  Dims shape;
  auto fields() const { return std::tie(shape); }
};
struct TransposeAttrs {
  int dim0 = 0, dim1 = 0;  // ascending
  auto fields() const { return std::tie(dim0, dim1); }
};
struct ExpandAttrs {
  Dims shape;
  auto fields() const { return std::tie(shape); }
};
absl::Span<const OpDef* const> ViewOps();

// slice.cc
struct SliceAttrs {
  int dim = 0;
  int64_t size = 0;  // from CallValues::offset on
  int64_t unit = 1;  // divides the dimension, `size` and the offset
  auto fields() const { return std::tie(dim, size, unit); }
};
struct SplitAttrs {
  int dim = 0;
  Dims sizes;
  auto fields() const { return std::tie(dim, sizes); }
};
absl::Span<const OpDef* const> SliceOps();

// concat.cc
struct ConcatAttrs {
  int dim = 0;
  auto fields() const { return std::tie(dim); }
};
struct StackAttrs {
  int dim = 0;  // of the result
  auto fields() const { return std::tie(dim); }
};
struct PadAttrs {
  int dim = 0;
  int64_t before = 0, after = 0;
  double value = 0;
  auto fields() const { return std::tie(dim, before, after, value); }
};
absl::Span<const OpDef* const> ConcatOps();

// windows.cc
struct WindowsAttrs {
  int dim = 0, at = 0;
  int64_t size = 1, step = 1, before = 0, dilation = 1, limit = kMaxElements;
  double value = 0;
  auto fields() const { return std::tie(dim, at, size, step, before, dilation, limit, value); }
};
absl::Span<const OpDef* const> WindowsOps();

// embedding.cc
struct BincountAttrs {
  int64_t n = 0;
  DType dtype = DType::kF32;
  auto fields() const { return std::tie(n, dtype); }
};
absl::Span<const OpDef* const> EmbeddingOps();

// expert_mlp.cc
absl::Span<const OpDef* const> ExpertMlpOps();

// clamped_expert_mlp.cc
struct SwiGluClampAttrs {
  SwiGluClamp clamp = {};
  auto fields() const { return std::tie(clamp.slope, clamp.limit); }
};
absl::Span<const OpDef* const> ClampedExpertMlpOps();

// rope.cc
struct RopeAttrs {
  double theta = 0;
  RopeScaling scaling;
  auto fields() const {
    return std::tie(theta, scaling.factor, scaling.low, scaling.high, scaling.trained,
                    scaling.transition, scaling.amplitude);
  }
};
absl::Span<const OpDef* const> RopeOps();

// cross_entropy.cc
struct CrossEntropyAttrs {
  int64_t ignore = 0;
  double label_smoothing = 0;
  int64_t classes = 0;  // 0: all
  auto fields() const { return std::tie(ignore, label_smoothing, classes); }
};
struct TargetMeanAttrs {
  int64_t ignore = 0;
  auto fields() const { return std::tie(ignore); }
};
absl::Span<const OpDef* const> CrossEntropyOps();

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_OPS_OP_DEFS_H_
