#include "dtensor/tools/cli/ring/ring_request.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/request.h"
#include "dtensor/tools/program/nearest_word.h"

namespace dtensor::cli {
namespace {

struct Pattern {
  absl::string_view name;
  int axes;
  ShardOrder order;
};
constexpr Pattern kPatterns[] = {{"ring", 1, ShardOrder::Contiguous()},
                                 {"zigzag", 1, ShardOrder::Zigzag()},
                                 {"striped", 1, ShardOrder::Block(1)},
                                 {"double_ring", 2, ShardOrder::Zigzag()}};

absl::StatusOr<Pattern> ParsePattern(absl::string_view text) {
  for (const Pattern& pattern : kPatterns) {
    if (text == pattern.name) return pattern;
  }
  return InvalidArgument(
      {"--pattern: \"", text, "\" is no pattern; take ring, zigzag, striped or double_ring"});
}

// Checks that the mesh has as many axes as the pattern: the mesh is the ring.
absl::Status CheckAxes(const Pattern& pattern, const DeviceMesh& mesh) {
  if (mesh.num_axes() == pattern.axes) return absl::OkStatus();
  return InvalidArgument(
      {"--mesh: pattern ", pattern.name, " runs over ",
       pattern.axes == 1 ? "one axis, as in cp=8" : "two axes, outer and inner, as in node=2,cp=4",
       "; ", mesh.ToString(), " has ", absl::StrCat(mesh.num_axes())});
}

// A schedule has as many steps as ranks, each with an entry for each rank.
absl::Status CheckSize(const DeviceMesh& mesh) {
  if (mesh.size() <= 1024) return absl::OkStatus();
  return InvalidArgument(
      {"--mesh: a ring of ", absl::StrCat(mesh.size()), " ranks; take 1024 or fewer"});
}

absl::StatusOr<DeviceMesh> ParseRingMesh(const RingFlags& flags, const Pattern& pattern) {
  const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(flags.mesh);
  if (!mesh.ok()) return AboutFlag("--mesh", mesh.status());
  DT_RETURN_IF_ERROR(CheckAxes(pattern, *mesh));
  DT_RETURN_IF_ERROR(CheckSize(*mesh));
  return *mesh;
}

// RingSchedule::Create would refuse the same, but without the flag's name.
absl::Status CheckNumbers(const RingProblem& problem) {
  struct Number {
    absl::string_view flag;
    int64_t value, least;
  };
  for (const Number& n :
       {Number{"--batch", problem.batch, 0}, Number{"--heads", problem.heads, 1},
        Number{"--kv-heads", problem.kv_heads, 1}, Number{"--seq", problem.q_length, 0},
        Number{"--head-dim", problem.head_dim, 1}}) {
    if (n.value >= n.least) continue;
    return InvalidArgument({n.flag, ": ", absl::StrCat(n.value), " is too small; take ",
                            absl::StrCat(n.least), " or more"});
  }
  if (problem.heads % problem.kv_heads == 0) return absl::OkStatus();
  return InvalidArgument({"--kv-heads: ", absl::StrCat(problem.heads),
                          " heads are not divisible by ", absl::StrCat(problem.kv_heads),
                          " kv heads, of which each serves as many; take a divisor of --heads"});
}

absl::StatusOr<AttentionMask> ParseMask(absl::string_view text, int64_t length) {
  absl::StatusOr<AttentionMask> mask = AttentionMask::Parse(text);
  if (!mask.ok()) {
    const absl::string_view kind = text.substr(0, text.find(':'));
    const std::vector<std::string> kinds = {"full", "causal", "window", "prefix", "documents"};
    const bool known = absl::c_linear_search(kinds, kind);
    return AboutFlag(
        "--mask", InvalidArgument({mask.status().message(), known ? "" : DidYouMean(kind, kinds)}));
  }
  const absl::Status fits = mask->CheckFits(length);
  return fits.ok() ? mask : AboutFlag("--mask", fits);
}

// The numbers that the flags give, with defaults for those that are not given.
absl::StatusOr<RingProblem> ParseSizes(const RingFlags& flags) {
  if (!flags.seq) {
    return InvalidArgument(
        {"--seq is required: give the positions of all ranks together, or --run and a file "
         "(--in)"});
  }
  RingProblem problem;
  problem.q_length = problem.kv_length = *flags.seq;
  problem.batch = flags.batch.value_or(1);
  problem.heads = flags.heads.value_or(1);
  problem.kv_heads = flags.kv_heads.value_or(problem.heads);
  problem.head_dim = flags.head_dim.value_or(64);
  DT_RETURN_IF_ERROR(CheckNumbers(problem));
  return problem;
}

}  // namespace

absl::StatusOr<RingProblem> ParseRing(const RingFlags& flags) {
  DT_ASSIGN_OR_RETURN(RingProblem problem, ParseSizes(flags));
  DT_ASSIGN_OR_RETURN(const Pattern pattern, ParsePattern(flags.pattern));
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, ParseRingMesh(flags, pattern));
  DT_ASSIGN_OR_RETURN(problem.mask, ParseMask(flags.mask, problem.q_length));
  const absl::StatusOr<DType> dtype = ParseDType(flags.dtype.value_or("f32"));
  if (!dtype.ok()) return AboutFlag("--dtype", dtype.status());
  problem.dtype = *dtype;
  const Placements placements(pattern.axes, Shard(0, pattern.order));
  DT_ASSIGN_OR_RETURN(problem.q, Layout::FromPlacements(mesh, placements, {problem.q_length}));
  problem.kv = problem.q;
  for (int axis = 0; axis < pattern.axes; ++axis) problem.axes.push_back(axis);
  return problem;
}

nlohmann::ordered_json ProblemJson(const RingProblem& problem, absl::string_view pattern) {
  return {{"mesh", problem.q.mesh().ToString()},
          {"pattern", std::string(pattern)},
          {"layout", problem.q.ToString()},
          {"mask", problem.mask.ToString()},
          {"batch", problem.batch},
          {"heads", problem.heads},
          {"kv_heads", problem.kv_heads},
          {"seq", problem.q_length},
          {"head_dim", problem.head_dim},
          {"dtype", std::string(ToString(problem.dtype))}};
}

}  // namespace dtensor::cli
