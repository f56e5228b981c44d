// Files that appear as a whole or not at all: written next to their place, synced, and renamed.
//
//   DT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create("report.json"));
//   DT_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
//   DT_RETURN_IF_ERROR(file.Commit());
//
// Until Commit succeeds, the path has its old contents. An AtomicFile that is destroyed before
// leaves nothing behind; a process that is killed may leave `.NAME.PID.N.tmp` in the folder.
//
// - A file that is replaced keeps its permissions, and its owner and group if the process may set
//   them; a new one gets rw-rw-rw- minus the umask.
// - A symbolic link stays, and its target is replaced, or created. Other hard links to a file keep
//   the old one.
// - What cannot be renamed over is written in place, by appending: a device, a pipe, and an open
//   file with a name, such as /dev/stdout. A file on which another one is mounted, such as a host's
//   file in a container, is written in place as well; Create empties it.
//
// One thread at a time.
#ifndef DTENSOR_RUNTIME_IO_ATOMIC_FILE_H_
#define DTENSOR_RUNTIME_IO_ATOMIC_FILE_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class AtomicFile {
 public:
  // Opens a temporary file next to `path`. Errors: kUnavailable, with path and reason, if no file
  // can be created there, or if the existing one is a folder or may not be written.
  static absl::StatusOr<AtomicFile> Create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Appends. Errors: kUnavailable, for example if the disk is full.
  absl::Status Write(const void* bytes, size_t size);
  // Blocks until the bytes are on the disk, and renames the file to its place. Must be the last
  // call, whether it succeeds or not. Errors: kUnavailable; the path then has its old contents.
  absl::Status Commit();

 private:
  explicit AtomicFile(std::string path) : path_(std::move(path)) {}
  std::string path_;       // as the caller gave it
  std::string place_;      // what that resolves to
  std::string temporary_;  // empty if written in place, and once it is gone
  int file_ = -1;
};

// Writes the whole file. Errors: AtomicFile's.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view text);

// Whether data written there is appended to what others write: to a device, a pipe, or an open file
// with a name.
bool IsStream(const std::string& path);

// Checks whether a file could be created or replaced now; call it before long work. Changes
// nothing. Errors: those of AtomicFile::Create.
absl::Status CheckWritable(const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_ATOMIC_FILE_H_
