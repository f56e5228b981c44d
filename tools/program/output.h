// Where a program prints and writes.
#ifndef DTENSOR_TOOLS_PROGRAM_OUTPUT_H_
#define DTENSOR_TOOLS_PROGRAM_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtensor {

// Prints to stdout immediately. Errors: kUnavailable if not all of it could be written.
absl::Status Print(absl::string_view text);

// A message as one line, since it may contain whatever the user typed.
std::string OneLine(absl::string_view message);

// To stderr, as one line: "NAME: MESSAGE".
void PrintError(absl::string_view name, absl::string_view message);

// Checks that the file that a flag names can be written; call it before the work whose result goes
// there. Errors: kInvalidArgument, beginning with the flag.
absl::Status CheckOutputFile(absl::string_view flag, const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_OUTPUT_H_
