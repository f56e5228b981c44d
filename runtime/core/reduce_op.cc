#include "dtensor/runtime/core/reduce_op.h"

#include <iterator>

#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// In the order of the enumerators.
constexpr absl::string_view kNames[] = {"sum", "avg", "max", "min", "product"};
static_assert(std::size(kNames) == static_cast<size_t>(ReduceOp::kProduct) + 1);

}  // namespace

absl::string_view ToString(ReduceOp op) {
  const auto index = static_cast<size_t>(op);
  DT_CHECK(index < std::size(kNames));
  return kNames[index];
}

absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view text) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) return static_cast<ReduceOp>(i);
  }
  return InvalidArgument(
      {"\"", text, "\" is no reduction; write one of ", absl::StrJoin(kNames, ", ")});
}

}  // namespace dtensor
