#include "dtensor/checkpoint/folder.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/temporary_name.h"

namespace dtensor {
namespace {

constexpr absl::string_view kStep = "step-";
constexpr absl::string_view kOld = "-old";  // suffix of a checkpoint that is being removed

std::string InFolder(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

// Removes old checkpoints that any process has hidden. What cannot be removed yet, such as a file
// on NFS that another process has open, is removed when the next checkpoint is saved.
void RemoveHidden(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const bool hidden = absl::StartsWith(name, absl::StrCat(".", kStep)) &&
                        absl::StrContains(name, absl::StrCat(kOld, ".")) &&
                        absl::EndsWith(name, ".tmp");
    if (hidden) RemoveFolder(files, InFolder(folder, name)).IgnoreError();
  }
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%08d", kStep, step); }

std::optional<int64_t> CheckpointStep(absl::string_view name) {
  if (!absl::StartsWith(name, kStep)) return std::nullopt;
  int64_t step = 0;
  if (!absl::SimpleAtoi(name.substr(kStep.size()), &step)) return std::nullopt;
  if (step < 0 || CheckpointName(step) != name) return std::nullopt;  // only the exact spelling
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
  return TemporaryName(CheckpointName(step));
}

void internal::RemoveAbandoned(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::optional<std::string> of = AbandonedName(name);
    if (of && absl::StartsWith(*of, kStep))
      RemoveFolder(files, InFolder(folder, name)).IgnoreError();
  }
}

absl::Status internal::RemoveOlder(FileSystem& files, const std::string& folder, int64_t step,
                                   int keep) {
  DT_ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListCheckpoints(folder, files));
  std::erase_if(steps, [step](int64_t other) { return other > step; });
  const int64_t old = static_cast<int64_t>(steps.size()) - keep;
  for (int64_t i = 0; i < old; ++i) {
    // Rename it first: a folder that is only partly removed must not look like a checkpoint.
    const std::string name = CheckpointName(steps[i]);
    const std::string hidden = InFolder(folder, TemporaryName(absl::StrCat(name, kOld)));
    const absl::Status renamed = files.Rename(InFolder(folder, name), hidden);
    if (absl::IsNotFound(renamed)) continue;  // another world was faster
    DT_RETURN_IF_ERROR(renamed);
    DT_RETURN_IF_ERROR(files.SyncFolder(folder));
  }
  RemoveHidden(files, folder);
  return absl::OkStatus();
}

}  // namespace dtensor
