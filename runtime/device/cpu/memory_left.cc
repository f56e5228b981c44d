#include "dtensor/runtime/device/cpu/memory_left.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace dtensor {
namespace {

struct Files {
  const char *limit, *used;
  const char *inactive, *active;  // names in memory.stat, for cached files
};
constexpr Files kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                             "total_inactive_file", "total_active_file"};
constexpr Files kVersion2 = {"/memory.max", "/memory.current", "inactive_file", "active_file"};

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  return file >> number ? std::optional(number) : std::nullopt;  // "max" means no limit
}

int64_t CachedFiles(const std::string& folder, const Files& files) {
  std::ifstream stat(folder + "/memory.stat");
  std::string name;
  int64_t bytes, all = 0;
  while (stat >> name >> bytes) {
    if (name == files.inactive || name == files.active) all += bytes;
  }
  return all;
}

std::optional<int64_t> LeftBy(const std::string& folder, const Files& files) {
  const std::optional<int64_t> limit = ReadNumber(folder + files.limit);
  const std::optional<int64_t> used = ReadNumber(folder + files.used);
  constexpr int64_t kNoLimit = int64_t{1} << 62;  // version 1 has a number for it, near 2^63
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  return std::max<int64_t>(0, *limit - *used + CachedFiles(folder, files));
}

// The minimum over the group and the groups around it: a container may see only the outermost one.
std::optional<int64_t> LeftByAll(const std::string& root, std::string_view path,
                                 const Files& files) {
  std::optional<int64_t> left;
  while (true) {
    while (path.ends_with('/')) path.remove_suffix(1);
    if (const auto here = LeftBy(root + std::string(path), files)) {
      left = std::min(left.value_or(*here), *here);
    }
    if (path.empty()) return left;
    path = path.substr(0, path.find_last_of('/') + 1);
  }
}

bool HasMemory(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == "memory") return true;
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

}  // namespace

std::optional<int64_t> MemoryLeft(const std::string& groups, const std::string& root) {
  std::ifstream file(groups);
  std::optional<int64_t> left;
  // "4:memory:/some/group", and "0::/some/group" for version 2
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const std::string_view path = std::string_view(line).substr(second + 1);
    std::optional<int64_t> here;
    if (controllers.empty()) here = LeftByAll(root, path, kVersion2);
    if (HasMemory(controllers)) here = LeftByAll(root + "/memory", path, kVersion1);
    if (here) left = std::min(left.value_or(*here), *here);
  }
  return left;
}

}  // namespace dtensor
