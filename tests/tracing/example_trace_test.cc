// Steps of the LLaMA example, traced on every rank, with everything that communicates: tensor,
// sequence and data parallelism, fully sharded units, rings, recomputation, buckets. The file
// matches the description of the format, event by event, and its sums equal the Contexts' counters.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/examples/training/trainer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/tracing/check_trace.h"
#include "dtensor/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::training {
namespace {

constexpr int kSteps = 2;

// What FullyShardPlan gathers together: its name is there before the unit is called the first time.
const std::set<absl::string_view> kUnits = {"", "model.embed_tokens", "model.layers.0",
                                            "model.layers.1", "lm_head"};

struct Case {
  std::string name, mesh, plan, cp_pattern = "zigzag";
  std::vector<std::string> recompute = {};
  bool keeps_collectives = false;
  int64_t bucket_bytes = kBucketBytes;
  // What has to be in the trace.
  std::vector<TraceCause> causes = {};
  CollectiveKind kind = CollectiveKind::kAllGather;
};

TrainConfig ConfigOf(const Case& c) {
  TrainConfig config;
  config.mesh = *DeviceMesh::Parse(c.mesh);
  config.plan = c.plan;
  config.cp_pattern = c.cp_pattern;
  config.model = {.vocab = 64, .dim = 32, .layers = 2, .heads = 8, .kv_heads = 4, .hidden = 64};
  config.batch = 4;
  config.sequence = 16;
  config.recompute = c.recompute;
  config.recompute_keeps_collectives = c.keeps_collectives;
  config.bucket_bytes = c.bucket_bytes;
  return config;
}

struct Traced {
  RankTrace trace;
  TrafficTable counted;
};

absl::Status TraceSteps(Context& context, const TrainConfig& config, Traced& traced) {
  DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(context, config));
  std::vector<int32_t> tokens(config.batch * (config.sequence + 1));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 61);
  for (int step = 0; step < kSteps; ++step) {
    const TraceSpan span(context.tracer(), TraceKind::kSpan, absl::StrCat("step ", step));
    DT_ASSIGN_OR_RETURN(const Trainer::StepResult result, trainer->Step(tokens));
    DT_RETURN_IF_ERROR(Item(result.loss).status());
  }
  DT_RETURN_IF_ERROR(CheckTrace(context));
  traced = {context.trace(), context.communicator().traffic()};
  return absl::OkStatus();
}

class ExampleTrace : public ::testing::TestWithParam<Case> {};

TEST_P(ExampleTrace, IsWhatTheFormatAndTheCountersSay) {
  const TrainConfig config = ConfigOf(GetParam());
  const std::string path = ::testing::TempDir() + "/" + GetParam().name + ".json";
  std::vector<Traced> ranks(config.mesh.size());
  ContextOptions contexts;
  contexts.trace_file = path;
  DT_ASSERT_OK(RunRanks(
      config.mesh.size(),
      [&](Context& context) { return TraceSteps(context, config, ranks[context.rank()]); }, {},
      contexts));
  DT_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(path, int64_t{1} << 30));
  DT_ASSERT_OK_AND_ASSIGN(const auto sums, CheckChromeTrace(text));
  ASSERT_EQ(sums.size(), ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_FALSE(ranks[rank].counted.empty());
    EXPECT_EQ(sums.at(static_cast<int>(rank)), AsInFile(ranks[rank].counted)) << "rank " << rank;
  }
}

// Whoever moves something says where it works and why.
TEST_P(ExampleTrace, NamesModulesAndReasons) {
  const TrainConfig config = ConfigOf(GetParam());
  std::vector<Traced> ranks(config.mesh.size());
  DT_ASSERT_OK(RunRanks(config.mesh.size(), [&](Context& context) {
    context.StartTrace();
    return TraceSteps(context, config, ranks[context.rank()]);
  }));
  std::map<TraceCause, int> causes;
  std::map<TracePhase, int> phases;
  bool has_kind = false;
  for (const TraceEvent& event : ranks[0].trace.events) {
    EXPECT_TRUE(event.complete()) << ToString(event.kind) << " " << event.name;
    ++phases[event.phase];
    const absl::string_view path = event.path;
    const bool known = path.empty() || path == "lm_head" || absl::StartsWith(path, "model");
    EXPECT_TRUE(known) << path;
    if (event.kind == TraceKind::kOperator && event.name == "Linear") {
      EXPECT_TRUE(absl::EndsWith(path, "_proj") || path == "lm_head") << path;
    }
    if (event.kind == TraceKind::kExchange) has_kind |= event.collective == GetParam().kind;
    if (event.kind != TraceKind::kRedistribution) continue;
    ++causes[event.cause];
    EXPECT_NE(event.from, event.to);
    const bool edge =
        event.cause == TraceCause::kEdgeInput || event.cause == TraceCause::kEdgeOutput;
    if (edge) {
      EXPECT_FALSE(path.empty());
    }
    if (event.cause == TraceCause::kGather) {
      EXPECT_TRUE(kUnits.contains(path)) << path << " is no unit of its own";
    }
  }
  for (const TraceCause cause : GetParam().causes) {
    EXPECT_GT(causes[cause], 0) << static_cast<int>(cause);
  }
  EXPECT_TRUE(has_kind);
  EXPECT_GT(phases[TracePhase::kBackward], 0);
  EXPECT_EQ(phases[TracePhase::kRecompute] > 0, !GetParam().recompute.empty());
}

using enum TraceCause;
INSTANTIATE_TEST_SUITE_P(Plans, ExampleTrace,
                         ::testing::Values(Case{.name = "tensor",
                                                .mesh = "dp=2,tp=2",
                                                .plan = "dp+tp+sp",
                                                .causes = {kEdgeInput, kEdgeOutput, kGradient,
                                                           kGatherAgain, kReduceGradients, kAsked},
                                                .kind = CollectiveKind::kReduceScatter},
                                           Case{.name = "sharded",
                                                .mesh = "dp=2,tp=2",
                                                .plan = "fsdp+tp+sp",
                                                .causes = {kEdgeInput, kGather, kReduceGradients}},
                                           Case{.name = "ring",
                                                .mesh = "cp=2,tp=2",
                                                .plan = "cp+tp+sp",
                                                .causes = {kEdgeInput},
                                                .kind = CollectiveKind::kPermute},
                                           Case{.name = "double_ring",
                                                .mesh = "a=2,b=2;cp=a*b",
                                                .plan = "cp",
                                                .cp_pattern = "double_ring",
                                                .kind = CollectiveKind::kPermute},
                                           Case{.name = "ulysses",
                                                .mesh = "cp=2",
                                                .plan = "cp",
                                                .cp_pattern = "ulysses",
                                                .causes = {kOperand, kResult},
                                                .kind = CollectiveKind::kAllToAll},
                                           Case{.name = "recomputed",
                                                .mesh = "dp=2,tp=2",
                                                .plan = "fsdp+tp+sp",
                                                .recompute = {"model.layers.*"},
                                                .causes = {kGather, kReduceGradients}},
                                           Case{.name = "recomputed_kept",
                                                .mesh = "dp=2,tp=2",
                                                .plan = "dp+tp+sp",
                                                .recompute = {"model.layers.*"},
                                                .keeps_collectives = true,
                                                .causes = {kEdgeInput}},
                                           Case{.name = "buckets",
                                                .mesh = "dp=2,tp=2",
                                                .plan = "dp+tp+sp",
                                                .bucket_bytes = 4096,
                                                .causes = {kReduceGradients}},
                                           Case{.name = "zero2",
                                                .mesh = "dp=2",
                                                .plan = "zero2",
                                                .causes = {kGather, kReduceGradients},
                                                .kind = CollectiveKind::kReduceScatter}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dtensor::training
