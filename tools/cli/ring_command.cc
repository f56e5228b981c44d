#include "dtensor/tools/cli/ring_command.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Of(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

struct Pattern {
  absl::string_view name;
  int axes;
  Order order;
};
constexpr Pattern kPatterns[] = {{"ring", 1, Order::Contiguous()},
                                 {"zigzag", 1, Order::Zigzag()},
                                 {"striped", 1, Order::Block(1)},
                                 {"double_ring", 2, Order::Zigzag()}};

absl::StatusOr<Pattern> ParsePattern(absl::string_view text) {
  for (const Pattern& pattern : kPatterns) {
    if (text == pattern.name) return pattern;
  }
  return InvalidArgument(
      {"--pattern: \"", text, "\" is no pattern; take ring, zigzag, striped or double_ring"});
}

// The mesh is the ring.
absl::Status CheckAxes(const Pattern& pattern, const DeviceMesh& mesh) {
  if (mesh.rank_of_axes() == pattern.axes) return absl::OkStatus();
  return InvalidArgument(
      {"--mesh: pattern ", pattern.name, " runs over ",
       pattern.axes == 1 ? "one axis, as in cp=8" : "two axes, outer and inner, as in node=2,cp=4",
       "; ", mesh.ToString(), " has ", absl::StrCat(mesh.rank_of_axes())});
}

// A schedule has a turn for each rank in each of as many steps.
absl::Status CheckSize(const DeviceMesh& mesh) {
  if (mesh.size() <= 1024) return absl::OkStatus();
  return InvalidArgument(
      {"--mesh: a ring of ", absl::StrCat(mesh.size()), " ranks; take 1024 or fewer"});
}

absl::StatusOr<DeviceMesh> ParseRingMesh(const RingFlags& flags, const Pattern& pattern) {
  const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(flags.mesh);
  if (!mesh.ok()) return Of("--mesh", mesh.status());
  DT_RETURN_IF_ERROR(CheckAxes(pattern, *mesh));
  DT_RETURN_IF_ERROR(CheckSize(*mesh));
  return *mesh;
}

int64_t KvHeads(const RingFlags& flags) { return flags.kv_heads.value_or(flags.heads); }

// What PlanRing would refuse as well, but without the flag's name.
absl::Status CheckNumbers(const RingFlags& flags) {
  struct Number {
    absl::string_view flag;
    int64_t value, least;
  };
  const int64_t kv_heads = KvHeads(flags);
  for (const Number& n : {Number{"--batch", flags.batch, 0}, Number{"--heads", flags.heads, 1},
                          Number{"--kv-heads", kv_heads, 1}, Number{"--seq", flags.seq, 0},
                          Number{"--head-dim", flags.head_dim, 1}}) {
    if (n.value >= n.least) continue;
    return InvalidArgument({n.flag, ": ", absl::StrCat(n.value), " is too small; take ",
                            absl::StrCat(n.least), " or more"});
  }
  if (flags.heads % kv_heads == 0) return absl::OkStatus();
  return InvalidArgument({"--kv-heads: ", absl::StrCat(flags.heads), " heads are not divisible by ",
                          absl::StrCat(kv_heads),
                          " kv heads, of which each serves as many; take a divisor of --heads"});
}

absl::StatusOr<AttentionMask> ParseMask(const RingFlags& flags) {
  absl::StatusOr<AttentionMask> mask = AttentionMask::Parse(flags.mask);
  if (!mask.ok()) return Of("--mask", mask.status());
  const absl::Status fits = mask->CheckFits(flags.seq);
  return fits.ok() ? mask : Of("--mask", fits);
}

int64_t Busiest(const RingSchedule& schedule, int64_t (RingSchedule::*bytes)(int) const) {
  int64_t busiest = 0;
  for (int place = 0; place < schedule.places(); ++place) {
    busiest = std::max(busiest, (schedule.*bytes)(place));
  }
  return busiest;
}

int64_t Sum(const std::vector<RingMessage>& messages) {
  int64_t bytes = 0;
  for (const RingMessage& message : messages) bytes += message.bytes;
  return bytes;
}

// What all ranks do in a step: a list with an entry for each rank under every key.
Json StepJson(const RingStep& step) {
  std::vector<int> sources;
  std::vector<std::string> cases;
  std::vector<int64_t> work, sent, gradients;
  for (const RingTurn& turn : step.turns) {
    sources.push_back(turn.source);
    cases.emplace_back(ToString(turn.block_case));
    work.push_back(turn.work);
    sent.push_back(Sum(turn.sends));
    gradients.push_back(Sum(turn.gradient_sends));
  }
  return {{"hop", step.hop}, {"source", sources},  {"case", cases},
          {"work", work},    {"bytes_sent", sent}, {"gradient_bytes_sent", gradients}};
}

Json LinksJson(const RingSchedule& schedule) {
  Json links = Json::array();
  for (const RingLink& link : schedule.Links()) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"forward_bytes", link.forward_bytes},
                     {"backward_bytes", link.backward_bytes}});
  }
  return links;
}

Json RingJson(const RingSchedule& schedule, const RingFlags& flags) {
  const RingProblem& problem = schedule.problem();
  Json steps = Json::array();
  for (const RingStep& step : schedule.steps()) steps.push_back(StepJson(step));
  return {{"mesh", problem.q.mesh().ToString()},
          {"pattern", flags.pattern},
          {"layout", problem.q.ToString()},
          {"mask", problem.mask.ToString()},
          {"batch", problem.batch},
          {"heads", problem.heads},
          {"kv_heads", problem.kv_heads},
          {"seq", problem.q_length},
          {"head_dim", problem.head_dim},
          {"dtype", std::string(ToString(problem.dtype))},
          {"steps", std::move(steps)},
          {"links", LinksJson(schedule)},
          {"forward_bytes_per_rank", Busiest(schedule, &RingSchedule::ForwardBytes)},
          {"backward_bytes_per_rank", Busiest(schedule, &RingSchedule::BackwardBytes)},
          {"crossing_blocks", schedule.CrossingBlocks()},
          {"crossing_gradients", schedule.CrossingGradients()},
          {"balance", schedule.Balance()},
          {"peak_bytes_per_rank", schedule.PeakBytes()}};
}

}  // namespace

absl::StatusOr<RingProblem> ParseRing(const RingFlags& flags) {
  DT_RETURN_IF_ERROR(CheckNumbers(flags));
  DT_ASSIGN_OR_RETURN(const Pattern pattern, ParsePattern(flags.pattern));
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, ParseRingMesh(flags, pattern));
  RingProblem problem;
  DT_ASSIGN_OR_RETURN(problem.mask, ParseMask(flags));
  const absl::StatusOr<DType> dtype = ParseDType(flags.dtype);
  if (!dtype.ok()) return Of("--dtype", dtype.status());
  problem.dtype = *dtype;
  const Placements placements(pattern.axes, Shard(0, pattern.order));
  DT_ASSIGN_OR_RETURN(problem.q, Layout::FromPlacements(mesh, placements, {flags.seq}));
  problem.kv = problem.q;
  problem.q_length = problem.kv_length = flags.seq;
  for (int axis = 0; axis < pattern.axes; ++axis) problem.axes.push_back(axis);
  problem.batch = flags.batch;
  problem.heads = flags.heads;
  problem.kv_heads = KvHeads(flags);
  problem.head_dim = flags.head_dim;
  return problem;
}

absl::StatusOr<Outcome> RunRing(const RingFlags& flags, bool json) {
  DT_ASSIGN_OR_RETURN(const RingProblem problem, ParseRing(flags));
  DT_ASSIGN_OR_RETURN(const RingSchedule schedule, PlanRing(problem));
  return Outcome{json ? JsonText(RingJson(schedule, flags)) : schedule.ToString()};
}

}  // namespace dtensor::cli
