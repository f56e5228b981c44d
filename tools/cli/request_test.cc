#include "dtensor/tools/cli/request.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

MoveFlags Flags(std::string mesh, std::string shape, std::string from, std::string to) {
  MoveFlags flags;
  flags.mesh = std::move(mesh);
  flags.shape = std::move(shape);
  flags.from = std::move(from);
  flags.to = std::move(to);
  return flags;
}

// A file with this text; its name.
std::string FileWith(const std::string& text) {
  const std::string path = testing::TempDir() + "/links";
  std::ofstream(path) << text;
  return path;
}

TEST(RequestTest, ReadsAMove) {
  MoveFlags flags = Flags("dp=4,tp=8", "64, 48", "P(sum),S(0)", "S(-1),R");
  flags.dtype = "bf16";
  flags.objective = "busiest";
  flags.max_extra_bytes = 0;
  DT_ASSERT_OK_AND_ASSIGN(const Move move, ParseMove(flags));
  EXPECT_EQ(move.from.ToString(), "[tp] [] P(sum: dp)");
  EXPECT_EQ(move.to.ToString(), "[] [dp]");
  EXPECT_THAT(move.shape, ElementsAre(64, 48));
  EXPECT_EQ(move.dtype, DType::kBF16);
  EXPECT_EQ(move.options.objective, RedistributionObjective::kBusiest);
  EXPECT_EQ(move.options.max_extra_bytes, 0);
}

TEST(RequestTest, ReadsEverySpellingOfAPlacement) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2").value();
  const auto text = [&mesh](absl::string_view placements) {
    return ParseLayout("--from", placements, mesh, {64, 8}).value().ToString();
  };
  EXPECT_EQ(text("S(0,unit(16)),R"), "[a x 16] []");
  EXPECT_EQ(text("S(0,cyclic(2)),S(1)"), "[_ x 32(a)] [b]");
  EXPECT_EQ(text("R,S(0,block(1))"), "[_ x 2(b)] []");
  EXPECT_EQ(text("S(0,zigzag),S(-1)"), "[a:zigzag] [b]");
  EXPECT_EQ(text("S(0),S(0)"), "[a,b] []");
  EXPECT_EQ(text("P(max),P(max)"), "[] [] P(max: a,b)");
}

TEST(RequestTest, ReadsWhatALayoutPrints) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2").value();
  for (const char* text : {"[b,a] []", "[a:zigzag] [b]", "[] [b] P(min: a)", "[b x 4] [a]"}) {
    EXPECT_EQ(ParseLayout("--to", text, mesh, {8, 8}).value().ToString(), text);
  }
  EXPECT_EQ(ParseLayout("--to", "scalar", mesh, {}).value().ToString(), "scalar");
  EXPECT_EQ(ParseLayout("--to", "P(sum: b)", mesh, {}).value().ToString(), "P(sum: b)");
  EXPECT_THAT(ParseLayout("--to", "[a]", mesh, {8, 8}),
              StatusIs(kInvalid, AllOf(StartsWith("--to: "), HasSubstr("one bracket for each"))));
}

TEST(RequestTest, ReadsScalarsAndEmptyTensors) {
  EXPECT_THAT(ParseShape(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseShape("scalar"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseShape("[3, 0]"), IsOkAndHolds(ElementsAre(3, 0)));
  EXPECT_THAT(ParseMove(Flags("a=2", "scalar", "P(sum)", "R")), IsOk());
  EXPECT_THAT(ParseMove(Flags("", "4", "", "")), IsOk());
}

TEST(RequestTest, ReadsTwoMeshes) {
  MoveFlags flags = Flags("a=2", "4", "S(0)", "R,S(0)");
  flags.to_mesh = "b=2,c=2@4..7";
  DT_ASSERT_OK_AND_ASSIGN(const Move move, ParseMove(flags));
  EXPECT_EQ(move.from.mesh().ToString(), "[\"a\"=2]");
  EXPECT_EQ(move.to.mesh().ToString(), "[\"b\"=2, \"c\"=2]@4..7");
  flags.mesh.reset();
  EXPECT_THAT(ParseMove(flags), StatusIs(kInvalid, StartsWith("--mesh is required")));
  flags.from_mesh = "a:2";
  EXPECT_THAT(ParseMove(flags), StatusIs(kInvalid, StartsWith("--from-mesh: ")));
}

TEST(RequestTest, ReadsPlacementsAsPyTorchPrintsThem) {
  const auto from = [](const char* text) {
    return ParseMove(Flags("dp=2,tp=2", "8,4", text, "R,R"));
  };
  DT_ASSERT_OK_AND_ASSIGN(const Move wanted, from("S(0),P(sum)"));
  for (const char* text : {"[Shard(dim=0), Partial(sum)]", "(Shard(dim=0), Partial(reduce_op=sum))",
                           "Shard(0),Partial()", "[S(0),P(sum)]"}) {
    DT_ASSERT_OK_AND_ASSIGN(const Move move, from(text));
    EXPECT_EQ(move.from, wanted.from) << text;
  }
  EXPECT_THAT(from("[Shard(dim=2), Replicate()]"), StatusIs(kInvalid, HasSubstr("no dimension 2")));
  EXPECT_THAT(from("[Shard(dim=0)]"), StatusIs(kInvalid, HasSubstr("give one for each axis")));
  EXPECT_THAT(from("(_StridedShard(dim=0, split_factor=2), Shard(dim=0))"),
              StatusIs(kInvalid, HasSubstr("write the layout")));
  EXPECT_THAT(from("[_StridedShard(dim=0, split_factor=2), Shard(dim=0)]"),
              StatusIs(kInvalid, HasSubstr("write the layout")));
  // An axis called R is one.
  DT_ASSERT_OK_AND_ASSIGN(const Move axis, ParseMove(Flags("R=2", "8", "[R]", "R")));
  EXPECT_EQ(axis.from.ToString(), "[R]");
  EXPECT_EQ(axis.to.ToString(), "[]");
}

TEST(RequestTest, ReadsALinkTable) {
  MoveFlags flags = Flags("a=2", "4", "R", "R");
  flags.links = FileWith("# slow\nlink a 12 25\n");
  DT_ASSERT_OK_AND_ASSIGN(const Move move, ParseMove(flags));
  EXPECT_EQ(move.options.links.Of("a").gb_per_second, 25);
}

TEST(RequestTest, ErrorsBeginWithTheFlag) {
  const auto refuses = [](const MoveFlags& flags, absl::string_view start, absl::string_view part) {
    const std::string message(ParseMove(flags).status().message());
    EXPECT_THAT(message, AllOf(StartsWith(std::string(start)), HasSubstr(std::string(part))));
  };
  refuses(Flags("a:2", "4", "R", "R"), "--mesh: ", "write [\"dp\"=2");
  refuses(Flags("a=0", "4", "R", "R"), "--mesh: ", "\"a\" has size 0");
  refuses(Flags("a=2", "4,x", "R", "R"), "--shape: ", "\"x\"");
  std::string ones = "1";
  for (int d = 1; d < 33; ++d) ones += ",1";
  refuses(Flags("a=2", ones, "R", "R"), "--shape: ", "33 dimensions are more than 32");
  refuses(Flags("a=2", "4,-1", "R", "R"), "--shape: ", "\"-1\"");
  refuses(Flags("a=2", "4", "Q", "R"), "--from: ", "\"Q\"");
  refuses(Flags("a=2", "4", "R,R", "R"), "--from: ", "give one for each axis");
  refuses(Flags("a=2", "4", "R", "S(1)"), "--to: ", "no dimension 1");
  refuses(Flags("a=2", "4", "R", "[b]"), "--to: ", "\"b\"");
  MoveFlags flags = Flags("a=2", "4", "R", "R");
  flags.dtype = "f33";
  refuses(flags, "--dtype: ", "bf16");
  flags = Flags("a=2", "4", "R", "R");
  flags.objective = "best";
  refuses(flags, "--objective: ", "total, busiest or latency");
  flags = Flags("a=2", "4", "R", "R");
  flags.links = "/nowhere/links";
  refuses(flags, "--links: ", "'/nowhere/links'");
  flags.links = testing::TempDir();  // a folder
  refuses(flags, "--links: ", "is a folder");
  flags.links = "/dev/zero";
  refuses(flags, "--links: ", "is a device");
  flags.links = FileWith("link a\n");
  refuses(flags, "--links: ", "line 1");
  flags.links = FileWith("link aa 12 25\nlink * 1 2\n");
  refuses(flags, "--links: ", "none for an axis of the mesh [\"a\"=2]; did you mean a?");
  // What follows a NUL is read, too.
  flags.links = FileWith(std::string("link a 12 25\n\0link b\n", 21));
  refuses(flags, "--links: ", "line 2");
}

TEST(RequestTest, RefusesTensorsWhoseBytesCannotBeCounted) {
  for (const char* shape :
       {"9000000000000000000", "4000000000,4000000000", "3000000000,3000000000,0"}) {
    EXPECT_THAT(ParseMove(Flags("a=2", shape, shape[0] == '9' ? "R" : "S(0)", "R")),
                StatusIs(kInvalid, StartsWith("--shape: ")))
        << shape;
  }
  EXPECT_THAT(ParseMove(Flags("a=100000", "1000000,1000", "S(0)", "R")), IsOk());
}

}  // namespace
}  // namespace dtensor::cli
