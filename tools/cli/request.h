// Reads the flags of all commands into values. Flags are parsed nowhere else.
#ifndef DTENSOR_TOOLS_CLI_REQUEST_H_
#define DTENSOR_TOOLS_CLI_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"

namespace dtensor::cli {

// The outcome of a command: what it prints, and whether everything is well (exit status 0, else 1).
// Requests that cannot be served give an absl::Status instead (exit status 2).
struct Outcome {
  std::string text;
  bool ok = true;
};

// Flags as they were typed. `links` names a file. A move between two meshes has `from_mesh` or
// `to_mesh` or both; `mesh` is used for the one that is not given.
struct MoveFlags {
  std::optional<std::string> mesh, from_mesh, to_mesh;
  std::string shape, dtype = "f32", from, to, objective = "total", links;
  int64_t max_extra_bytes = -1;  // no cap
  // Of `plan` alone.
  std::string svg;
  bool picture = false;
};
struct RegionsFlags {
  std::string mesh, shape, layout, svg;
  bool picture = false;
};

// A redistribution, as requested.
struct Move {
  Layout from, to;
  Dims shape;
  DType dtype = DType::kF32;
  RedistributionOptions options;
};
// A tensor whose regions are requested.
struct Laid {
  Layout layout;
  Dims shape;
};

// Prefixes an error with the flag that caused it: "--picture: ...". OK stays OK.
absl::Status AboutFlag(absl::string_view flag, const absl::Status& status);

// All errors are kInvalidArgument (kNotFound for a file), begin with the flag, and name the remedy.
absl::StatusOr<Move> ParseMove(const MoveFlags& flags);
absl::StatusOr<Laid> ParseLaid(const RegionsFlags& flags);

// The table in a file; for "", the default table. A table that has lines for axes, but none for an
// axis of these meshes, is refused.
absl::StatusOr<CostModel> ReadLinks(const std::string& path, absl::Span<const DeviceMesh> meshes);
// "64,64"; "" and "scalar" are a scalar.
absl::StatusOr<Dims> ParseShape(absl::string_view text);
// A placement for each mesh axis, "P(sum),S(0)", or what Layout::ToString prints. They can be told
// apart, since no placement contains '[' or ':' or is "scalar". A list in brackets is a list of
// placements if it is no layout on this mesh, or uses PyTorch's words.
absl::StatusOr<Layout> ParseLayout(absl::string_view flag, absl::string_view text,
                                   const DeviceMesh& mesh, absl::Span<const int64_t> shape);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_REQUEST_H_
