// Names of what is being written beside its place: nobody else's, and they say whose they are, so
// that what a killed process left can be told from what is in the making:
//
//   .NAME.MACHINE.PID.NUMBER.tmp
//
// MACHINE is a digest of the boot and of the namespace in which numbers of processes mean the same.
#ifndef DTENSOR_RUNTIME_IO_TEMPORARY_NAME_H_
#define DTENSOR_RUNTIME_IO_TEMPORARY_NAME_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A new one, of this process. Of a long name it has the first bytes, so that it is no longer than a
// file system takes.
std::string TemporaryName(absl::string_view name);

// The NAME of such a name, as far as that has it, if the process was one of this machine and is
// gone; none for all other names.
std::optional<std::string> AbandonedName(absl::string_view temporary);
// Whether that is this name.
bool IsAbandoned(absl::string_view temporary, absl::string_view name);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_TEMPORARY_NAME_H_
