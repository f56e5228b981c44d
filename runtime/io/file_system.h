// FileSystem: the calls by which checkpoints come to the disk and from it. An interface, so that a
// test can record them, refuse them, and play a crash between any two.
//
// What a crash of the machine leaves is what POSIX promises: the bytes of a file that was synced,
// and the names of a folder that was synced; a rename is seen whole or not at all.
//
// Any thread may call; a file belongs to one thread at a time, but for ReadAt.
#ifndef DTENSOR_RUNTIME_IO_FILE_SYSTEM_H_
#define DTENSOR_RUNTIME_IO_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Written from its begin on. One that is dropped is closed.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual absl::Status Append(const void* bytes, size_t size) = 0;
  // Blocks until what was appended is on the disk.
  virtual absl::Status Sync() = 0;
};

class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual int64_t size() const = 0;  // when it was opened
  // All `size` bytes from `offset` on. Errors: also where the file ends before.
  virtual absl::Status ReadAt(int64_t offset, void* bytes, size_t size) const = 0;
};

// Errors of all: kUnavailable, with path and reason (a full disk, no permission), and where a line
// says so kNotFound or kAlreadyExists.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // kAlreadyExists: there is something of that name.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) = 0;
  // An ordinary file. kNotFound.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> OpenFile(const std::string& path) = 0;
  // The names in it, in no order, without "." and "..". kNotFound: there is no such folder.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  // Blocks until the names in it are on the disk.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  // A file, or a folder with all that is in it. What is there is replaced if it is a file, or a
  // folder without anything. kNotFound: there is no `from`; kAlreadyExists: `to` is a folder with
  // something in it.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // A file, or an empty folder. kNotFound; kAlreadyExists: a folder with something in it.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Two files or folders take each other's names, at once: whoever looks sees both or neither done.
  // kNotFound: there is no `a`, or no `b`. Not every file system of the machine can (NFS cannot).
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  // Another name, `to`, for a file, or for a symbolic link. kNotFound; kAlreadyExists: there is
  // something called `to`.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // `to` gets the permissions of `from`, and its owner and group where the process may set them.
  // kNotFound.
  virtual absl::Status CopyPermissions(const std::string& from, const std::string& to) = 0;
  // Where the path leads, without symbolic links, also those that lead to what is not there yet.
  virtual absl::StatusOr<std::string> Resolve(const std::string& path) = 0;
  // Whether something is mounted there: then nothing takes its place. False where that is unknown.
  virtual bool IsMountRoot(const std::string&) { return false; }

  static FileSystem& OfThisMachine();
};

// The whole text of a file of at most `most` bytes. Errors: of FileSystem; kInvalidArgument for
// more.
absl::StatusOr<std::string> ReadText(FileSystem& files, const std::string& path, int64_t most);
// A new file with this text, synced. Errors: of FileSystem.
absl::Status WriteText(FileSystem& files, const std::string& path, const std::string& text);
// What a path lies in: "." of "a", "/" of "/a"; of ".", "/" and "" these themselves.
std::string ParentFolder(absl::string_view path);
// The path from the root on, for who goes on with it when the process may run in another folder
// than now. Links stay. Itself where it is empty, or nobody knows that folder.
std::string AbsolutePath(const std::string& path);
// The folder and those that it lies in, as far as they are missing, each synced. Errors: of
// FileSystem.
absl::Status MakeFolders(FileSystem& files, const std::string& path);
// A folder with all that is in it; a symbolic link is removed, and not what it leads to. What is
// gone is no error. Errors: of FileSystem.
absl::Status RemoveFolder(FileSystem& files, const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_FILE_SYSTEM_H_
