// The text form of a mesh: ["kv"=2, "rep"=2; "tp"=kv*rep], or without brackets and quotes.
#include <algorithm>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/device_mesh.h"
#include "dtensor/device_mesh_rep.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/text_scanner.h"

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

bool ReadAxis(TextScanner& in, DeviceMesh::Axis& axis) {
  int64_t size = 0;
  if (!ReadName(in, axis.name) || !in.EatInt(&size)) return false;
  axis.size = static_cast<int>(size);
  return axis.size == size;
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
bool ReadRanks(TextScanner& in, std::vector<int>& ranks) {
  do {
    int64_t first = 0;
    if (!in.EatInt(&first)) return false;
    int64_t last = first;
    if (in.Eat("..") && !in.EatInt(&last)) return false;
    if (last < first || last - first >= (1 << 24) || last > std::numeric_limits<int>::max()) {
      return false;
    }
    for (int64_t rank = first; rank <= last; ++rank) ranks.push_back(static_cast<int>(rank));
  } while (in.Eat(","));
  return true;
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
  const std::vector<int>& ranks = rep_->ranks;
  if (ranks.empty()) return text;
  if (ranks.size() > 1 && ranks.back() - ranks.front() == size() - 1 && absl::c_is_sorted(ranks)) {
    return absl::StrCat(text, "@", ranks.front(), "..", ranks.back());
  }
  return absl::StrCat(text, "@", absl::StrJoin(ranks, ","));
}

absl::StatusOr<DeviceMesh> DeviceMesh::Parse(absl::string_view text) {
  TextScanner in(text);
  const bool bracket = in.Eat("[");
  const bool no_axes = in.AtEnd() || in.rest()[0] == ']';
  Rep rep;
  for (bool more = !no_axes; more; more = in.Eat(",")) {
    if (!ReadAxis(in, rep.axes.emplace_back())) return Unreadable(text, "name=size", in.rest());
  }
  for (bool more = in.Eat(";"); more; more = in.Eat(",")) {
    Rep::Group& group = rep.groups.emplace_back();
    if (!ReadName(in, group.name) || !ReadMembers(in, rep.axes, group.axes)) {
      return Unreadable(text, "name=axis*axis", in.rest());
    }
  }
  if (bracket && !in.Eat("]")) return Unreadable(text, "']'", in.rest());
  if (in.Eat("@") && !ReadRanks(in, rep.ranks)) return Unreadable(text, "ranks", in.rest());
  if (!in.AtEnd()) return Unreadable(text, "the end", in.rest());
  return Make(std::move(rep));
}

}  // namespace dtensor
