// What a world reports by default if no call can return it yet.
#ifndef DTENSOR_RUNTIME_COMM_REPORT_H_
#define DTENSOR_RUNTIME_COMM_REPORT_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

void PrintOnStderr(const absl::Status& trouble);  // "dtensor: CODE: message", one line

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_REPORT_H_
