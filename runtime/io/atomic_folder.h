// Folders that appear, or are replaced, as a whole: a new one is written next to its place, synced,
// and put into its place by one system call.
//
//   DT_ASSIGN_OR_RETURN(AtomicFolder folder, AtomicFolder::Create(files, "my-model"));
//   DT_RETURN_IF_ERROR(WriteText(files, absl::StrCat(folder.path(), "/config.json"), text));
//   DT_RETURN_IF_ERROR(folder.Commit(IsOfModel));
//
// Whenever the process or the machine goes down, the path has either all its old files or all the
// new ones. An AtomicFolder that is destroyed before Commit leaves nothing behind. A process that
// is killed may leave `.my-model.MACHINE.PID.N.tmp` (temporary_name.h), which the next AtomicFolder
// for this path removes. If the new folder cannot take its place in the end, it is not lost, but
// kept as `my-model.new`.
//
// - What the old folder has and the new one lacks is kept, except for what Commit is told to drop:
//   files and symbolic links by hard links, folders by new folders of such links. This includes
//   files that others add meanwhile, except a file that is renamed over another one at that moment.
// - The folder keeps its permissions, and so does a file that replaces one of the same name.
// - A symbolic link stays, and the folder to which it points is replaced, or created.
// - A folder that is not empty is exchanged with the new one, which not every file system can do.
//   If it cannot, Create refuses, and the caller has to choose a new folder.
//
// The caller has to sync what it writes into path(). One thread at a time.
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
  // Creates the new folder, and missing folders above it. `files` outlives it. Errors:
  // kUnavailable, with path and reason, if none can be created, or if the place is no folder, or is
  // not empty and cannot be exchanged; kInvalidArgument for the process's working directory or a
  // folder around it, which would disappear, and for one on which a file system is mounted, such as
  // a container's volume.
  static absl::StatusOr<AtomicFolder> Create(FileSystem& files, const std::string& folder);

  AtomicFolder(AtomicFolder&& other) noexcept;
  ~AtomicFolder();

  // Where the new files go until Commit.
  const std::string& path() const { return temporary_; }
  // Blocks until the new folder is in its place, on the disk. Must be the last call. `drops`
  // returns whether a name of the old folder is dropped. Errors: kUnavailable. The path then has
  // its old contents, and the message says where the complete new folder is; or the message says
  // that the new folder is in place.
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
  std::string temporary_;  // empty once it is gone
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_ATOMIC_FOLDER_H_
