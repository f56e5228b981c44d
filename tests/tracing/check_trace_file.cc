// check_trace_file FILE...: checks each, and prints its sums: "PID AXES COLLECTIVE CALLS BYTES".
#include <cstdint>
#include <cstdio>
#include <string>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/tests/tracing/check_trace.h"

namespace dtensor {
namespace {

absl::Status Check(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, int64_t{1} << 30));
  DT_ASSIGN_OR_RETURN(const auto sums, CheckChromeTrace(text));
  for (const auto& [pid, traffic] : sums) {
    std::printf("%d\n", pid);
    for (const auto& [key, sum] : traffic) {
      std::printf("%d %s %s %ld %ld\n", pid, key.first.c_str(), key.second.c_str(),
                  static_cast<long>(sum.calls), static_cast<long>(sum.bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::Status status = dtensor::Check(argv[i]);
    if (status.ok()) continue;
    std::fprintf(stderr, "%s: %s\n", argv[i], std::string(status.message()).c_str());
    return 1;
  }
  return argc > 1 ? 0 : 2;
}
