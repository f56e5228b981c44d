#include "dtensor/parallel_plans/explain/fold_paths.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/core/hash_map.h"

namespace dtensor::internal {
namespace {

// A path without its number, and the number.
struct Form {
  std::string text;
  int64_t number = -1;  // none
};

Form FormOf(const std::string& path) {
  std::vector<std::string> parts = absl::StrSplit(path, '.');
  for (std::string& part : parts) {
    Form form;
    if (!IsNumber(part)) continue;
    if (!absl::SimpleAtoi(part, &form.number)) continue;  // too long
    part = "#";                                           // cannot be a component of a path
    form.text = absl::StrJoin(parts, ".");
    return form;
  }
  return {path};
}

std::string Filled(const std::string& form, int64_t first, int64_t last) {
  const size_t at = form.find('#');
  if (at == std::string::npos) return form;
  const std::string numbers = first == last ? absl::StrCat(first) : absl::StrCat(first, "..", last);
  return absl::StrCat(form.substr(0, at), numbers, form.substr(at + 1));
}

}  // namespace

bool IsNumber(absl::string_view component) {
  return !component.empty() && std::all_of(component.begin(), component.end(), absl::ascii_isdigit);
}

std::vector<FoldedPath> FoldPaths(absl::Span<const std::string> paths,
                                  const std::function<bool(size_t a, size_t b)>& alike) {
  struct Member {
    int64_t number;
    size_t index;
  };
  std::vector<std::pair<std::string, std::vector<Member>>> groups;
  HashMap<std::string, size_t> place;
  for (size_t i = 0; i < paths.size(); ++i) {
    Form form = FormOf(paths[i]);
    const auto [it, fresh] = place.try_emplace(form.text, groups.size());
    if (fresh) groups.push_back({form.text, {}});
    groups[it->second].second.push_back({form.number, i});
  }
  std::vector<FoldedPath> folded;
  for (auto& [form, members] : groups) {
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.number < b.number; });
    for (size_t i = 0; i < members.size();) {
      FoldedPath fold;
      const Member first = members[i];
      int64_t last = first.number;
      do {
        last = members[i].number;
        fold.members.push_back(members[i++].index);
      } while (i < members.size() && members[i].number == last + 1 &&
               alike(first.index, members[i].index));
      fold.path = Filled(form, first.number, last);
      folded.push_back(std::move(fold));
    }
  }
  return folded;
}

}  // namespace dtensor::internal
