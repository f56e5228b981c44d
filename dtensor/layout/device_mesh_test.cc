#include "dtensor/layout/device_mesh.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/small_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

DeviceMesh RandomMesh(TestRandom& random) {
  std::vector<DeviceMesh::Axis> axes(random.Below(6));
  for (size_t a = 0; a < axes.size(); ++a) {
    axes[a] = {absl::StrCat("ax", random.Coin() ? "_" : "", a), 1 + random.Below(5)};
  }
  DeviceMesh mesh = *DeviceMesh::Create(std::move(axes));
  for (int g = 0; g < random.Below(3) && mesh.num_axes() > 0; ++g) {
    std::vector<std::string> names;
    for (const DeviceMesh::Axis& axis : mesh.axes()) {
      if (random.Coin()) names.insert(names.begin() + random.Below(names.size() + 1), axis.name);
    }
    if (!names.empty()) mesh = *mesh.Flatten(names, absl::StrCat("group", g));
  }
  return mesh;
}

TEST(DeviceMeshTest, DefaultIsOneRank) {
  const DeviceMesh mesh;
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.num_axes(), 0);
  EXPECT_EQ(mesh.ToString(), "[]");
  EXPECT_THAT(DeviceMesh::Create({}), IsOkAndHolds(mesh));
  EXPECT_THAT(mesh.Group(0, {}), ElementsAre(0));
}

TEST(DeviceMeshTest, RanksAreRowMajor) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=4");
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_THAT(mesh.Coordinate(5), ElementsAre(1, 1));
  EXPECT_EQ(mesh.RankAt({1, 1}), 5);
  EXPECT_EQ(mesh.axis_name(1), "tp");
  EXPECT_EQ(mesh.axis_size(1), 4);
}

TEST(DeviceMeshTest, CoordinateAndRankAreInverse) {
  TestRandom random;
  for (int round = 0; round < 30; ++round) {
    const DeviceMesh mesh = RandomMesh(random);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      EXPECT_EQ(mesh.RankAt(mesh.Coordinate(rank)), rank) << mesh.ToString();
    }
  }
}

TEST(DeviceMeshTest, GroupHoldsTheRanksAlongAxes) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=4");
  EXPECT_THAT(mesh.Group(5, {0}), ElementsAre(1, 5));
  EXPECT_THAT(mesh.Group(5, {1}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.Group(5, {0, 1}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(mesh.Group(5, {1, 0}), ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
  EXPECT_THAT(mesh.Group(5, {}), ElementsAre(5));
}

TEST(DeviceMeshTest, GroupsOfAnAxisPartitionTheRanks) {
  const DeviceMesh mesh = MeshOf("a=2,b=3,c=2");
  for (int axis = 0; axis < 3; ++axis) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int> group = mesh.Group(rank, {axis});
      ASSERT_EQ(static_cast<int>(group.size()), mesh.axis_size(axis));
      EXPECT_EQ(group[mesh.Coordinate(rank)[axis]], rank);
      for (int peer : group) EXPECT_EQ(mesh.Group(peer, {axis}), group);
    }
  }
}

TEST(DeviceMeshTest, FindsAxesByName) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=4");
  EXPECT_THAT(mesh.AxisIndex("tp"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.Find("dp"), IsOkAndHolds(ElementsAre(0)));
  EXPECT_THAT(mesh.Find("pp"),
              StatusIs(kNotFound, AllOf(HasSubstr("\"pp\""), HasSubstr("[\"dp\"=2, \"tp\"=4]"))));
  EXPECT_THAT(mesh.AxisIndex("pp"), StatusIs(kNotFound));
}

TEST(DeviceMeshTest, CreateRefusesBadAxes) {
  EXPECT_THAT(DeviceMesh::Create({{"dp", 2}, {"tp", 0}}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"tp\""), HasSubstr("size 0"))));
  EXPECT_THAT(DeviceMesh::Create({{"dp", -1}}), StatusIs(kInvalidArgument, HasSubstr("size -1")));
  EXPECT_THAT(DeviceMesh::Create({{"dp", 2}, {"tp", 2}, {"dp", 2}}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"dp\""), HasSubstr("twice"))));
  for (const char* name : {"", "_", "2d", "a-b", "a b", "a*b", "\""}) {
    EXPECT_THAT(DeviceMesh::Create({{name, 2}}), StatusIs(kInvalidArgument, HasSubstr("digits")))
        << name;
  }
}

TEST(DeviceMeshTest, CreateRefusesTooMany) {
  std::vector<DeviceMesh::Axis> axes;
  for (int a = 0; a < DeviceMesh::kMaxAxes; ++a) axes.push_back({absl::StrCat("a", a), 1});
  EXPECT_THAT(DeviceMesh::Create(axes), IsOk());
  axes.push_back({"more", 1});
  EXPECT_THAT(DeviceMesh::Create(axes), StatusIs(kInvalidArgument, HasSubstr("at most 16")));
  EXPECT_THAT(DeviceMesh::Create({{"a", 1 << 20}, {"b", 1 << 20}}),
              StatusIs(kInvalidArgument, HasSubstr("\"b\"")));
}

TEST(DeviceMeshTest, SliceKeepsTheNamedAxesInTheOrderGiven) {
  const DeviceMesh mesh = MeshOf("pp=2,dp=3,tp=4");
  EXPECT_THAT(mesh.Slice({"tp", "pp"}), IsOkAndHolds(MeshOf("tp=4,pp=2")));
  EXPECT_THAT(mesh.Slice({}), IsOkAndHolds(DeviceMesh()));
  EXPECT_THAT(mesh.Slice({"tp", "tp"}), StatusIs(kInvalidArgument, HasSubstr("\"tp\"")));
  EXPECT_THAT(mesh.Slice({"ep"}), StatusIs(kNotFound, HasSubstr("\"ep\"")));
}

// What PyTorch's mesh["tp"] is, on each rank. The slice alone says no ranks, or those of the first.
TEST(DeviceMeshTest, SliceOnItsGroupIsARanksOwn) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=3");
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_THAT(mesh.Slice({"tp"})->OnRanks(mesh.Group(rank, *mesh.Find("tp"))),
                IsOkAndHolds(MeshOf(rank < 3 ? "tp=3@0..2" : "tp=3@3..5")));
    EXPECT_THAT(mesh.Slice({"dp"})->OnRanks(mesh.Group(rank, *mesh.Find("dp"))),
                IsOkAndHolds(MeshOf(absl::StrCat("dp=2@", rank % 3, ",", rank % 3 + 3))));
  }
  EXPECT_THAT(mesh.Slice({"dp"}), IsOkAndHolds(MeshOf("dp=2")));
  EXPECT_THAT(MeshOf("dp=2,tp=3@6..11").Slice({"dp"}), IsOkAndHolds(MeshOf("dp=2@6,9")));
}

TEST(DeviceMeshTest, SliceKeepsGroupsThatItHoldsInFull) {
  const DeviceMesh mesh = MeshOf("dp=2,kv=2,rep=3;tp=kv*rep,data=dp*kv");
  EXPECT_THAT(mesh.Slice({"tp"}), IsOkAndHolds(MeshOf("kv=2,rep=3;tp=kv*rep")));
  EXPECT_THAT(mesh.Slice({"rep", "kv"}), IsOkAndHolds(MeshOf("rep=3,kv=2;tp=kv*rep")));
  EXPECT_THAT(mesh.Slice({"tp", "kv"}), StatusIs(kInvalidArgument, HasSubstr("\"kv\"")));
}

TEST(DeviceMeshTest, FlattenNamesAxesTogether) {
  const DeviceMesh mesh = MeshOf("dp=2,cp=3,tp=4");
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh flat, mesh.Flatten({"dp", "cp"}, "data"));
  EXPECT_EQ(flat.ToString(), "[\"dp\"=2, \"cp\"=3, \"tp\"=4; \"data\"=dp*cp]");
  EXPECT_THAT(flat.Find("data"), IsOkAndHolds(ElementsAre(0, 1)));
  EXPECT_THAT(flat.AxisIndex("data"), StatusIs(kInvalidArgument, HasSubstr("\"data\"")));
  EXPECT_EQ(flat.size(), mesh.size());
  EXPECT_NE(flat, mesh);
  // A group of groups is the group of their axes.
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh all, flat.Flatten({"tp", "data"}, "all"));
  EXPECT_THAT(all.Find("all"), IsOkAndHolds(ElementsAre(2, 0, 1)));
  EXPECT_THAT(flat.Find("tp*data"), IsOkAndHolds(ElementsAre(2, 0, 1)));
  EXPECT_THAT(flat.Find("tp*data*dp"), Refuses(HasSubstr("\"dp\" of the mesh")));
  EXPECT_THAT(flat.Find("tp*"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no axis \"\"")));
  EXPECT_THAT(flat.AxisIndex("tp*dp"), Refuses(HasSubstr("several")));
}

TEST(DeviceMeshTest, FlattenRefusesBadGroups) {
  const DeviceMesh mesh = MeshOf("dp=2,cp=3,tp=4;data=dp*cp");
  EXPECT_THAT(mesh.Flatten({"dp", "cp"}, "tp"), StatusIs(kInvalidArgument, HasSubstr("\"tp\"")));
  EXPECT_THAT(mesh.Flatten({"dp"}, "data"), StatusIs(kInvalidArgument, HasSubstr("\"data\"")));
  EXPECT_THAT(mesh.Flatten({"dp", "data"}, "x"), StatusIs(kInvalidArgument, HasSubstr("\"dp\"")));
  EXPECT_THAT(mesh.Flatten({}, "x"), StatusIs(kInvalidArgument, HasSubstr("\"x\"")));
  EXPECT_THAT(mesh.Flatten({"ep"}, "x"), StatusIs(kNotFound, HasSubstr("\"ep\"")));
}

TEST(DeviceMeshTest, SplitAxisKeepsRanksAndName) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=6,ep=2;all=ep*tp*dp");
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh split, mesh.SplitAxis("tp", {{"kv", 2}, {"rep", 3}}));
  EXPECT_EQ(split.ToString(),
            "[\"dp\"=2, \"kv\"=2, \"rep\"=3, \"ep\"=2; \"all\"=ep*kv*rep*dp, \"tp\"=kv*rep]");
  DT_ASSERT_OK_AND_ASSIGN(const AxisList tp, split.Find("tp"));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ(split.Group(rank, tp), mesh.Group(rank, {1}));
  }
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh twice, split.SplitAxis("rep", {{"x", 3}, {"y", 1}}));
  EXPECT_THAT(twice.Find("tp"), IsOkAndHolds(ElementsAre(1, 2, 3)));
  EXPECT_THAT(twice.Find("rep"), IsOkAndHolds(ElementsAre(2, 3)));
}

TEST(DeviceMeshTest, SplitAxisRefusesBadParts) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=6;all=dp*tp");
  EXPECT_THAT(mesh.SplitAxis("tp", {{"kv", 2}, {"rep", 2}}),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("\"tp\" of size 6"), HasSubstr("to 4"))));
  EXPECT_THAT(mesh.SplitAxis("tp", {{"kv", -2}, {"rep", -3}}),
              StatusIs(kInvalidArgument, HasSubstr("\"kv\"")));
  EXPECT_THAT(mesh.SplitAxis("tp", {{"tp", 2}, {"rep", 3}}),
              StatusIs(kInvalidArgument, HasSubstr("\"tp\"")));
  EXPECT_THAT(mesh.SplitAxis("tp", {{"dp", 2}, {"rep", 3}}),
              StatusIs(kInvalidArgument, HasSubstr("\"dp\"")));
  EXPECT_THAT(MeshOf("dp=1").SplitAxis("dp", {}), StatusIs(kInvalidArgument));
  EXPECT_THAT(mesh.SplitAxis("all", {{"x", 12}}),
              StatusIs(kInvalidArgument, HasSubstr("several axes")));
  EXPECT_THAT(mesh.SplitAxis("ep", {{"x", 1}}), StatusIs(kNotFound, HasSubstr("\"ep\"")));
}

TEST(DeviceMeshTest, ComparesAndHashesByValue) {
  const DeviceMesh mesh = MeshOf("dp=2,tp=4");
  const DeviceMesh same = MeshOf("[\"dp\"=2, \"tp\"=4]");
  EXPECT_EQ(mesh, same);
  EXPECT_EQ(absl::HashOf(mesh), absl::HashOf(same));
  for (const char* other : {"dp=2", "tp=4,dp=2", "dp=4,tp=2", "dp=2,cp=4", "dp=2,tp=4;x=dp*tp"}) {
    EXPECT_NE(mesh, MeshOf(other));
    EXPECT_NE(absl::HashOf(mesh), absl::HashOf(MeshOf(other))) << other;
  }
  // The order in which groups were named does not matter, the order within one does.
  EXPECT_EQ(MeshOf("a=2,b=2;x=a*b,y=b*a"), MeshOf("a=2,b=2;y=b*a,x=a*b"));
  EXPECT_NE(MeshOf("a=2,b=2;x=a*b"), MeshOf("a=2,b=2;x=b*a"));
}

TEST(DeviceMeshTest, PrintsAndParses) {
  EXPECT_EQ(MeshOf("dp=2,tp=4").ToString(), "[\"dp\"=2, \"tp\"=4]");
  EXPECT_EQ(MeshOf(" dp = 2 , \"tp\" = 4 "), MeshOf("dp=2,tp=4"));
  EXPECT_EQ(MeshOf("[\"kv\"=2, \"rep\"=2; \"tp\"=kv*rep]").ToString(),
            "[\"kv\"=2, \"rep\"=2; \"tp\"=kv*rep]");
  EXPECT_EQ(MeshOf("[]"), DeviceMesh());
  EXPECT_EQ(MeshOf(""), DeviceMesh());
}

TEST(DeviceMeshTest, ParsesWhatRandomOnesPrint) {
  TestRandom random;
  for (int round = 0; round < 1000; ++round) {
    const DeviceMesh mesh = RandomMesh(random);
    EXPECT_THAT(DeviceMesh::Parse(mesh.ToString()), IsOkAndHolds(mesh)) << mesh.ToString();
  }
}

TEST(DeviceMeshTest, ParseRefusesOtherTexts) {
  for (const char* text :
       {"[", "dp", "dp=", "dp=x", "dp=2,", "[dp=2", "dp=2]", "\"dp=2", "=2", "dp=2 tp=4", "dp=2;",
        "dp=2;x", "dp=2;x=", "dp=2;x=tp", "dp=2;x=dp*dp", "dp=99999999999", "[dp=2] x", "2d=2"}) {
    EXPECT_THAT(DeviceMesh::Parse(text),
                StatusIs(kInvalidArgument, AllOf(HasSubstr(text), HasSubstr("dp=2,tp=4"))))
        << text;
  }
  EXPECT_THAT(DeviceMesh::Parse("dp=0"), StatusIs(kInvalidArgument, HasSubstr("size 0")));
  EXPECT_THAT(DeviceMesh::Parse("dp=2,dp=2"), StatusIs(kInvalidArgument, HasSubstr("twice")));
}

TEST(DeviceMeshTest, LiesOnOtherRanks) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2").value();
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh stage, mesh.OnRanks({4, 5, 6, 7}));
  EXPECT_NE(stage, mesh);
  EXPECT_EQ(stage.ToString(), "[\"a\"=2, \"b\"=2]@4..7");
  EXPECT_EQ(stage.Coordinate(6), (absl::InlinedVector<int, 4>{1, 0}));
  EXPECT_EQ(stage.RankAt({0, 1}), 5);
  EXPECT_EQ(stage.Group(5, {0}), (std::vector<int>{5, 7}));
  EXPECT_FALSE(stage.Contains(3));
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mixed, mesh.OnRanks({6, 0, 2, 4}));
  EXPECT_EQ(mixed.ToString(), "[\"a\"=2, \"b\"=2]@6,0,2,4");
  EXPECT_EQ(mixed.RankAt({1, 0}), 2);
  EXPECT_EQ(mixed.Slice({"b"})->ToString(), "[\"b\"=2]@6,0");
  for (const DeviceMesh& m : {stage, mixed}) EXPECT_EQ(DeviceMesh::Parse(m.ToString()).value(), m);
  EXPECT_EQ(DeviceMesh::Parse("a=2,b=2@4..7").value(), stage);
}

// The first stage of a pipeline: ranks 0 and 1 of a larger world.
TEST(DeviceMeshTest, RemembersThatItsRanksWereSaid) {
  const DeviceMesh mesh = MeshOf("a=2,b=2");
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh said, mesh.OnRanks({0, 1, 2, 3}));
  EXPECT_NE(said, mesh);
  EXPECT_NE(absl::HashOf(said), absl::HashOf(mesh));
  EXPECT_THAT(said.listed_ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(mesh.listed_ranks().empty());
  EXPECT_EQ(said.ToString(), "[\"a\"=2, \"b\"=2]@0..3");
  EXPECT_THAT(DeviceMesh::Parse(said.ToString()), IsOkAndHolds(said));
  EXPECT_EQ(said.Slice({"b"})->ToString(), "[\"b\"=2]@0..1");
  EXPECT_EQ(said.Flatten({"a", "b"}, "all")->ToString(), "[\"a\"=2, \"b\"=2; \"all\"=a*b]@0..3");
  EXPECT_EQ(said.SplitAxis("b", {{"c", 1}, {"d", 2}})->listed_ranks().size(), 4u);
  EXPECT_EQ(DeviceMesh().OnRanks({0})->ToString(), "[]@0");
  EXPECT_EQ(MeshOf("[]@0"), DeviceMesh().OnRanks({0}).value());
  EXPECT_NE(MeshOf("[]@0"), DeviceMesh());
  EXPECT_FALSE(said.Contains(4));
  EXPECT_FALSE(said.Contains(-1));
  EXPECT_FALSE(mesh.Contains(-1));
}

TEST(DeviceMeshTest, PrintsRangesOfRanks) {
  for (const char* ranks : {"0..1,6..7", "3,2,1,0", "4..5,0..1", "0,2,4,6", "1,3..5"}) {
    const std::string text = absl::StrCat("[\"a\"=4]@", ranks);
    EXPECT_EQ(MeshOf(text).ToString(), text);
  }
}

TEST(DeviceMeshTest, ParsesRanksThatRandomOnesPrint) {
  TestRandom random;
  for (int round = 0; round < 1000; ++round) {
    const DeviceMesh mesh = RandomMesh(random);
    std::vector<int> ranks;
    for (int next = random.Below(3); static_cast<int>(ranks.size()) < mesh.size();) {
      ranks.push_back(next);
      next += random.Coin() ? 1 : 1 + random.Below(5);
    }
    if (random.Coin()) std::swap(ranks[0], ranks[random.Below(mesh.size())]);
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh said, mesh.OnRanks(ranks));
    EXPECT_THAT(DeviceMesh::Parse(said.ToString()), IsOkAndHolds(said)) << said.ToString();
    for (int i = 0; i < said.size(); ++i) ASSERT_EQ(said.PositionOf(said.RankOf(i)), i);
  }
}

TEST(DeviceMeshTest, HasUpToAMillionRanks) {
  static_assert(DeviceMesh::kMaxRanks >= 1 << 20);
  const std::string most = absl::StrCat(DeviceMesh::kMaxRanks);
  const DeviceMesh mesh = MeshOf("dp=" + most);
  EXPECT_EQ(mesh.size(), DeviceMesh::kMaxRanks);
  std::vector<int> ranks(mesh.size());
  for (int i = 0; i < mesh.size(); ++i) ranks[i] = mesh.size() - 1 - i;
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh turned, mesh.OnRanks(ranks));
  // Each rank is found at once: a search for every rank would take an hour.
  for (int i = 0; i < mesh.size(); ++i) ASSERT_EQ(turned.PositionOf(ranks[i]), i);
  EXPECT_THAT(DeviceMesh::Parse(turned.ToString()), IsOkAndHolds(turned));
  for (const char* text : {"dp=1048577", "a=1024,b=1025", "dp=2147483647", "a=2147483647,b=2",
                           "a=65536,b=65536", "dp=99999999999999999999"}) {
    EXPECT_THAT(DeviceMesh::Parse(text), StatusIs(kInvalidArgument, HasSubstr(most))) << text;
  }
  EXPECT_THAT(DeviceMesh::Create({{"a", 2147483647}, {"b", 2147483647}}),
              StatusIs(kInvalidArgument, HasSubstr(most)));
}

TEST(DeviceMeshTest, RefusesRankListsOfBillions) {
  for (const char* text : {"cp=2@0,2147483647", "cp=2@0..2147483647", "cp=2@1048576,0",
                           "cp=2@0..1048575,0..1048575", "cp=2@0..16000000", "cp=2@-1,0",
                           "cp=2@99999999999999999999,0", "cp=2@0..99999999999999999999"}) {
    const absl::Status status = DeviceMesh::Parse(text).status();
    EXPECT_THAT(status, StatusIs(kInvalidArgument, HasSubstr(text))) << text;
    EXPECT_LT(status.message().size(), 400u);
  }
  std::string many = "cp=2@0";
  for (int i = 0; i < 100'000; ++i) absl::StrAppend(&many, ",0..1000000");
  EXPECT_THAT(DeviceMesh::Parse(many), StatusIs(kInvalidArgument, HasSubstr("1048576")));
  EXPECT_LT(DeviceMesh::Parse("dp=2@0..1000000").status().message().size(), 400u);
}

TEST(DeviceMeshTest, MessagesStayShort) {
  std::vector<int> ranks(DeviceMesh::kMaxRanks / 4);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(4 * i);
  const auto mesh = MeshOf(absl::StrCat("dp=", ranks.size())).OnRanks(ranks);
  for (const absl::Status& status :
       {mesh->Find("tp").status(), mesh->AxisIndex(std::string(1 << 20, 'x')).status(),
        mesh->OnRanks({1}).status(), MeshOf("dp=2").OnRanks(ranks).status(),
        mesh->SplitAxis("dp", {{"a", 3}}).status(), mesh->Slice({"dp", "dp"}).status(),
        DeviceMesh::Parse(std::string(1 << 20, 'x')).status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_LT(status.message().size(), 5000u) << status.message().substr(0, 200);
  }
}

TEST(DeviceMeshTest, ParseErrorsSayWhatIsWanted) {
  const auto error = [](const char* text) {
    return std::string(DeviceMesh::Parse(text).status().message());
  };
  EXPECT_THAT(error("dp=x"), HasSubstr("a whole number from 1 to 1048576, at \"x\""));
  EXPECT_THAT(error("dp="), HasSubstr("a whole number from 1 to 1048576, at \"\""));
  EXPECT_THAT(error("dp=999999999"), HasSubstr("to 1048576, at \"999999999\""));
  EXPECT_THAT(error("dp=4.5"), HasSubstr("',' or the end at \".5\""));
  EXPECT_THAT(error("dp=4 tp=8"), HasSubstr("',' or the end at \"tp=8\"; write"));
  EXPECT_THAT(error("[dp=4 tp=8]"), HasSubstr("',' or ']' at \"tp=8]\"; write"));
  EXPECT_THAT(error("dp:4"), HasSubstr("name=size at \":4\""));
  EXPECT_THAT(error("4x8"), HasSubstr("dp=2,tp=4"));
  EXPECT_THAT(error("dp=2@x"), HasSubstr("a rank, a whole number, at \"x\""));
  EXPECT_THAT(error("dp=2@3..1"), HasSubstr("ascends"));
}

// Texts of random pieces: no crash; what is read prints and reads back the same.
TEST(DeviceMeshTest, RandomTextsReadBackOrAreRefused) {
  const std::vector<std::string> pieces = {"a",
                                           "b",
                                           "dp",
                                           "_",
                                           "=",
                                           "=1",
                                           "=2",
                                           "=3",
                                           ",",
                                           "[",
                                           "]",
                                           ";",
                                           "*",
                                           "@",
                                           "..",
                                           "\"",
                                           " ",
                                           "0",
                                           "1",
                                           "2",
                                           "7",
                                           "-",
                                           "9999999999999",
                                           "x",
                                           "\xFF",
                                           "=a*b"};
  TestRandom random;
  int read = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string text = random.Coin() ? "a=2,b=1" : "";
    for (int left = random.Below(8); left > 0; --left) {
      text += pieces[random.Below(static_cast<int>(pieces.size()))];
    }
    const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(text);
    if (!mesh.ok()) continue;
    ++read;
    ASSERT_THAT(DeviceMesh::Parse(mesh->ToString()), IsOkAndHolds(*mesh)) << text;
  }
  EXPECT_GT(read, 1000);
}

// A text as long as anybody likes costs as much as it is long.
TEST(DeviceMeshTest, LongTextsAreRefusedAtOnce) {
  std::string axes = "a=1", groups = "a=1;g=a", members = "a=1,b=1;g=a";
  for (int i = 0; i < 200'000; ++i) {
    absl::StrAppend(&axes, ",a", i, "=1");
    absl::StrAppend(&groups, ",g", i, "=a");
    absl::StrAppend(&members, "*b*a");
  }
  EXPECT_THAT(DeviceMesh::Parse(axes), StatusIs(kInvalidArgument, HasSubstr("at most 16")));
  EXPECT_THAT(DeviceMesh::Parse(groups), StatusIs(kInvalidArgument, HasSubstr("at most 64")));
  EXPECT_THAT(DeviceMesh::Parse(members), StatusIs(kInvalidArgument, HasSubstr("cannot read")));
}

TEST(DeviceMeshTest, RefusesRanksThatAreNone) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2").value();
  const auto error = [&](std::vector<int> ranks) {
    return std::string(mesh.OnRanks(ranks).status().message());
  };
  EXPECT_THAT(error({1}), testing::HasSubstr("give one rank for each position"));
  EXPECT_THAT(error({1, 1}), testing::HasSubstr("name each rank once"));
  EXPECT_THAT(error({1, -1}), testing::HasSubstr("not negative"));
  EXPECT_THAT(error({}), testing::HasSubstr("give one rank for each position"));
  EXPECT_FALSE(DeviceMesh::Parse("a=2@").ok());
  EXPECT_FALSE(DeviceMesh::Parse("a=2@5..4").ok());
  EXPECT_FALSE(DeviceMesh::Parse("a=2@0..4").ok());
}

TEST(DeviceMeshTest, AtOneCoordinateOfAnAxis) {
  const DeviceMesh mesh = *DeviceMesh::Parse("a=2,pp=3,b=2;ab=a*b,all=a*pp");
  EXPECT_EQ(mesh.At("pp", 1)->ToString(), R"(["a"=2, "b"=2; "ab"=a*b]@2..3,8..9)");
  EXPECT_EQ(DeviceMesh::Parse("pp=2,tp=2@3,1,2,0")->At("pp", 1), DeviceMesh::Parse("tp=2@2,0"));
  const absl::StatusOr<DeviceMesh> point = DeviceMesh::Parse("pp=2")->At("pp", 1);
  ASSERT_TRUE(point.ok());
  EXPECT_EQ(point->num_axes(), 0);
  EXPECT_EQ(point->RankOf(0), 1);
  EXPECT_THAT(mesh.At("pp", 3).status().message(),
              testing::HasSubstr("its coordinates are 0 to 2"));
  EXPECT_THAT(mesh.At("pp", -1).status().message(), testing::HasSubstr("no coordinate -1"));
  EXPECT_FALSE(mesh.At("ab", 0).ok());
  EXPECT_FALSE(mesh.At("none", 0).ok());
}

}  // namespace
}  // namespace dtensor
