#include "dtensor/runtime/io/atomic_folder.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/temporary_name.h"

namespace dtensor {
namespace {

std::string InFolder(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
}

std::string NameOf(absl::string_view place) {
  const size_t slash = place.rfind('/');
  return std::string(slash == place.npos ? place : place.substr(slash + 1));
}

// If the current folder were replaced, the process would be left in a removed one.
absl::Status CheckNotCurrent(FileSystem& files, const std::string& place) {
  const absl::StatusOr<std::string> current = files.Resolve(".");
  if (!current.ok()) return absl::OkStatus();  // it is gone already
  if (*current != place && !absl::StartsWith(*current, InFolder(place, ""))) {
    return absl::OkStatus();
  }
  return InvalidArgument({"'", place, "' is the folder in which this process runs, or around it, ",
                          "and cannot be replaced as a whole; name a folder in it"});
}

absl::Status CheckNotMounted(FileSystem& files, const std::string& place) {
  if (!files.IsMountRoot(place)) return absl::OkStatus();
  return InvalidArgument({"'", place, "' is where a file system is mounted, and cannot be ",
                          "replaced as a whole; name a folder in it"});
}

absl::Status Exchange(FileSystem& files, const std::string& a, const std::string& b) {
  const absl::Status exchanged = files.Exchange(a, b);
  if (exchanged.ok()) return exchanged;
  return absl::Status(exchanged.code(),
                      absl::StrCat(exchanged.message(), "; what is there stays: where a file ",
                                   "system cannot exchange folders, take a new folder"));
}

// Tries to exchange an empty folder with another one, as the commit will have to do.
absl::Status TryExchange(FileSystem& files, const std::string& folder, absl::string_view name) {
  const std::string other = InFolder(ParentFolder(folder), TemporaryName(name));
  DT_RETURN_IF_ERROR(files.MakeFolder(other));
  const absl::Status exchanged = Exchange(files, folder, other);
  files.Remove(other).IgnoreError();
  return exchanged;
}

void RemoveAbandoned(FileSystem& files, const std::string& parent, absl::string_view name) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(parent);
  if (!names.ok()) return;
  for (const std::string& other : *names) {
    if (IsAbandoned(other, name)) RemoveFolder(files, InFolder(parent, other)).IgnoreError();
  }
}

// Keeps a file as a link with another name, and a folder as a new folder of such links. Adds the
// folder's path below the first `from` to `folders`. Skips what is gone.
absl::Status KeepOne(FileSystem& files, const std::string& from, const std::string& to,
                     const std::string& path, std::vector<std::string>& folders) {
  const std::string old = InFolder(from, path), kept = InFolder(to, path);
  const absl::Status linked = files.Link(old, kept);
  if (linked.ok() || absl::IsNotFound(linked)) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> names = files.List(old);
  if (!names.ok()) return linked;  // it is no folder
  DT_RETURN_IF_ERROR(files.MakeFolder(kept));
  folders.push_back(path);
  for (const std::string& name : *names) {
    DT_RETURN_IF_ERROR(KeepOne(files, from, to, InFolder(path, name), folders));
  }
  DT_RETURN_IF_ERROR(files.CopyPermissions(old, kept));
  return files.SyncFolder(kept);
}

// Adds to `to` what came into the old folder, `from`, while the new one was about to replace it.
absl::Status KeepLate(FileSystem& files, const std::string& from, const std::string& to,
                      const std::vector<std::string>& folders,
                      absl::FunctionRef<bool(absl::string_view name)> drops) {
  std::vector<std::string> all = {""}, made;
  all.insert(all.end(), folders.begin(), folders.end());
  for (const std::string& folder : all) {
    const std::string prefix = folder.empty() ? "" : absl::StrCat(folder, "/");
    DT_ASSIGN_OR_RETURN(const auto old, files.List(InFolder(from, folder)));
    DT_ASSIGN_OR_RETURN(const auto there, files.List(InFolder(to, folder)));
    bool came = false;
    for (const std::string& name : old) {
      if (std::find(there.begin(), there.end(), name) != there.end()) continue;
      if (folder.empty() && drops(name)) continue;
      DT_RETURN_IF_ERROR(KeepOne(files, from, to, absl::StrCat(prefix, name), made));
      came = true;
    }
    if (came) DT_RETURN_IF_ERROR(files.SyncFolder(InFolder(to, folder)));
  }
  return absl::OkStatus();
}

// Returns no names if there is no folder.
absl::StatusOr<std::vector<std::string>> NamesIn(FileSystem& files, const std::string& place) {
  absl::StatusOr<std::vector<std::string>> names = files.List(place);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

}  // namespace

absl::StatusOr<AtomicFolder> AtomicFolder::Create(FileSystem& files, const std::string& folder) {
  DT_ASSIGN_OR_RETURN(const std::string place, files.Resolve(folder));
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> there, NamesIn(files, place));
  DT_RETURN_IF_ERROR(CheckNotCurrent(files, place));
  DT_RETURN_IF_ERROR(CheckNotMounted(files, place));
  const std::string parent = ParentFolder(place), name = NameOf(place);
  if (name.empty() || name == "." || name == "..") {
    return InvalidArgument({"'", folder, "' names no folder that could be made"});
  }
  DT_RETURN_IF_ERROR(MakeFolders(files, parent));
  RemoveAbandoned(files, parent, name);
  const std::string temporary = InFolder(parent, TemporaryName(name));
  DT_RETURN_IF_ERROR(files.MakeFolder(temporary));
  AtomicFolder made(files, place, temporary);
  if (!there.empty()) DT_RETURN_IF_ERROR(TryExchange(files, temporary, name));
  // Copied while it is still empty, so that nobody can read files that they could not read before.
  const absl::Status copied = files.CopyPermissions(place, temporary);
  if (!copied.ok() && !absl::IsNotFound(copied)) return copied;
  return made;
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : files_(other.files_),
      place_(std::move(other.place_)),
      temporary_(std::exchange(other.temporary_, "")) {}

AtomicFolder::~AtomicFolder() {
  if (!temporary_.empty()) RemoveFolder(*files_, temporary_).IgnoreError();
}

absl::Status AtomicFolder::Keep(absl::FunctionRef<bool(absl::string_view name)> drops,
                                std::vector<std::string>& folders) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> fresh, files_->List(temporary_));
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> old, files_->List(place_));
  for (const std::string& name : old) {
    const std::string from = InFolder(place_, name), to = InFolder(temporary_, name);
    if (std::find(fresh.begin(), fresh.end(), name) != fresh.end()) {
      // A broken link has no permissions to copy.
      const absl::Status copied = files_->CopyPermissions(from, to);
      if (!copied.ok() && !absl::IsNotFound(copied)) return copied;
    } else if (!drops(name)) {
      DT_RETURN_IF_ERROR(KeepOne(*files_, place_, temporary_, name, folders));
    }
  }
  return absl::OkStatus();
}

absl::Status AtomicFolder::TakePlace(absl::FunctionRef<bool(absl::string_view name)> drops,
                                     std::vector<std::string>& folders, bool& is_free) {
  const absl::StatusOr<std::vector<std::string>> old = files_->List(place_);
  if (!old.ok() && !absl::IsNotFound(old.status())) return old.status();
  if (old.ok()) DT_RETURN_IF_ERROR(Keep(drops, folders));
  DT_RETURN_IF_ERROR(files_->SyncFolder(temporary_));
  is_free = !old.ok() || old->empty();
  return is_free ? files_->Rename(temporary_, place_) : Exchange(*files_, temporary_, place_);
}

// Renames it so that nobody takes it for the leftover of a killed process.
absl::Status AtomicFolder::SetAside(const absl::Status& why) {
  constexpr int kTries = 100;
  std::string kept = std::exchange(temporary_, "");
  for (int i = 1; i <= kTries; ++i) {
    const std::string name = absl::StrCat(place_, ".new", i == 1 ? "" : absl::StrCat("-", i));
    if (!absl::IsNotFound(files_->List(name).status())) continue;
    if (!files_->Rename(kept, name).ok()) continue;
    kept = name;
    break;
  }
  return absl::UnavailableError(
      absl::StrCat(why.message(), "; all that is new is in '", kept, "': move it from there"));
}

absl::Status AtomicFolder::Commit(absl::FunctionRef<bool(absl::string_view name)> drops) {
  std::vector<std::string> folders;
  bool is_free = true;
  const absl::Status taken = TakePlace(drops, folders, is_free);
  if (!taken.ok()) return SetAside(taken);
  // After the exchange, this is the name of the old folder.
  const std::string removed = std::exchange(temporary_, "");
  const absl::Status synced = files_->SyncFolder(ParentFolder(place_));
  if (!synced.ok()) {
    return absl::Status(synced.code(), absl::StrCat("the new '", place_, "' is there, but may not ",
                                                    "outlast a crash: ", synced.message()));
  }
  if (is_free) return absl::OkStatus();
  const absl::Status kept = KeepLate(*files_, removed, place_, folders, drops);
  if (!kept.ok()) {
    return absl::UnavailableError(absl::StrCat("the new '", place_, "' is there; the old one, '",
                                               removed, "', stays: ", kept.message()));
  }
  RemoveFolder(*files_, removed).IgnoreError();
  return absl::OkStatus();
}

}  // namespace dtensor
