// The text form of a mesh: ["kv"=2, "rep"=2; "tp"=kv*rep], or without brackets and quotes.
#include <algorithm>
#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/device_mesh_rep.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status Unreadable(absl::string_view text, absl::string_view what, absl::string_view rest) {
  return InvalidArgument({"cannot read the mesh ", text, ": expected ", what, " at \"", rest,
                          "\"; write [\"dp\"=2, \"tp\"=4] or dp=2,tp=4"});
}

// "name"= or name=
bool ReadName(TextScanner& in, std::string& name) {
  const bool quoted = in.Eat("\"");
  name = std::string(in.EatName());
  if (quoted && !in.Eat("\"")) return false;
  return !name.empty() && in.Eat("=");
}

// These functions return what they expected and did not find, or nothing if they succeeded.
absl::string_view ReadAxis(TextScanner& in, DeviceMesh::Axis& axis) {
  constexpr absl::string_view kSize = "the axis's size, a whole number from 1 to 1048576,";
  static_assert(DeviceMesh::kMaxRanks == 1048576);
  if (!ReadName(in, axis.name)) return "name=size";
  int64_t size = 0;
  const TextScanner before = in;  // which the message shows
  if (!in.EatInt(&size) || std::abs(size) > DeviceMesh::kMaxRanks) {
    in = before;
    return kSize;
  }
  axis.size = static_cast<int>(size);
  return "";
}

// kv*rep, as the indices of `axes`.
bool ReadMembers(TextScanner& in, absl::Span<const DeviceMesh::Axis> axes, AxisList& members) {
  do {
    const absl::string_view name = in.EatName();
    const auto axis = std::find_if(axes.begin(), axes.end(),
                                   [&](const DeviceMesh::Axis& a) { return a.name == name; });
    const int index = static_cast<int>(axis - axes.begin());
    if (axis == axes.end() || absl::c_linear_search(members, index)) return false;
    members.push_back(index);
  } while (in.Eat("*"));
  return true;
}

// 4..7 or 0,2,4
absl::string_view ReadRanks(TextScanner& in, std::vector<int>& ranks) {
  do {
    int64_t first = 0, last = 0;
    if (!in.EatInt(&first)) return "a rank, a whole number,";
    last = first;
    if (in.Eat("..") && !in.EatInt(&last)) return "the last rank of a range";
    if (last < first) return "a range of ranks that ascends, before";
    if (first < 0 || last >= DeviceMesh::kMaxRanks) return "ranks from 0 to 1048575, before";
    if (last - first >= DeviceMesh::kMaxRanks - static_cast<int64_t>(ranks.size())) {
      return "no more than 1048576 ranks, before";
    }
    for (int64_t rank = first; rank <= last; ++rank) ranks.push_back(static_cast<int>(rank));
  } while (in.Eat(","));
  return "";
}

}  // namespace

std::string DeviceMesh::AxisNames(absl::Span<const int> axes) const {
  return absl::StrJoin(axes, ",",
                       [this](std::string* out, int axis) { out->append(axis_name(axis)); });
}

std::string DeviceMesh::ToString() const {
  const auto name_of = [this](std::string* out, int axis) { out->append(axis_name(axis)); };
  std::string text =
      absl::StrCat("[", absl::StrJoin(axes(), ", ", [](std::string* out, const Axis& axis) {
                     absl::StrAppend(out, "\"", axis.name, "\"=", axis.size);
                   }));
  absl::string_view separator = "; ";
  for (const Rep::Group& group : rep_->groups) {
    absl::StrAppend(&text, separator, "\"", group.name,
                    "\"=", absl::StrJoin(group.axes, "*", name_of));
    separator = ", ";
  }
  text += "]";
  if (rep_->ranks.empty()) return text;
  return absl::StrCat(text, "@", RanksToString(rep_->ranks));
}

std::string RanksToString(absl::Span<const int> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last] + 1 == ranks[last + 1]) ++last;
    absl::StrAppend(&text, i == 0 ? "" : ",", ranks[i]);
    if (last > i) absl::StrAppend(&text, "..", ranks[last]);
    i = last + 1;
  }
  return text;
}

absl::StatusOr<DeviceMesh> DeviceMesh::Parse(absl::string_view text) {
  TextScanner in(text);
  const bool bracket = in.Eat("[");
  const bool no_axes = in.AtEnd() || in.rest()[0] == ']';
  Rep rep;
  for (bool more = !no_axes; more; more = in.Eat(",")) {
    const absl::string_view expected = ReadAxis(in, rep.axes.emplace_back());
    if (!expected.empty()) return Unreadable(text, expected, in.rest());
    if (rep.axes.size() > kMaxAxes) return Make(std::move(rep));
  }
  for (bool more = in.Eat(";"); more; more = in.Eat(",")) {
    Rep::Group& group = rep.groups.emplace_back();
    if (!ReadName(in, group.name) || !ReadMembers(in, rep.axes, group.axes)) {
      return Unreadable(text, "name=axis*axis", in.rest());
    }
    if (rep.groups.size() > kMaxGroups) return Make(std::move(rep));
  }
  if (bracket && !in.Eat("]")) return Unreadable(text, "',' or ']'", in.rest());
  if (in.Eat("@")) {
    const absl::string_view expected = ReadRanks(in, rep.ranks);
    if (!expected.empty()) return Unreadable(text, expected, in.rest());
  }
  if (!in.AtEnd()) return Unreadable(text, "',' or the end", in.rest());
  return Make(std::move(rep));
}

}  // namespace dtensor
