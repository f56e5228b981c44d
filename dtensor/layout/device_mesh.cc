#include "dtensor/layout/device_mesh.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/layout/device_mesh_rep.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Axis = DeviceMesh::Axis;

absl::Status CheckName(absl::string_view name) {
  if (IsName(name)) return absl::OkStatus();
  return InvalidArgument({"mesh axis \"", name, "\": a name is letters, digits and '_', does not ",
                          "start with a digit, and is not \"_\" alone"});
}

absl::Status CheckUnique(std::vector<absl::string_view> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return InvalidArgument({"mesh axis \"", *twice, "\" is named twice: names of axes and of groups ",
                          "of axes are unique"});
}

// Returns the number of ranks.
absl::StatusOr<int> CheckSizes(absl::Span<const Axis> axes) {
  int64_t size = 1;
  for (const Axis& axis : axes) {
    if (axis.size < 1) {
      return InvalidArgument({"mesh axis \"", axis.name, "\" has size ", absl::StrCat(axis.size),
                              ": an axis has at least one rank; leave it out or make it 1"});
    }
    size *= axis.size;
    if (size > DeviceMesh::kMaxRanks) {
      return InvalidArgument({"mesh axis \"", axis.name, "\" of size ", absl::StrCat(axis.size),
                              " makes more ranks than a mesh has at most, ",
                              absl::StrCat(DeviceMesh::kMaxRanks)});
    }
  }
  return static_cast<int>(size);
}

// The position of each rank up to the highest one; -1 for ranks that are not listed.
absl::StatusOr<std::vector<int>> PositionsOf(absl::Span<const int> ranks, int size) {
  const auto wrong = [&](absl::string_view what) {
    return InvalidArgument(
        {"a mesh of ", absl::StrCat(size), " ranks on ranks [", RanksToString(ranks), "]: ", what});
  };
  if (ranks.size() != static_cast<size_t>(size)) return wrong("give one rank for each position");
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
  if (*least < 0) return wrong("a rank is not negative");
  if (*most >= DeviceMesh::kMaxRanks) {
    return wrong(absl::StrCat("a rank is below ", DeviceMesh::kMaxRanks));
  }
  std::vector<int> positions(*most + 1, -1);
  for (int i = 0; i < size; ++i) {
    if (positions[ranks[i]] >= 0) return wrong("name each rank once");
    positions[ranks[i]] = i;
  }
  return positions;
}

}  // namespace

DeviceMesh::DeviceMesh() {
  static const auto* const kOneRank = new std::shared_ptr<const Rep>(Make({})->rep_);
  rep_ = *kOneRank;
}

absl::StatusOr<DeviceMesh> DeviceMesh::Make(Rep rep) {
  if (rep.axes.size() > kMaxAxes) {
    return InvalidArgument({"a mesh of ", absl::StrCat(rep.axes.size()), " axes: it has at most ",
                            absl::StrCat(kMaxAxes), "; merge some of them"});
  }
  if (rep.groups.size() > kMaxGroups) {
    return InvalidArgument({"a mesh of ", absl::StrCat(rep.groups.size()), " named groups of ",
                            "axes: it has at most ", absl::StrCat(kMaxGroups)});
  }
  std::vector<absl::string_view> names;
  for (const Axis& axis : rep.axes) names.push_back(axis.name);
  for (const Rep::Group& group : rep.groups) names.push_back(group.name);
  for (absl::string_view name : names) DT_RETURN_IF_ERROR(CheckName(name));
  DT_RETURN_IF_ERROR(CheckUnique(std::move(names)));
  DT_ASSIGN_OR_RETURN(rep.size, CheckSizes(rep.axes));
  std::sort(rep.groups.begin(), rep.groups.end());
  rep.hash = absl::HashOf(rep.groups);
  for (const Axis& axis : rep.axes) rep.hash = absl::HashOf(rep.hash, axis.name, axis.size);
  if (!rep.ranks.empty()) {
    DT_ASSIGN_OR_RETURN(rep.positions, PositionsOf(rep.ranks, rep.size));
  }
  rep.hash = absl::HashOf(rep.hash, rep.ranks);
  return DeviceMesh(std::make_shared<const Rep>(std::move(rep)));
}

absl::StatusOr<DeviceMesh> DeviceMesh::Create(std::vector<Axis> axes) {
  Rep rep;
  rep.axes = std::move(axes);
  return Make(std::move(rep));
}

absl::Span<const DeviceMesh::Axis> DeviceMesh::axes() const { return rep_->axes; }
int DeviceMesh::axis_size(int axis) const { return rep_->axes[axis].size; }
const std::string& DeviceMesh::axis_name(int axis) const { return rep_->axes[axis].name; }
int DeviceMesh::size() const { return rep_->size; }
size_t DeviceMesh::hash() const { return rep_->hash; }

bool DeviceMesh::EqualValue(const DeviceMesh& other) const {
  return rep_->hash == other.rep_->hash && rep_->axes == other.rep_->axes &&
         rep_->groups == other.rep_->groups && rep_->ranks == other.rep_->ranks;
}

absl::StatusOr<DeviceMesh> DeviceMesh::OnRanks(absl::Span<const int> ranks) const {
  DT_RETURN_IF_ERROR(PositionsOf(ranks, size()).status());
  Rep rep = *rep_;
  rep.ranks.assign(ranks.begin(), ranks.end());
  return Make(std::move(rep));
}

absl::Span<const int> DeviceMesh::listed_ranks() const { return rep_->ranks; }

int DeviceMesh::RankOf(int position) const {
  return rep_->ranks.empty() ? position : rep_->ranks[position];
}

int DeviceMesh::PositionOf(int rank) const {
  if (rep_->ranks.empty()) return 0 <= rank && rank < size() ? rank : -1;
  const bool listed = 0 <= rank && rank < static_cast<int>(rep_->positions.size());
  return listed ? rep_->positions[rank] : -1;
}

absl::StatusOr<AxisList> DeviceMesh::Find(absl::string_view name) const {
  if (absl::StrContains(name, '*')) {
    return FindAll(std::vector<std::string>(absl::StrSplit(name, '*')));
  }
  for (int a = 0; a < num_axes(); ++a) {
    if (axis_name(a) == name) return AxisList{a};
  }
  for (const Rep::Group& group : rep_->groups) {
    if (group.name == name) return group.axes;
  }
  return absl::NotFoundError(absl::StrCat("the mesh ", Shortened(ToString()), " has no axis \"",
                                          Shortened(name), "\": use a name that it lists"));
}

absl::StatusOr<int> DeviceMesh::AxisIndex(absl::string_view name) const {
  DT_ASSIGN_OR_RETURN(const AxisList axes, Find(name));
  if (axes.size() == 1) return axes[0];
  return InvalidArgument(
      {"\"", name, "\" stands for several axes of the mesh ", ToString(), ": name one of them"});
}

absl::InlinedVector<int, 4> DeviceMesh::Coordinate(int rank) const {
  int position = PositionOf(rank);
  DT_REQUIRE(position >= 0, "DeviceMesh::Coordinate of a rank that is not on it; ask Contains()");
  absl::InlinedVector<int, 4> coordinate(num_axes());
  for (int a = num_axes() - 1; a >= 0; --a) {
    coordinate[a] = position % axis_size(a);
    position /= axis_size(a);
  }
  return coordinate;
}

int DeviceMesh::RankAt(absl::Span<const int> coordinate) const {
  int position = 0;
  for (int a = 0; a < num_axes(); ++a) position = position * axis_size(a) + coordinate[a];
  return RankOf(position);
}

std::vector<int> DeviceMesh::Group(int rank, absl::Span<const int> axes) const {
  absl::InlinedVector<int, 4> coordinate = Coordinate(rank);
  int size = 1;
  for (int axis : axes) {
    size *= axis_size(axis);
    coordinate[axis] = 0;
  }
  std::vector<int> group;
  group.reserve(size);
  for (int i = 0; i < size; ++i) {
    group.push_back(RankAt(coordinate));
    // Goes to the next coordinate; the last of `axes` varies fastest.
    for (int j = static_cast<int>(axes.size()) - 1; j >= 0; --j) {
      if (++coordinate[axes[j]] < axis_size(axes[j])) break;
      coordinate[axes[j]] = 0;
    }
  }
  return group;
}

absl::StatusOr<AxisList> DeviceMesh::FindAll(absl::Span<const std::string> names) const {
  AxisList all;
  for (const std::string& name : names) {
    DT_ASSIGN_OR_RETURN(const AxisList axes, Find(name));
    for (int axis : axes) {
      if (std::find(all.begin(), all.end(), axis) != all.end()) {
        return InvalidArgument({"axis \"", axis_name(axis), "\" of the mesh ", ToString(),
                                " is named twice: name each axis once"});
      }
      all.push_back(axis);
    }
  }
  return all;
}

absl::StatusOr<DeviceMesh> DeviceMesh::Slice(absl::Span<const std::string> names) const {
  DT_ASSIGN_OR_RETURN(const AxisList kept, FindAll(names));
  absl::InlinedVector<int, 4> moved(num_axes(), -1);  // the new index of each axis
  Rep rep;
  for (int axis : kept) {
    moved[axis] = static_cast<int>(rep.axes.size());
    rep.axes.push_back(axes()[axis]);
  }
  for (Rep::Group group : rep_->groups) {
    for (int& axis : group.axes) axis = moved[axis];
    const auto lost = std::find(group.axes.begin(), group.axes.end(), -1);
    if (lost == group.axes.end()) rep.groups.push_back(std::move(group));
  }
  // Keeps the ranks at coordinate 0 of the axes that are left out, if ranks are listed.
  if (!rep_->ranks.empty()) rep.ranks = Group(RankOf(0), kept);
  return Make(std::move(rep));
}

absl::StatusOr<DeviceMesh> DeviceMesh::At(absl::string_view axis, int64_t coordinate) const {
  DT_ASSIGN_OR_RETURN(const int index, AxisIndex(axis));
  if (coordinate < 0 || coordinate >= axis_size(index)) {
    return InvalidArgument({"axis \"", axis, "\" of ", ToString(), " has no coordinate ",
                            absl::StrCat(coordinate), "; its coordinates are 0 to ",
                            absl::StrCat(axis_size(index) - 1)});
  }
  std::vector<std::string> others;
  for (int a = 0; a < num_axes(); ++a) {
    if (a != index) others.push_back(axis_name(a));
  }
  std::vector<int> ranks;
  for (int position = 0; position < size(); ++position) {
    const int rank = RankOf(position);
    if (Coordinate(rank)[index] == coordinate) ranks.push_back(rank);
  }
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, Slice(others));
  return mesh.OnRanks(ranks);
}

absl::StatusOr<DeviceMesh> DeviceMesh::Flatten(absl::Span<const std::string> names,
                                               std::string name) const {
  DT_ASSIGN_OR_RETURN(AxisList axes, FindAll(names));
  if (axes.empty()) {
    return InvalidArgument({"the mesh name \"", name, "\" would stand for no axis: name one"});
  }
  Rep rep = *rep_;
  rep.groups.push_back({std::move(name), std::move(axes)});
  return Make(std::move(rep));
}

DeviceMesh::Rep DeviceMesh::Rep::WithAxisSplit(int axis, std::vector<Axis> into) const {
  const int added = static_cast<int>(into.size()) - 1;
  Rep split;
  split.axes = axes;
  split.groups = groups;
  split.ranks = ranks;
  split.groups.push_back({axes[axis].name, {axis}});
  for (Group& group : split.groups) {
    AxisList moved;
    for (int a : group.axes) {
      if (a != axis) moved.push_back(a < axis ? a : a + added);
      for (int i = 0; a == axis && i <= added; ++i) moved.push_back(axis + i);
    }
    group.axes = std::move(moved);
  }
  const auto at = split.axes.erase(split.axes.begin() + axis);
  split.axes.insert(at, std::make_move_iterator(into.begin()), std::make_move_iterator(into.end()));
  return split;
}

absl::StatusOr<DeviceMesh> DeviceMesh::SplitAxis(absl::string_view name,
                                                 std::vector<Axis> into) const {
  DT_ASSIGN_OR_RETURN(const int split, AxisIndex(name));
  DT_ASSIGN_OR_RETURN(const int size, CheckSizes(into));
  if (into.empty() || size != axis_size(split)) {
    return InvalidArgument({"splitting axis \"", name, "\" of size ",
                            absl::StrCat(axis_size(split)), " of the mesh ", ToString(),
                            " into sizes that multiply to ", absl::StrCat(size),
                            ": the sizes must multiply to its own"});
  }
  return Make(rep_->WithAxisSplit(split, std::move(into)));
}

}  // namespace dtensor
