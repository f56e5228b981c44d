// Reads the flags of dtensor ring into values.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_REQUEST_H_
#define DTENSOR_TOOLS_CLI_RING_RING_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/attention/ring_schedule.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {

// Flags as they were typed. A flag that is not given is taken from the file `in`, if there is one,
// else it has its default: 1, 1, as many as heads, 64, f32. `seq` has no default.
struct RingFlags {
  std::string mesh, pattern = "ring", mask = "full";
  std::optional<int64_t> batch, heads, kv_heads, seq, head_dim;
  std::optional<std::string> dtype;
  bool run = false;
  bool progress = false;               // with `run`: report progress on stderr
  std::optional<std::string> in, out;  // files, for `run`
  std::string links;                   // a file, for prices; none: the default table
};

// Does not depend on `in` and `out`. All errors are kInvalidArgument, begin with the flag if one
// value is at fault, and name the remedy.
absl::StatusOr<RingProblem> ParseRing(const RingFlags& flags);

// The same as JSON, under the names that the commands print first.
nlohmann::ordered_json ProblemJson(const RingProblem& problem, absl::string_view pattern);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_REQUEST_H_
