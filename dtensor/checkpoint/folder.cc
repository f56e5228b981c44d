#include "dtensor/checkpoint/folder.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/crc32c.h"

namespace dtensor {
namespace {

constexpr absl::string_view kStep = "step-";
constexpr absl::string_view kTemporary = ".tmp";

std::string InFolder(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

// Where numbers of processes mean the same: one boot of one machine, and in it one namespace.
std::string Machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat processes = {};
  const bool known = stat("/proc/self/ns/pid", &processes) == 0;
  const std::string text = absl::StrCat(boot, ".", known ? processes.st_ino : 0);
  return absl::StrFormat("%08x", Crc32c(0, text.data(), text.size()));
}

bool IsGone(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

// Of ".step-00000012.MACHINE.PID.NUMBER.tmp"; none for other names.
std::optional<pid_t> AbandonedBy(absl::string_view name) {
  if (!absl::StartsWith(name, absl::StrCat(".", kStep)) || !absl::EndsWith(name, kTemporary)) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  pid_t process = 0;
  const bool ours = parts.size() == 6 && parts[2] == Machine() &&
                    absl::SimpleAtoi(parts[3], &process) && process > 0;
  if (!ours || !IsGone(process)) return std::nullopt;
  return process;
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%08d", kStep, step); }

std::optional<int64_t> CheckpointStep(absl::string_view name) {
  if (!absl::StartsWith(name, kStep)) return std::nullopt;
  int64_t step = 0;
  if (!absl::SimpleAtoi(name.substr(kStep.size()), &step)) return std::nullopt;
  if (step < 0 || CheckpointName(step) != name) return std::nullopt;  // as it would be written
  return step;
}

absl::StatusOr<std::vector<int64_t>> ListCheckpoints(const std::string& folder, FileSystem& files) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = CheckpointStep(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::string> FindCheckpoint(const std::string& path, FileSystem& files) {
  DT_ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(path));
  if (std::find(names.begin(), names.end(), kCheckpointIndexFile) != names.end()) return path;
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListCheckpoints(path, files));
  if (!steps.empty()) return InFolder(path, CheckpointName(steps.back()));
  std::sort(names.begin(), names.end());
  constexpr size_t kMost = 5;
  const bool more = names.size() > kMost;
  if (more) names.resize(kMost);
  return absl::NotFoundError(absl::StrCat(
      "'", path, "' is no checkpoint, and none is in it: there is no ", kCheckpointIndexFile,
      " and no folder such as ", CheckpointName(12), "; it has ",
      names.empty() ? "nothing" : absl::StrJoin(names, ", "), more ? " and others" : ""));
}

std::string internal::TemporaryCheckpointName(int64_t step) {
  static std::atomic<uint32_t> count = 0;
  // Not by the clock alone: two worlds of one process may begin at once.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const uint64_t number = static_cast<uint64_t>(now) << 8 ^ ++count;
  return absl::StrCat(".", CheckpointName(step), ".", Machine(), ".", getpid(), ".", number,
                      kTemporary);
}

void internal::RemoveAbandoned(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (AbandonedBy(name)) RemoveFolder(files, InFolder(folder, name)).IgnoreError();
  }
}

absl::Status internal::RemoveOlder(FileSystem& files, const std::string& folder, int64_t step,
                                   int keep) {
  DT_ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListCheckpoints(folder, files));
  std::erase_if(steps, [step](int64_t other) { return other > step; });
  const int64_t old = static_cast<int64_t>(steps.size()) - keep;
  for (int64_t i = 0; i < old; ++i) {
    // A folder that is half removed must not look like a checkpoint.
    const std::string hidden = InFolder(folder, TemporaryCheckpointName(steps[i]));
    const absl::Status renamed = files.Rename(InFolder(folder, CheckpointName(steps[i])), hidden);
    if (absl::IsNotFound(renamed)) continue;  // another world was sooner
    DT_RETURN_IF_ERROR(renamed);
    DT_RETURN_IF_ERROR(files.SyncFolder(folder));
    DT_RETURN_IF_ERROR(RemoveFolder(files, hidden));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
