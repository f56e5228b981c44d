#include "dtensor/parallel_plans/explain/placed_modules.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;

PlacedModule WithEdge(const std::string& path, const std::string& mesh) {
  PlacedModule module;
  module.figures.path = path;
  module.edges.push_back(
      {.mesh = *DeviceMesh::Parse(mesh), .axes = {0}, .input = Shard(0), .output = Replicate()});
  return module;
}

std::vector<std::string> Paths(const std::vector<PlacedModule>& modules) {
  std::vector<std::string> paths;
  for (const PlacedModule& module : modules) paths.push_back(module.figures.path);
  return paths;
}

// Stages of a pipeline have meshes of their own.
TEST(PlacedModulesTest, ModulesOnUnlikeMeshesStayApart) {
  EXPECT_THAT(Paths(Fold({WithEdge("l.0", "tp=2@0..1"), WithEdge("l.1", "tp=2@0..1"),
                          WithEdge("l.2", "tp=2@2..3")})),
              ElementsAre("l.0..1", "l.2"));
  EXPECT_THAT(Paths(Fold({WithEdge("l.0", "tp=2"), WithEdge("l.1", "dp=2")})),
              ElementsAre("l.0", "l.1"));
}

TEST(PlacedModulesTest, EdgesNameWhatTheyAreOfWhereThereAreSeveral) {
  PlacedModule module = WithEdge("l", "dp=2,tp=2");
  module.operands = {"x", "memory"};
  module.results = {"y"};
  ModuleEdge& edge = module.edges[0];
  EXPECT_EQ(EdgeText(module, edge, &ModuleEdge::input), "S(0) on dp");
  edge.index = 1;
  edge.output = std::nullopt;
  EXPECT_EQ(EdgeText(module, edge, &ModuleEdge::input), "memory S(0) on dp");
  EXPECT_EQ(EdgeText(module, edge, &ModuleEdge::output), "");
}

TEST(PlacedModulesTest, APlaceIsSaidOnce) {
  const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
  ParameterFigures figures;
  figures.shape = {4, 8};
  figures.rests = figures.used = *Layout::Parse(mesh, "[tp] []");
  EXPECT_EQ(PlacesText(figures), "S(0)");
  figures.used = *Layout::Parse(mesh, "[] []");
  EXPECT_EQ(PlacesText(figures), "S(0), used as R");
}

TEST(PlacedModulesTest, Names) {
  EXPECT_EQ(NameOf({.path = ""}), "(model)");
  EXPECT_EQ(NameOf({.path = "l.0..3", .modules = 4}), "l.0..3 x4");
  EXPECT_EQ(NameOf({.path = "", .outside = true}), "(loss and update)");
}

}  // namespace
}  // namespace dtensor
