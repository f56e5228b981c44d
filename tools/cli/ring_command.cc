#include "dtensor/tools/cli/ring_command.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/attention_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/ring_run.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

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

// Attention whose sequences lie as the ring's, with gradients: what its operator would choose from.
absl::StatusOr<std::vector<AttentionWay>> Ways(const RingProblem& ring, const LinkTable& links) {
  AttentionProblem problem;
  DT_ASSIGN_OR_RETURN(problem.q, Layout::Create(ring.q.mesh(), {{}, ring.q.dim(0), {}, {}}));
  problem.kv = problem.q;
  problem.q_shape = {ring.batch, ring.q_length, ring.heads, ring.head_dim};
  problem.kv_shape = {ring.batch, ring.kv_length, ring.kv_heads, ring.head_dim};
  problem.dtype = ring.dtype;
  problem.mask = ring.mask;
  problem.backward = true;
  return AttentionWays(problem, links);
}

Json WaysJson(const std::vector<AttentionWay>& ways, const DeviceMesh& mesh) {
  Json list = Json::array();
  for (const AttentionWay& way : ways) {
    list.push_back({{"method", std::string(ToString(way.method))},
                    {"all_to_all", mesh.AxisNames(way.all_to_all)},
                    {"seconds", way.seconds},
                    {"bytes", way.bytes},
                    {"extra_bytes_per_rank", way.extra_bytes},
                    {"kept_bytes_per_rank", way.kept_bytes},
                    {"chosen", &way == &Choose(ways, -1)}});
  }
  return list;
}

std::string WaysText(const std::vector<AttentionWay>& ways, const DeviceMesh& mesh) {
  std::string text;
  for (const AttentionWay& way : ways) {
    absl::StrAppend(&text, "way        ", way.ToString(mesh),
                    &way == &Choose(ways, -1) ? ": chosen\n" : "\n");
  }
  return text;
}

Json RingJson(const RingSchedule& schedule, const RingFlags& flags) {
  Json json = ProblemJson(schedule.problem(), flags.pattern);
  json["steps"] = Json::array();
  for (const RingStep& step : schedule.steps()) json["steps"].push_back(StepJson(step));
  json["links"] = LinksJson(schedule);
  json["forward_bytes_per_rank"] = Busiest(schedule, &RingSchedule::ForwardBytes);
  json["backward_bytes_per_rank"] = Busiest(schedule, &RingSchedule::BackwardBytes);
  json["crossing_blocks"] = schedule.CrossingBlocks();
  json["crossing_gradients"] = schedule.CrossingGradients();
  json["balance"] = schedule.Balance();
  json["peak_bytes_per_rank"] = schedule.PeakBytes();
  return json;
}

}  // namespace

absl::StatusOr<Outcome> RunRing(const RingFlags& flags, bool json) {
  if (flags.run) return RunRingOnThreads(flags, json);
  if (flags.in || flags.out) {
    return InvalidArgument({flags.in ? "--in" : "--out", ": files are read and written by a run; ",
                            "add --run, or leave the flag out"});
  }
  DT_ASSIGN_OR_RETURN(const RingProblem problem, ParseRing(flags));
  DT_ASSIGN_OR_RETURN(const RingSchedule schedule, PlanRing(problem));
  DT_ASSIGN_OR_RETURN(const LinkTable links, ReadLinks(flags.links));
  DT_ASSIGN_OR_RETURN(const std::vector<AttentionWay> ways, Ways(problem, links));
  const DeviceMesh& mesh = problem.q.mesh();
  if (!json) return Outcome{absl::StrCat(schedule.ToString(), WaysText(ways, mesh))};
  Json report = RingJson(schedule, flags);
  report["ways"] = WaysJson(ways, mesh);
  return Outcome{JsonText(report)};
}

}  // namespace dtensor::cli
