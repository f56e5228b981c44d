// How a kernel reports an invalid index in its input: plain values, so that a GPU kernel can write
// them, too.
#ifndef DTENSOR_RUNTIME_DEVICE_INDEX_ERROR_H_
#define DTENSOR_RUNTIME_DEVICE_INDEX_ERROR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtensor {

// The index at `position` of the input is outside [0, limit).
struct IndexError {
  const char* what;  // "id": a string literal
  int64_t index, position, limit;
};

inline absl::Status ToStatus(const IndexError& error) {
  return absl::OutOfRangeError(absl::StrCat(error.what, " ", error.index, " at position ",
                                            error.position, " is outside [0, ", error.limit, ")"));
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_INDEX_ERROR_H_
