// Files that appear whole or not at all: written beside their place, synced, and renamed into it.
//
//   DT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create("report.json"));
//   DT_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
//   DT_RETURN_IF_ERROR(file.Commit());
//
// Until Commit succeeds the place has what it had. A file that is dropped before leaves nothing
// behind; a process that is killed may leave `.NAME.PID.N.tmp` in the folder.
//
// - A file that is replaced keeps its permissions, and its owner and group where the process may
//   set them; a new one has what the umask leaves of rw-rw-rw-.
// - A symbolic link stays, and what it points to is replaced, or made. Other hard links to a file
//   keep the old one.
// - What cannot be renamed over is written in place, after what it has: a device, a pipe, and an
//   open file that goes by a name, as /dev/stdout does. So is a file on which another one is
//   mounted, as one of the host in a container; Create empties that.
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
  // Opens a temporary file beside `path`. Errors: kUnavailable, with path and reason, where no file
  // can be made there, or the one that is there is a folder or may not be written.
  static absl::StatusOr<AtomicFile> Create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Appends. Errors: kUnavailable, as when the disk is full.
  absl::Status Write(const void* bytes, size_t size);
  // Blocks until the bytes are on the disk, and puts them into their place. The last call, whether
  // it succeeds or not. Errors: kUnavailable; the place then has what it had.
  absl::Status Commit();

 private:
  explicit AtomicFile(std::string path) : path_(std::move(path)) {}
  std::string path_;       // as the caller named it
  std::string place_;      // where that leads
  std::string temporary_;  // empty when written in place, and once there is none
  int file_ = -1;
};

// The whole of it. Errors: of AtomicFile.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view text);

// Whether what is written goes behind what others write there: into a device, a pipe, or an open
// file that goes by a name.
bool IsStream(const std::string& path);

// Whether a file could be made or replaced now: to be asked before long work. Changes nothing.
// Errors: of AtomicFile::Create.
absl::Status CheckWritable(const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_ATOMIC_FILE_H_
