#include "dtensor/tools/cli/ring/ring_command.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/attention/attention_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/ring/ring_run.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

int64_t Busiest(const RingSchedule& schedule, int64_t (RingSchedule::*bytes)(int) const) {
  int64_t busiest = 0;
  for (int ring_rank = 0; ring_rank < schedule.ring_size(); ++ring_rank) {
    busiest = std::max(busiest, (schedule.*bytes)(ring_rank));
  }
  return busiest;
}

int64_t Sum(const std::vector<RingMessage>& messages) {
  int64_t bytes = 0;
  for (const RingMessage& message : messages) bytes += message.bytes;
  return bytes;
}

// What all ranks do in a step: each key has a list with an entry for each rank.
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

// The plans that the attention operator would choose from, for sequences laid out as the ring's and
// with gradients.
absl::StatusOr<std::vector<AttentionPlan>> Plans(const RingProblem& ring, const CostModel& links) {
  AttentionProblem problem;
  DT_ASSIGN_OR_RETURN(problem.q, Layout::Create(ring.q.mesh(), {{}, ring.q.dim(0), {}, {}}));
  problem.kv = problem.q;
  problem.q_shape = {ring.batch, ring.q_length, ring.heads, ring.head_dim};
  problem.kv_shape = {ring.batch, ring.kv_length, ring.kv_heads, ring.head_dim};
  problem.dtype = ring.dtype;
  problem.mask = ring.mask;
  problem.backward = true;
  return AttentionPlans(problem, links);
}

Json PlansJson(const std::vector<AttentionPlan>& plans, const DeviceMesh& mesh) {
  Json list = Json::array();
  for (const AttentionPlan& plan : plans) {
    list.push_back({{"plan", std::string(ToString(plan.kind))},
                    {"all_to_all", mesh.AxisNames(plan.all_to_all)},
                    {"seconds", plan.seconds},
                    {"bytes", plan.bytes},
                    {"extra_bytes_per_rank", plan.extra_bytes},
                    {"kept_bytes_per_rank", plan.kept_bytes},
                    {"chosen", &plan == &ChooseAttentionPlan(plans, -1)}});
  }
  return list;
}

std::string PlansText(const std::vector<AttentionPlan>& plans, const DeviceMesh& mesh) {
  std::string text;
  for (const AttentionPlan& plan : plans) {
    absl::StrAppend(&text, "plan       ", plan.ToString(mesh),
                    &plan == &ChooseAttentionPlan(plans, -1) ? ": chosen\n" : "\n");
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
  if (flags.progress) {
    return InvalidArgument({"--progress: a schedule is made at once; add --run, or leave it out"});
  }
  if (flags.in || flags.out) {
    return InvalidArgument({flags.in ? "--in" : "--out", ": files are read and written by a run; ",
                            "add --run, or leave the flag out"});
  }
  DT_ASSIGN_OR_RETURN(const RingProblem problem, ParseRing(flags));
  DT_ASSIGN_OR_RETURN(const RingSchedule schedule, RingSchedule::Create(problem));
  DT_ASSIGN_OR_RETURN(const CostModel links, ReadLinks(flags.links, {problem.q.mesh()}));
  DT_ASSIGN_OR_RETURN(const std::vector<AttentionPlan> plans, Plans(problem, links));
  const DeviceMesh& mesh = problem.q.mesh();
  if (!json) return Outcome{absl::StrCat(schedule.ToString(), PlansText(plans, mesh))};
  Json report = RingJson(schedule, flags);
  report["plans"] = PlansJson(plans, mesh);
  return Outcome{JsonText(report)};
}

}  // namespace dtensor::cli
