// Folders that appear, or are replaced, as a whole: a new one is written beside its place, synced,
// and takes it in one call.
//
//   DT_ASSIGN_OR_RETURN(AtomicFolder folder, AtomicFolder::Create(files, "my-model"));
//   DT_RETURN_IF_ERROR(WriteText(files, absl::StrCat(folder.path(), "/config.json"), text));
//   DT_RETURN_IF_ERROR(folder.Commit(IsOfModel));
//
// Whenever the process, or the machine, goes down, the place has all that it had, or all that is
// new. One that is dropped leaves nothing behind; a process that is killed may leave
// `.my-model.MACHINE.PID.N.tmp` (temporary_name.h), which the next one of this folder removes. What
// was written is not lost where it cannot take its place in the end: it is then `my-model.new`.
//
// - What the old folder has and the new one lacks is kept, unless Commit is told otherwise: files
//   and symbolic links by another name for the same file, folders by folders of such. So is what
//   comes into it meanwhile, but for a file that is renamed over another one in these moments.
// - The folder keeps its permissions, and so does a file that replaces one of its name.
// - A symbolic link stays, and the folder that it leads to is replaced, or made.
// - A folder with something in it changes places with the new one, which not every file system can:
//   then Create refuses it, and a new folder has to be taken.
//
// What is written into path() is synced by who writes it. One thread at a time.
#ifndef DTENSOR_RUNTIME_IO_ATOMIC_FOLDER_H_
#define DTENSOR_RUNTIME_IO_ATOMIC_FOLDER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"

namespace DTENSOR_EXPORT dtensor {

class AtomicFolder {
 public:
  // Makes the new folder, and the folders in which it lies. `files` outlives it. Errors:
  // kUnavailable, with path and reason, where none can be made, or the place is no folder, or has
  // something in it and cannot change places; kInvalidArgument for the folder in which the process
  // runs, or one around it: it would be gone; and for one where a file system is mounted, as a
  // container's volume is.
  static absl::StatusOr<AtomicFolder> Create(FileSystem& files, const std::string& folder);

  AtomicFolder(AtomicFolder&& other) noexcept;
  ~AtomicFolder();

  // Where the new files go until Commit.
  const std::string& path() const { return temporary_; }
  // Blocks until the new folder is in its place, on the disk. The last call. `drops`: which names
  // of the old folder are not kept. Errors: kUnavailable; the place then has what it had, and the
  // message says where the new folder is, whole; or it says that the new one is there.
  absl::Status Commit(absl::FunctionRef<bool(absl::string_view name)> drops);

 private:
  AtomicFolder(FileSystem& files, std::string place, std::string temporary)
      : files_(&files), place_(std::move(place)), temporary_(std::move(temporary)) {}
  absl::Status Keep(absl::FunctionRef<bool(absl::string_view name)> drops,
                    std::vector<std::string>& folders);
  absl::Status TakePlace(absl::FunctionRef<bool(absl::string_view name)> drops,
                         std::vector<std::string>& folders, bool& is_free);
  absl::Status SetAside(const absl::Status& why);

  FileSystem* files_;
  std::string place_;
  std::string temporary_;  // empty once there is none
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_ATOMIC_FOLDER_H_
