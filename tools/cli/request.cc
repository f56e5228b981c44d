#include "dtensor/tools/cli/request.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/tools/program/nearest_word.h"

namespace dtensor::cli {
namespace {

// Bytes are counted in int64: all ranks' copies of the tensor together must stay below 2^62.
absl::Status CheckCountable(const Dims& shape, int64_t ranks) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t bytes = 8 * ranks;
  for (const int64_t n : shape) {
    if (!__builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes) && bytes <= kMost) continue;
    return InvalidArgument({"--shape: ", DimsToString(shape), " on ", absl::StrCat(ranks),
                            " ranks has more bytes than can be counted (2^62); make it smaller"});
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMesh> ParseMesh(absl::string_view flag, const std::string& text) {
  absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(text);
  return mesh.ok() ? mesh : AboutFlag(flag, mesh.status());
}

// The mesh of one end of a move: `own`, given by `flag`, or the mesh that both ends share.
absl::StatusOr<DeviceMesh> MeshOf(absl::string_view flag, const std::optional<std::string>& own,
                                  const std::optional<std::string>& shared) {
  if (own) return ParseMesh(flag, *own);
  if (shared) return ParseMesh("--mesh", *shared);
  return InvalidArgument(
      {"--mesh is required, as in --mesh dp=4,tp=8, unless --from-mesh and "
       "--to-mesh are both given"});
}

absl::StatusOr<RedistributionOptions> ParseOptions(const MoveFlags& flags,
                                                   absl::Span<const DeviceMesh> meshes) {
  RedistributionOptions options;
  absl::StatusOr<RedistributionObjective> objective = ParseRedistributionObjective(flags.objective);
  if (!objective.ok()) return AboutFlag("--objective", objective.status());
  options.objective = *objective;
  options.max_extra_bytes = flags.max_extra_bytes;
  DT_ASSIGN_OR_RETURN(options.links, ReadLinks(flags.links, meshes));
  return options;
}

bool IsLayoutText(absl::string_view text) {
  return absl::StrContains(text, '[') || absl::StrContains(text, ':') ||
         absl::StripAsciiWhitespace(text) == "scalar";
}

// Whether the text uses PyTorch's names of placements, which no layout contains.
bool NamesPlacements(absl::string_view text) {
  return absl::StrContains(text, "Shard(") || absl::StrContains(text, "Replicate(") ||
         absl::StrContains(text, "Partial(");
}

absl::StatusOr<Layout> ReadLayout(absl::string_view text, const DeviceMesh& mesh,
                                  absl::Span<const int64_t> shape) {
  const absl::StatusOr<Placements> placements = ParsePlacements(text);
  if (!IsLayoutText(text) || NamesPlacements(text)) {
    DT_RETURN_IF_ERROR(placements.status());
    return Layout::FromPlacements(mesh, *placements, shape);
  }
  absl::StatusOr<Layout> layout = Layout::Parse(mesh, text);
  // A list of placements has brackets, too: [S(0),R].
  if (!layout.ok() && placements.ok()) return Layout::FromPlacements(mesh, *placements, shape);
  if (!layout.ok() || layout->ndim() == static_cast<int>(shape.size())) return layout;
  return InvalidArgument({"layout ", layout->ToString(), " has ", absl::StrCat(layout->ndim()),
                          " dimensions, --shape ", DimsToString(shape), " has ",
                          absl::StrCat(shape.size()), "; write one bracket for each"});
}

// "; did you mean tp?" for the first word that is nearly the name of an axis.
std::string AxisMeant(absl::string_view text, const DeviceMesh& mesh) {
  std::vector<std::string> names;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) names.emplace_back(mesh.axis_name(axis));
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar("[](),: \t"), absl::SkipEmpty())) {
    if (mesh.Find(word).ok()) continue;
    const std::string hint = DidYouMean(word, names);
    if (!hint.empty()) return hint;
  }
  return "";
}

// A table may have more axes than this mesh, but if all of them are others, they are misspelled.
absl::Status CheckAxes(const CostModel& links, absl::Span<const DeviceMesh> meshes) {
  const auto& lines = links.rates().links;
  if (lines.empty() || meshes.empty()) return absl::OkStatus();
  for (const auto& [name, link] : lines) {
    for (const DeviceMesh& mesh : meshes) {
      if (mesh.Find(name).ok()) return absl::OkStatus();
    }
  }
  const std::string& first = lines.begin()->first;
  return InvalidArgument({"--links: the table has a line for \"", first,
                          "\", and none for an axis ", "of the mesh ", meshes[0].ToString(),
                          AxisMeant(first, meshes[0]), "; name its axes, or * for all"});
}

}  // namespace

absl::Status AboutFlag(absl::string_view flag, const absl::Status& status) {
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::StatusOr<CostModel> ReadLinks(const std::string& path, absl::Span<const DeviceMesh> meshes) {
  if (path.empty()) return CostModel();
  constexpr int64_t kMost = 1 << 20;  // tens of thousands of axes
  const absl::StatusOr<std::string> text = ReadFile(path, kMost);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--links: ", text.status().message(),
                                     "; `dtensor links > FILE` makes such a file"));
  }
  absl::StatusOr<CostModel> links = CostModel::Parse(*text);
  if (!links.ok()) return AboutFlag("--links", links.status());
  DT_RETURN_IF_ERROR(CheckAxes(*links, meshes));
  return links;
}

absl::StatusOr<Dims> ParseShape(absl::string_view text) {
  if (absl::StripAsciiWhitespace(text) == "scalar") return Dims();
  absl::StatusOr<Dims> shape = ParseDims(text);
  if (!shape.ok()) return AboutFlag("--shape", shape.status());
  if (shape->size() <= Layout::kMaxDims) return shape;
  return InvalidArgument({"--shape: ", absl::StrCat(shape->size()), " dimensions are more than ",
                          absl::StrCat(Layout::kMaxDims), "; join some of them"});
}

absl::StatusOr<Layout> ParseLayout(absl::string_view flag, absl::string_view text,
                                   const DeviceMesh& mesh, absl::Span<const int64_t> shape) {
  absl::StatusOr<Layout> layout = ReadLayout(text, mesh, shape);
  if (layout.ok()) return layout;
  const std::string hint = IsLayoutText(text) ? AxisMeant(text, mesh) : "";
  return AboutFlag(
      flag, absl::Status(layout.status().code(), absl::StrCat(layout.status().message(), hint)));
}

absl::StatusOr<Move> ParseMove(const MoveFlags& flags) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh source, MeshOf("--from-mesh", flags.from_mesh, flags.mesh));
  DT_ASSIGN_OR_RETURN(const DeviceMesh target, MeshOf("--to-mesh", flags.to_mesh, flags.mesh));
  Move move;
  DT_ASSIGN_OR_RETURN(move.shape, ParseShape(flags.shape));
  const int64_t more = source == target ? 0 : target.size();
  DT_RETURN_IF_ERROR(CheckCountable(move.shape, source.size() + more));
  absl::StatusOr<DType> dtype = ParseDType(flags.dtype);
  if (!dtype.ok()) return AboutFlag("--dtype", dtype.status());
  move.dtype = *dtype;
  DT_ASSIGN_OR_RETURN(move.from, ParseLayout("--from", flags.from, source, move.shape));
  DT_ASSIGN_OR_RETURN(move.to, ParseLayout("--to", flags.to, target, move.shape));
  DT_ASSIGN_OR_RETURN(move.options, ParseOptions(flags, {source, target}));
  return move;
}

absl::StatusOr<Laid> ParseLaid(const RegionsFlags& flags) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, ParseMesh("--mesh", flags.mesh));
  Laid laid;
  DT_ASSIGN_OR_RETURN(laid.shape, ParseShape(flags.shape));
  DT_RETURN_IF_ERROR(CheckCountable(laid.shape, mesh.size()));
  DT_ASSIGN_OR_RETURN(laid.layout, ParseLayout("--layout", flags.layout, mesh, laid.shape));
  if (absl::Status status = CheckRegions(laid.layout, laid.shape); !status.ok()) {
    return AboutFlag("--layout", status);
  }
  return laid;
}

}  // namespace dtensor::cli
