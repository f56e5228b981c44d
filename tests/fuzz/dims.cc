// The smallest texts: shapes, types, names of reductions.
#include "dtensor/runtime/core/dims.h"

#include <string>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  if (const auto dims = ParseDims(input); IsRead(dims)) {
    const std::string text = DimsToString(*dims);
    RequireSame(*dims, ParseDims(text), text);
  }
  if (const auto dtype = ParseDType(input); IsRead(dtype)) {
    Require(ToString(*dtype) == input, "a type prints as it is read");
  }
  if (const auto op = ParseReduceOp(input); IsRead(op)) {
    Require(ToString(*op) == input, "a reduction prints as it is read");
  }
}

}  // namespace dtensor::fuzz
