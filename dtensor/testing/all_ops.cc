#include "dtensor/testing/all_ops.h"

#include "absl/types/span.h"
#include "dtensor/attention/attention_op.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::internal {

std::vector<const OpDef*> AllOps() {
  std::vector<const OpDef*> all;
  for (const absl::Span<const OpDef* const> family : {MatMulOps(),
                                                      EinsumOps(),
                                                      ArithmeticOps(),
                                                      FunctionOps(),
                                                      ComparisonOps(),
                                                      CastOps(),
                                                      DropoutOps(),
                                                      NormOps(),
                                                      SoftmaxOps(),
                                                      ReduceOps(),
                                                      ScanOps(),
                                                      ExtremumOps(),
                                                      ViewOps(),
                                                      SliceOps(),
                                                      ConcatOps(),
                                                      WindowsOps(),
                                                      EmbeddingOps(),
                                                      ExpertMlpOps(),
                                                      ClampedExpertMlpOps(),
                                                      RopeOps(),
                                                      AttentionOps(),
                                                      CrossEntropyOps()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

const OpDef& OpNamed(absl::string_view name, size_t index) {
  for (const OpDef* op : AllOps()) {
    if (name == op->name && index-- == 0) return *op;
  }
  DT_REQUIRE(false, "OpNamed: there is no operator of that name");
  return *AllOps()[0];
}

}  // namespace dtensor::internal
