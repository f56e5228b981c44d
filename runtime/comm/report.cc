#include "dtensor/runtime/comm/report.h"

#include <cstdio>

namespace dtensor {

void PrintOnStderr(const absl::Status& trouble) {
  std::fprintf(stderr, "dtensor: %s\n", trouble.ToString().c_str());
}

}  // namespace dtensor
