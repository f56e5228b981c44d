// "80GiB": numbers of bytes, as people write them.
#ifndef DTENSOR_TOOLS_PROGRAM_BYTE_SIZE_H_
#define DTENSOR_TOOLS_PROGRAM_BYTE_SIZE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor {

// Parses a decimal number and a unit, with or without blanks between them. Units: none or B; kB,
// MB, GB, TB, PB and EB, by 1000; KiB, MiB, GiB, TiB, PiB and EiB, by 1024; in upper or lower case.
// A fraction is accepted if it gives whole bytes, as in 1.5GB. Errors: kInvalidArgument for
// anything else, including a single letter (10k is ambiguous), and for more than 2^63 - 1 bytes.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_BYTE_SIZE_H_
