// Shortens long texts in messages: what a user typed, or what was read from a file, may be
// megabytes.
#ifndef DTENSOR_RUNTIME_CORE_SHORTENED_H_
#define DTENSOR_RUNTIME_CORE_SHORTENED_H_

#include <string>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Returns `text`. If that has more than 1000 bytes, returns its beginning and end with "... (N
// bytes) ..." between them, never cut within a UTF-8 character. InvalidArgument (status.h) does
// this to each piece.
std::string Shortened(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_SHORTENED_H_
