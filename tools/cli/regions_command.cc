#include "dtensor/tools/cli/regions_command.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/layout/regions.h"
#include "dtensor/layout/visualize.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/svg_file.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

Json RunsJson(const IndexSet& set) {
  Json runs = Json::array();
  for (const IndexRun& run : set.runs()) {
    runs.push_back({{"begin", run.begin},
                    {"length", run.length},
                    {"stride", run.stride},
                    {"count", run.count}});
  }
  return runs;
}

Json RankJson(const Laid& laid, int rank) {
  const auto coordinate = laid.layout.mesh().Coordinate(rank);
  const Region region = Regions(laid.layout, laid.shape, coordinate);
  const Dims local = laid.layout.LocalShape(laid.shape, rank);
  Json runs = Json::array();
  for (const IndexSet& set : region) runs.push_back(RunsJson(set));
  return {{"rank", rank},
          {"coordinate", std::vector<int>(coordinate.begin(), coordinate.end())},
          {"shape", std::vector<int64_t>(local.begin(), local.end())},
          {"elements", NumElements(region)},
          {"region", ToString(region)},
          {"runs", std::move(runs)}};
}

Json PartialJson(const Layout& layout) {
  if (!layout.is_partial()) return nullptr;
  std::vector<std::string> axes, averaged;
  for (int axis : layout.partial_axes()) axes.push_back(layout.mesh().axis_name(axis));
  for (int axis : layout.averaged_axes()) averaged.push_back(layout.mesh().axis_name(axis));
  Json json = {{"op", std::string(ToString(layout.partial_op()))}, {"axes", axes}};
  const bool sums_too = !averaged.empty() && averaged.size() < axes.size();
  if (sums_too) json["averaged"] = averaged;
  return json;
}

std::string ListJson(const Laid& laid) {
  const DeviceMesh& mesh = laid.layout.mesh();
  Json json = {{"mesh", mesh.ToString()},
               {"shape", std::vector<int64_t>(laid.shape.begin(), laid.shape.end())},
               {"layout", laid.layout.ToString()},
               {"partial", PartialJson(laid.layout)}};
  Json ranks = Json::array();
  for (int i = 0; i < mesh.size(); ++i) ranks.push_back(RankJson(laid, mesh.RankOf(i)));
  json["ranks"] = std::move(ranks);
  return JsonText(json);
}

std::string ListText(const Laid& laid) {
  const DeviceMesh& mesh = laid.layout.mesh();
  std::string text = absl::StrCat(DimsToString(laid.shape), " on ", mesh.ToString(), " as ",
                                  laid.layout.ToString(), "\n");
  for (int i = 0; i < mesh.size(); ++i) {
    const int rank = mesh.RankOf(i);
    const auto coordinate = mesh.Coordinate(rank);
    std::string where;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      absl::StrAppend(&where, axis == 0 ? "" : ",", mesh.axis_name(axis), "=", coordinate[axis]);
    }
    absl::StrAppendFormat(&text, "rank %d (%s): %s, %s\n", rank, where,
                          ToString(Regions(laid.layout, laid.shape, coordinate)),
                          DimsToString(laid.layout.LocalShape(laid.shape, rank)));
  }
  return text;
}

}  // namespace

absl::StatusOr<Outcome> RunRegions(const RegionsFlags& flags, bool json, bool colour) {
  DT_RETURN_IF_ERROR(CheckPicture(flags.picture, json));
  DT_ASSIGN_OR_RETURN(const Laid laid, ParseLaid(flags));
  std::string text = json ? ListJson(laid) : ListText(laid);
  if (flags.picture) {
    const auto picture = VisualizeLayout(laid.layout, laid.shape, colour);
    DT_RETURN_IF_ERROR(AboutFlag("--picture", picture.status()));
    text += *picture;
  }
  // Written last, so that a refused request leaves no file.
  if (!flags.svg.empty()) {
    DT_RETURN_IF_ERROR(WriteSvg(flags.svg, VisualizeLayoutSvg(laid.layout, laid.shape)));
  }
  return Outcome{std::move(text)};
}

}  // namespace dtensor::cli
