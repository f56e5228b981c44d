// How the terms of a Partial tensor are combined.
#ifndef DTENSOR_RUNTIME_CORE_REDUCE_OP_H_
#define DTENSOR_RUNTIME_CORE_REDUCE_OP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// kAvg is the sum divided by the number of terms; for floats only.
enum class ReduceOp : uint8_t { kSum, kAvg, kMax, kMin, kProduct };

absl::string_view ToString(ReduceOp op);  // "sum", "avg", "max", "min", "product"
// Errors: kInvalidArgument, listing the valid names.
absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_REDUCE_OP_H_
