// The commands without the program around them.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cli/links_command.h"
#include "dtensor/tools/cli/plan_command.h"
#include "dtensor/tools/cli/redistribute_command.h"
#include "dtensor/tools/cli/regions_command.h"
#include "dtensor/tools/cli/ring/ring_command.h"
#include "dtensor/tools/program/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

MoveFlags Flags(std::string mesh, std::string shape, std::string from, std::string to,
                std::string dtype = "f32") {
  MoveFlags flags;
  flags.mesh = std::move(mesh);
  flags.shape = std::move(shape);
  flags.from = std::move(from);
  flags.to = std::move(to);
  flags.dtype = std::move(dtype);
  return flags;
}

json PlanJson(const MoveFlags& flags) {
  return json::parse(RunPlan(flags, /*json=*/true).value().text);
}

TEST(PlanCommandTest, AllGather) {
  const json plan = PlanJson(Flags("tp=2", "8,4", "S(0)", "R"));
  EXPECT_EQ(plan["mesh"], "[\"tp\"=2]");
  EXPECT_EQ(plan["shape"], json({8, 4}));
  EXPECT_EQ(plan["from"], "[tp] []");
  EXPECT_EQ(plan["to"], "[] []");
  EXPECT_EQ(plan["rounds"], json::parse(R"([{"kind": "all-gather", "axes": ["tp"], "bytes": 128,
                                            "max_bytes_per_rank": 64}])"));
  for (const char* key : {"total_bytes", "bound_total_bytes"}) EXPECT_EQ(plan[key], 128) << key;
  for (const char* key : {"max_bytes_per_rank", "bound_max_bytes_per_rank"}) {
    EXPECT_EQ(plan[key], 64) << key;
  }
  EXPECT_EQ(plan["extra_bytes_per_rank"], 128);
  EXPECT_EQ(plan["peak_bytes_per_rank"], 64 + 128);
  EXPECT_GT(plan["predicted_seconds"], 0);
  EXPECT_THAT(plan["digest"].get<std::string>(), testing::MatchesRegex("[0-9a-f]{16}"));
}

TEST(PlanCommandTest, RoundsAddUpToTheTotal) {
  for (const char* objective : {"total", "busiest", "latency"}) {
    MoveFlags flags = Flags("dp=4,tp=8", "64,60", "P(sum),S(0)", "S(0),R");
    flags.objective = objective;
    const json plan = PlanJson(flags);
    int64_t total = 0;
    for (const json& round : plan["rounds"]) total += round["bytes"].get<int64_t>();
    EXPECT_EQ(total, plan["total_bytes"]);
    EXPECT_GE(plan["total_bytes"], plan["bound_total_bytes"]);
    EXPECT_EQ(plan["objective"], objective);
  }
}

TEST(PlanCommandTest, AViewHasNoRounds) {
  const json plan = PlanJson(Flags("tp=2", "8", "R", "S(0)"));
  EXPECT_EQ(plan["rounds"], json::array());
  EXPECT_EQ(plan["total_bytes"], 0);
  EXPECT_THAT(RunPlan(Flags("tp=2", "8", "R", "S(0)"), false)->text, HasSubstr("is a view"));
  EXPECT_THAT(RunPlan(Flags("tp=2", "8", "R", "P(sum)"), false)->text, HasSubstr("fills the rest"));
}

TEST(PlanCommandTest, DigestsTellRequestsApart) {
  const auto digest = [](const char* shape) {
    return PlanJson(Flags("tp=2", shape, "S(0)", "R"))["digest"];
  };
  EXPECT_EQ(digest("8"), digest("8"));
  EXPECT_NE(digest("8"), digest("9"));
}

TEST(PlanCommandTest, AHundredThousandRanksAndATensorThatNobodyCouldHold) {
  const json plan = PlanJson(Flags("dp=100,tp=1000", "1000000,100000", "S(0),S(1)", "S(1),S(0)"));
  EXPECT_EQ(plan["total_bytes"], plan["bound_total_bytes"]);
  EXPECT_GT(plan["total_bytes"], int64_t{1} << 38);
}

TEST(PlanCommandTest, TextHasOneLineForEachFact) {
  EXPECT_THAT(RunPlan(Flags("a=2,b=2", "8", "P(sum),P(sum)", "R,R"), false)->text,
              AllOf(HasSubstr("mesh       [\"a\"=2, \"b\"=2], 4 ranks\n"),
                    HasSubstr("tensor     [8] f32, 32 B\n"),
                    HasSubstr("move       [] P(sum: a,b) -> []\n"), HasSubstr("(bound ")));
}

TEST(PlanCommandTest, RefusalsNameTheRemedy) {
  EXPECT_THAT(RunPlan(Flags("a=2", "4", "P(sum)", "P(max)"), true),
              StatusIs(kInvalid, HasSubstr("redistribute to Replicate or Shard first")));
  EXPECT_THAT(RunPlan(Flags("a=2", "4", "P(avg)", "R", "i32"), true),
              StatusIs(kInvalid, HasSubstr("use P(sum)")));
  MoveFlags flags = Flags("a=2", "4", "S(0)", "R");
  flags.max_extra_bytes = 15;
  EXPECT_THAT(RunPlan(flags, true), StatusIs(kExhausted, HasSubstr("--max-extra-bytes: ")));
  flags.max_extra_bytes = 16;
  EXPECT_THAT(RunPlan(flags, true), IsOk());
}

// Every op in every type that has it, on axes that are reduced, stay partial and become partial.
TEST(RedistributeCommandTest, EveryElementIsRight) {
  struct Case {
    const char *from, *to;
  };
  for (const char* dtype : {"f32", "f64", "bf16", "f16", "i32", "i64", "bool"}) {
    for (const char* op : {"sum", "avg", "max", "min", "product"}) {
      const bool ordered = absl::string_view(op) == "max" || absl::string_view(op) == "min";
      if (dtype[0] == 'b' && dtype[1] == 'o' && !ordered) continue;
      if (dtype[0] == 'i' && absl::string_view(op) == "avg") continue;
      for (const Case& c : {Case{"P,P", "R,R"},
                            {"P,P", "P,S(0)"},
                            {"P,S(1)", "S(0),R"},
                            {"S(0),R", "P,P"},
                            {"S(0,zigzag),R", "R,S(1,cyclic(2))"}}) {
        const auto with_op = [op](std::string text) {
          for (size_t at = text.find('P'); at != text.npos; at = text.find('P', at + 1)) {
            text.insert(at + 1, absl::StrCat("(", op, ")"));
          }
          return text;
        };
        const MoveFlags flags = Flags("a=2,b=3", "7,5", with_op(c.from), with_op(c.to), dtype);
        DT_ASSERT_OK_AND_ASSIGN(const Move move, ParseMove(flags));
        DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, MakePlan(move));
        DT_ASSERT_OK_AND_ASSIGN(const RunReport report,
                                Measure(plan, {.rounds = 1, .copy_bytes = 1 << 14}));
        EXPECT_EQ(report.mismatches, 0) << plan.ToString() << ": " << report.first_mismatch;
        EXPECT_EQ(report.counted_total_bytes, plan.Bytes().total) << plan.ToString();
        EXPECT_EQ(report.counted_max_bytes_per_rank, plan.Bytes().busiest) << plan.ToString();
      }
    }
  }
}

// Of ranks that share a term, the objective says which has it.
TEST(RedistributeCommandTest, NewTermsAreShared) {
  for (const char* objective : {"total", "busiest", "latency"}) {
    for (const auto& [from, to] :
         {std::pair("P(sum),R", "S(0),P(sum)"),
          {"P(sum),R", "R,P(sum)"},
          {"S(0),R", "S(1),P(max)"},
          {"P(sum),P(avg)", "P(avg),R"}}) {  // and as many sums become averages as are averaged
      MoveFlags flags = Flags("a=2,b=2", "7,5", from, to);
      flags.objective = objective;
      DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome, RunRedistribute(flags, {.rounds = 1}, false));
      EXPECT_TRUE(outcome.ok) << outcome.text;
    }
  }
}

TEST(RedistributeCommandTest, SumsBesideAverages) {
  for (const char* from : {"P(sum),P(avg)", "P(avg),P(sum)", "P(avg),P(avg)", "P(sum),S(0)"}) {
    for (const char* to : {"R,R", "S(0),P(avg)", "S(1),P(sum)", "P(avg),P(sum)", "P(avg),R"}) {
      for (const char* dtype : {"f32", "f64", "bf16"}) {
        DT_ASSERT_OK_AND_ASSIGN(const Move move,
                                ParseMove(Flags("a=2,b=3", "7,5", from, to, dtype)));
        DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, MakePlan(move));
        DT_ASSERT_OK_AND_ASSIGN(const RunReport report,
                                Measure(plan, {.rounds = 1, .copy_bytes = 1 << 14}));
        EXPECT_EQ(report.mismatches, 0) << plan.ToString() << ": " << report.first_mismatch;
      }
    }
  }
}

TEST(PlanCommandTest, BetweenTwoMeshes) {
  MoveFlags flags = Flags("a=2", "8", "S(0)", "R");
  flags.to_mesh = "b=2@2..3";
  const json plan = PlanJson(flags);
  EXPECT_EQ(plan["from_mesh"], "[\"a\"=2]");
  EXPECT_EQ(plan["to_mesh"], "[\"b\"=2]@2..3");
  EXPECT_FALSE(plan.contains("mesh"));
  EXPECT_EQ(plan["rounds"][0]["between_meshes"], true);
  EXPECT_EQ(plan["rounds"][1]["axes"], json({"b"}));
  EXPECT_EQ(plan["total_bytes"], 64);  // each byte crosses once, and is then gathered
  EXPECT_THAT(RunPlan(flags, false)->text,
              AllOf(HasSubstr("[\"a\"=2], 2 ranks -> [\"b\"=2]@2..3, 2 ranks\n"),
                    HasSubstr("exchange(across): 32 B")));
}

TEST(PlanCommandTest, SaysEachMeshsOwnRanks) {
  MoveFlags flags = Flags("a=2@4..5", "8", "S(0)", "R");
  EXPECT_THAT(RunPlan(flags, false)->text, HasSubstr("mesh       [\"a\"=2]@4..5, 2 ranks\n"));
  flags.to_mesh = "b=3@5..7";  // one of them is of both
  EXPECT_THAT(RunPlan(flags, false)->text,
              HasSubstr("mesh       [\"a\"=2]@4..5, 2 ranks -> [\"b\"=3]@5..7, 3 ranks\n"));
  EXPECT_THAT(RunPlan(Flags("a=1", "8", "R", "R"), false)->text, HasSubstr("[\"a\"=1], 1 rank\n"));
}

// Other ranks, some of the same, the same in another shape; and one mesh that is not on rank 0.
TEST(RedistributeCommandTest, EveryElementIsRightBetweenMeshes) {
  struct Case {
    const char *from_mesh, *to_mesh, *from, *to;
  };
  for (const Case& c : {Case{"a=2", "b=2,c=2@2..5", "P(sum)", "S(0),R"},
                        {"a=3", "b=2@1..2", "S(0)", "P(max)"},
                        {"a=4", "b=2,c=2", "P(avg)", "S(1),S(0)"},
                        {"a=2@3,1", "a=2@3,1", "S(0)", "R"}}) {
    MoveFlags flags = Flags("", "7,5", c.from, c.to);
    flags.from_mesh = c.from_mesh;
    flags.to_mesh = c.to_mesh;
    const RedistributionPlan plan = *MakePlan(*ParseMove(flags));
    DT_ASSERT_OK_AND_ASSIGN(const RunReport report,
                            Measure(plan, {.rounds = 1, .copy_bytes = 1 << 14}));
    EXPECT_EQ(Verdict(plan, report), "") << plan.ToString();
    EXPECT_GT(report.seconds, 0);
  }
}

TEST(RedistributeCommandTest, ReportsAsJson) {
  DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome,
                          RunRedistribute(Flags("a=2", "64,64", "S(0)", "R"), {.rounds = 2}, true));
  EXPECT_TRUE(outcome.ok);
  const json report = json::parse(outcome.text);
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["counted_total_bytes"], 64 * 64 * 4);
  EXPECT_EQ(report["counted_max_bytes_per_rank"], 64 * 64 * 2);
  EXPECT_EQ(report["touched_bytes"], 2 * 2 * 64 * 64 * 4);  // both ranks read and write all of it
  EXPECT_GT(report["seconds"], 0);
  EXPECT_GT(report["stream_bytes_per_second"], 0);
  EXPECT_GT(report["stream_limit_ratio"], 0);
}

TEST(RedistributeCommandTest, NamesWhatWentWrong) {
  const RedistributionPlan plan = *MakePlan(*ParseMove(Flags("a=2", "8", "S(0)", "R")));
  RunReport report;
  report.counted_total_bytes = 32;
  report.counted_max_bytes_per_rank = 16;
  EXPECT_EQ(Verdict(plan, report), "");
  report.counted_total_bytes = 33;
  EXPECT_THAT(Verdict(plan, report), AllOf(HasSubstr("says 32 B"), HasSubstr("counted 33")));
  report.mismatches = 2;
  report.first_mismatch = "rank 1: element 3 is 0, not 7";
  EXPECT_EQ(Verdict(plan, report), "2 elements differ; rank 1: element 3 is 0, not 7");
}

TEST(RedistributeCommandTest, SaysAfterEachRoundHowFarItIs) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          MakePlan(*ParseMove(Flags("a=2", "8", "S(0)", "R"))));
  std::vector<int64_t> done;
  MeasureOptions options = {.rounds = 3, .copy_bytes = 1 << 14};
  options.progress = [&](int64_t rounds) { done.push_back(rounds); };
  EXPECT_THAT(Measure(plan, options), IsOk());
  EXPECT_THAT(done, testing::ElementsAre(1, 2, 3));
}

TEST(RedistributeCommandTest, AViewTouchesNothing) {
  DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome,
                          RunRedistribute(Flags("a=2", "8", "R", "S(0)"), {.rounds = 1}, true));
  EXPECT_EQ(json::parse(outcome.text)["stream_limit_ratio"], 0);
}

TEST(RedistributeCommandTest, RefusesWhatThisMachineCannotRun) {
  const auto check = [](const char* mesh, const char* shape, int64_t memory) {
    return CheckRunnable(*MakePlan(*ParseMove(Flags(mesh, shape, "S(0)", "R"))), memory);
  };
  constexpr int64_t kPlenty = int64_t{64} << 30;
  DT_EXPECT_OK(check("a=64", "64", kPlenty));
  EXPECT_THAT(check("a=65", "64", kPlenty),
              StatusIs(kInvalid, AllOf(HasSubstr("65 ranks"), HasSubstr("64 or fewer"))));
  EXPECT_THAT(check("a=2@70..71", "64", kPlenty),
              StatusIs(kInvalid, HasSubstr("a world of 72 ranks, 0 to 71")));
  EXPECT_THAT(check("a=2", "1000000000000", kPlenty),
              StatusIs(kExhausted, HasSubstr("take a smaller one")));
  EXPECT_THAT(check("a=2", "64", 1 << 20), StatusIs(kExhausted, HasSubstr("1 MiB are free")));
  EXPECT_GT(MemoryAvailable(), 1 << 20);
  EXPECT_THAT(RunRedistribute(Flags("a=2", "8", "R", "R"), {.rounds = 0}, true),
              StatusIs(kInvalid, HasSubstr("--rounds")));
}

RegionsFlags Regions(std::string mesh, std::string shape, std::string layout) {
  RegionsFlags flags;
  flags.mesh = std::move(mesh);
  flags.shape = std::move(shape);
  flags.layout = std::move(layout);
  return flags;
}

TEST(RegionsCommandTest, ListsWhatEachRankHolds) {
  const RegionsFlags flags = Regions("a=2,b=2", "4,6", "S(0,block(1)),P(sum)");
  EXPECT_THAT(RunRegions(flags, false, false)->text,
              HasSubstr("\nrank 2 (a=1,b=0): {1 +2 x2} x {0..5}, [2, 6]\n"));
  const json list = json::parse(RunRegions(flags, true, false)->text);
  EXPECT_EQ(list["partial"], json::parse(R"({"op": "sum", "axes": ["b"]})"));
  ASSERT_EQ(list["ranks"].size(), 4);
  EXPECT_EQ(list["ranks"][2], json::parse(R"({
      "rank": 2, "coordinate": [1, 0], "shape": [2, 6], "elements": 12,
      "region": "{1 +2 x2} x {0..5}",
      "runs": [[{"begin": 1, "length": 1, "stride": 2, "count": 2}],
               [{"begin": 0, "length": 6, "stride": 0, "count": 1}]]})"));
}

TEST(RegionsCommandTest, RanksAreTheWorlds) {
  EXPECT_THAT(RunRegions(Regions("a=2@5,3", "4", "S(0)"), false, false)->text,
              AllOf(HasSubstr("\nrank 5 (a=0): {0..1}, [2]\n"),
                    HasSubstr("\nrank 3 (a=1): {2..3}, [2]\n")));
}

TEST(RegionsCommandTest, EmptyShardsAndScalars) {
  const json uneven = json::parse(RunRegions(Regions("a=4", "2", "S(0)"), true, false)->text);
  EXPECT_EQ(uneven["ranks"][3]["elements"], 0);
  EXPECT_EQ(uneven["ranks"][3]["runs"], json::parse("[[]]"));
  const json scalar = json::parse(RunRegions(Regions("a=2", "", "R"), true, false)->text);
  EXPECT_EQ(scalar["partial"], nullptr);
  EXPECT_EQ(scalar["ranks"][1]["elements"], 1);
}

TEST(RegionsCommandTest, DrawsAndWrites) {
  RegionsFlags flags = Regions("a=2", "4", "S(0)");
  flags.svg = testing::TempDir() + "/picture.svg";
  flags.picture = true;
  EXPECT_THAT(RunRegions(flags, false, false)->text, HasSubstr("\n0 0 1 1\n"));
  std::ifstream file(flags.svg);
  const std::string svg{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(RunRegions(flags, true, false), StatusIs(kInvalid, HasSubstr("give one of them")));
  // What was there is replaced as a whole, or stays.
  const std::string folder = std::filesystem::path(flags.svg).parent_path();
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  const auto before = files();
  EXPECT_THAT(RunRegions(flags, false, false), IsOk());
  EXPECT_EQ(files(), before);
  flags.svg = "/dev/full";
  EXPECT_THAT(RunRegions(flags, false, false),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("--svg: cannot write '/dev/full'")));
  flags.svg = "/nowhere/picture.svg";
  EXPECT_THAT(RunRegions(flags, false, false),
              StatusIs(kInvalid, HasSubstr("--svg: cannot write")));
}

TEST(PlanCommandTest, WhatIsRefusedLeavesNoFile) {
  const std::string svg = testing::TempDir() + "/refused.svg";
  // As text there are too many numbers; the file would show fewer.
  MoveFlags plan = Flags("dp=2", "100000,100", "S(0)", "R");
  RegionsFlags regions = Regions("a=2", "100000,100", "S(0)");
  plan.svg = regions.svg = svg;
  plan.picture = regions.picture = true;
  for (const bool json : {false, true}) {
    EXPECT_THAT(RunPlan(plan, json, false), StatusIs(kInvalid, HasSubstr("--picture")));
    EXPECT_FALSE(std::filesystem::exists(svg));
    EXPECT_THAT(RunRegions(regions, json, false), StatusIs(kInvalid, HasSubstr("--picture")));
    EXPECT_FALSE(std::filesystem::exists(svg));
  }
}

TEST(LinksCommandTest, PrintsATableThatReadsBack) {
  DT_ASSERT_OK_AND_ASSIGN(const Outcome outcome, RunLinks(2, false));
  DT_ASSERT_OK_AND_ASSIGN(const CostModel table, CostModel::Parse(outcome.text));
  EXPECT_GT(table.Of("any").gb_per_second, 0);
  EXPECT_GT(table.copy_gb_per_second(), 0);
  EXPECT_GT(table.reduce_gb_per_second(), 0);
  EXPECT_NE(table.multiply_gf_per_second(), CostModel().multiply_gf_per_second());
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    EXPECT_GT(table.rates().gemm_gf_per_second[static_cast<size_t>(dtype)], 0);
  }
  EXPECT_GT(table.rates().memory_gb_per_second, 0);
  EXPECT_GT(table.rates().call_us, 0);
  EXPECT_TRUE(table.uniform());
}

TEST(LinksCommandTest, ReportsAsJson) {
  const json report = json::parse(RunLinks(3, true)->text);
  EXPECT_EQ(report["ranks"], 3);
  for (const char* key :
       {"latency_us", "gb_per_second", "copy_gb_per_second", "reduce_gb_per_second",
        "multiply_gf_per_second", "gemm_f32_gf_per_second", "gemm_f64_gf_per_second",
        "gemm_bf16_gf_per_second", "gemm_f16_gf_per_second", "memory_gb_per_second", "call_us"}) {
    EXPECT_GT(report[key], 0) << key;
  }
  for (int ranks : {1, 65}) {
    EXPECT_THAT(RunLinks(ranks, true), StatusIs(kInvalid, HasSubstr("take 2 to 64")));
  }
}

RingFlags Ring(std::string mesh, std::string pattern, std::string mask) {
  RingFlags flags;
  flags.mesh = std::move(mesh);
  flags.pattern = std::move(pattern);
  flags.mask = std::move(mask);
  flags.dtype = "bf16";
  flags.heads = 8, flags.kv_heads = 2, flags.seq = 4096;
  return flags;
}

json RingJson(const RingFlags& flags) { return json::parse(RunRing(flags, true).value().text); }

TEST(RingCommandTest, ZigzagOfEight) {
  const json ring = RingJson(Ring("cp=8", "zigzag", "causal"));
  const int64_t n = 512, block = 2 * 2 * n * 2 * 64, gradient = 2 * block;
  EXPECT_EQ(ring["balance"], 1);
  EXPECT_EQ(ring["forward_bytes_per_rank"], 7 * block);
  EXPECT_EQ(ring["backward_bytes_per_rank"], 7 * block + 8 * gradient);
  ASSERT_EQ(ring["steps"].size(), 8);
  int64_t work = 0;
  for (const json& step : ring["steps"]) {
    ASSERT_EQ(step["work"].size(), 8);
    ASSERT_EQ(step["bytes_sent"].size(), 8);
    for (const json& of_rank : step["work"]) work += of_rank.get<int64_t>();
  }
  EXPECT_EQ(work, int64_t{4096} * 4097 / 2);
  EXPECT_EQ(ring["steps"][0]["bytes_sent"][3], block);
  EXPECT_EQ(ring["steps"][7]["bytes_sent"][3], 0);
  EXPECT_EQ(ring["links"].size(), 8);
}

TEST(RingCommandTest, PricesTheWaysOfTheOperator) {
  RingFlags flags = Ring("cp=8", "zigzag", "causal");
  EXPECT_EQ(RingJson(flags)["plans"].size(), 2);  // 8 ranks do not share 2 kv heads
  flags.kv_heads = 8;
  flags.links = testing::TempDir() + "/slow_links";
  std::ofstream(flags.links) << "link * 1 0.01\n";
  // Slow links hide behind nothing, and all-to-all moves fewest bytes.
  const json plans = RingJson(flags)["plans"];
  EXPECT_EQ(plans.size(), 3);
  for (const json& plan : plans) EXPECT_EQ(plan["chosen"], plan["plan"] == "all-to-all") << plan;
  EXPECT_THAT(RunRing(flags, false)->text, HasSubstr(": chosen\n"));
  flags.links = "/nowhere/links";
  EXPECT_THAT(RunRing(flags, true), StatusIs(absl::StatusCode::kNotFound, HasSubstr("--links")));
}

TEST(RingCommandTest, EachPatternDealsTheSequenceItsWay) {
  EXPECT_EQ(RingJson(Ring("cp=4", "ring", "full"))["layout"], "[cp]");
  EXPECT_EQ(RingJson(Ring("cp=4", "striped", "full"))["layout"], "[_ x 4(cp)]");
  const json twice = RingJson(Ring("node=2,cp=2", "double_ring", "causal"));
  EXPECT_EQ(twice["layout"], "[node:zigzag,cp:zigzag]");
  EXPECT_EQ(twice["balance"], 1);
  EXPECT_EQ(twice["crossing_blocks"], 4);
  EXPECT_EQ(twice["crossing_gradients"], 8);
}

TEST(RingCommandTest, SparseMasksSkipSteps) {
  EXPECT_EQ(RingJson(Ring("cp=8", "ring", "window:513"))["steps"].size(), 2);
  EXPECT_EQ(RingJson(Ring("cp=8", "ring", "documents:0,2048"))["steps"].size(), 4);
}

TEST(RingCommandTest, RefusalsNameTheFlag) {
  RingFlags flags = Ring("cp=4", "ring", "full");
  flags.kv_heads = 3;
  EXPECT_THAT(RunRing(flags, true), StatusIs(kInvalid, HasSubstr("--kv-heads: 8 heads")));
  flags.kv_heads = 0;
  EXPECT_THAT(RunRing(flags, true), StatusIs(kInvalid, HasSubstr("--kv-heads: 0 is too small")));
  flags.kv_heads.reset();
  EXPECT_EQ(RingJson(flags)["kv_heads"], 8);
  flags.seq = -1;
  EXPECT_THAT(RunRing(flags, true), StatusIs(kInvalid, HasSubstr("--seq: ")));
  EXPECT_THAT(RunRing(Ring("cp=4", "ring", "documents:0,5000"), true),
              StatusIs(kInvalid, HasSubstr("--mask: ")));
  EXPECT_THAT(RunRing(Ring("cp=2000", "ring", "full"), true),
              StatusIs(kInvalid, HasSubstr("1024 or fewer")));
}

}  // namespace
}  // namespace dtensor::cli
