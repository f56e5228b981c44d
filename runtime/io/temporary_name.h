// Names of files and folders that are written next to their place. Each name is unique and says
// which process it belongs to, so that what a killed process left can be told from what is being
// written:
//
//   .NAME.MACHINE.PID.NUMBER.tmp
//
// MACHINE is a digest of the boot, the namespace of process numbers, the host's name and what
// DTENSOR_HOST says.
#ifndef DTENSOR_RUNTIME_IO_TEMPORARY_NAME_H_
#define DTENSOR_RUNTIME_IO_TEMPORARY_NAME_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A new name, of this process. Of a long NAME it has only the first bytes, so that file systems
// accept the result.
std::string TemporaryName(absl::string_view name);

// The NAME in such a name, as far as it is there, if the process was on this machine and has ended;
// none for all other names.
std::optional<std::string> AbandonedName(absl::string_view temporary);
// Whether AbandonedName(temporary) is this name.
bool IsAbandoned(absl::string_view temporary, absl::string_view name);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_TEMPORARY_NAME_H_
