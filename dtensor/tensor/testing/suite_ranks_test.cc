// What the fixture of conformance suites returns. Runs on threads here, and as processes in
// //tests/conformance.
#include "dtensor/tensor/testing/suite_ranks.h"

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/testing/value_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {

struct Seen {
  int rank = 0;
  std::vector<double> values;
  std::map<std::string, std::vector<std::string>> texts;
  TrafficTable traffic;
  friend bool operator==(const Seen&, const Seen&) = default;
};
auto ValueFields(Seen& s) { return std::tie(s.rank, s.values, s.texts, s.traffic); }

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// The sizes of worlds that this run has, of those that are tried.
std::vector<int> Sizes() {
  std::vector<int> sizes;
  for (const int n : {2, 3, 4, 8}) {
    if (SuiteHasRanks(n)) sizes.push_back(n);
  }
  return sizes;
}

TEST(ValueBytes, ReadWhatTheyWrote) {
  Seen seen{3,
            {0.1, -0.0},
            {{"a", {"", std::string("\0b", 2)}}, {"", {}}},
            {{{"tp", CollectiveKind::kAllGather}, {1, 2, 3}}}};
  ValueWriter writer;
  writer(seen);
  const std::string bytes = std::move(writer).bytes();
  Seen again;
  ValueReader reader(bytes);
  reader(again);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(again, seen);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ValueReader cut(absl::string_view(bytes).substr(0, size));
    Seen part;
    cut(part);
    EXPECT_FALSE(cut.ok()) << size;
  }
}

absl::StatusOr<Seen> Program(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse(absl::StrCat("tp=", context.world_size())));
  DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                      Full(context, mesh, {Shard(0)}, {5}, DType::kF64, 7));
  Seen seen{.rank = context.rank()};
  DT_ASSIGN_OR_RETURN(seen.values, ToGlobal<double>(x));
  seen.values.push_back(context.rank());
  seen.texts["rank"] = {absl::StrCat(context.rank()), std::string(1000 * context.rank(), 'x')};
  seen.traffic = context.communicator().traffic();
  return seen;
}

TEST(SuiteRanks, GiveBackWhatEachRankReturned) {
  for (const int n : Sizes()) {
    for (int times = 0; times < 3; ++times) {
      const auto ranks = OnSuiteRanks(n, Program);
      DT_ASSERT_OK(ranks.status());
      ASSERT_EQ(ranks->size(), n);
      for (int rank = 0; rank < n; ++rank) {
        const Seen& seen = (*ranks)[rank];
        EXPECT_EQ(seen.rank, rank);
        EXPECT_THAT(seen.values, ElementsAre(7, 7, 7, 7, 7, rank));
        EXPECT_EQ(seen.texts.at("rank")[1].size(), 1000 * rank);
        EXPECT_EQ(seen.traffic.size(), 1);  // of this function alone
        EXPECT_EQ(seen.traffic.begin()->second.calls, 1);
      }
    }
  }
}

// A refusal leaves the world as it is; every process hears of it.
TEST(SuiteRanks, GiveBackTheErrorOfAllRanks) {
  for (const int n : Sizes()) {
    EXPECT_THAT(OnSuiteRanks(n,
                             [](Context&) -> absl::StatusOr<int> {
                               return absl::InvalidArgumentError("no such axis");
                             }),
                StatusIs(Code::kInvalidArgument, HasSubstr("rank 0: no such axis")));
    DT_EXPECT_OK(OnSuiteRanks(n, Program).status());
  }
}

TEST(SuiteRanks, HaveContextsOfTheirOwnInEachFunction) {
  for (const int n : Sizes()) {
    for (int times = 0; times < 2; ++times) {
      const auto drawn = OnSuiteRanks(
          n, [](Context& context) -> absl::StatusOr<uint64_t> { return context.NextSeed(); });
      DT_ASSERT_OK(drawn.status());
      static const uint64_t first = drawn->front();
      for (const uint64_t seed : *drawn) EXPECT_EQ(seed, first);
    }
  }
}

TEST(SuiteRanks, OneRankIsThereAlways) {
  EXPECT_TRUE(SuiteHasRanks(1));
  DT_EXPECT_OK(OnSuiteRanks(1, Program).status());
  EXPECT_FALSE(SuiteHasRanks(7) && !SuiteHasRanks(6));
  if (!SuiteHasRanks(7)) {
    EXPECT_THAT(OnSuiteRanks(7, Program), StatusIs(Code::kUnimplemented, HasSubstr("7 ranks")));
  }
}

}  // namespace
}  // namespace dtensor
