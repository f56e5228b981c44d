// "80GiB": numbers of bytes, as people write them.
#ifndef DTENSOR_TOOLS_PROGRAM_BYTE_SIZE_H_
#define DTENSOR_TOOLS_PROGRAM_BYTE_SIZE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor {

// A decimal number and a unit, with or without blanks between them: none or B; kB, MB, GB, TB, PB
// and EB, by 1000; KiB, MiB, GiB, TiB, PiB and EiB, by 1024; letters of either case. A fraction is
// fine where it gives whole bytes, as in 1.5GB. Errors: kInvalidArgument for anything else, a
// letter alone among it (10k: by which?), and for more than 2^63 - 1 bytes.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_BYTE_SIZE_H_
