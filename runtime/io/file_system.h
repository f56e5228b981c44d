// FileSystem: the calls by which checkpoints are written to the disk and read from it. An
// interface, so that a test can record calls, refuse them, and simulate a crash between any two.
//
// After a crash of the machine, what POSIX promises is left: the bytes of a file that was synced,
// and the names of a folder that was synced; a rename has happened completely or not at all.
//
// Any thread may call; a file belongs to one thread at a time, except for ReadAt.
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

// Written from the beginning on. Its destructor closes it.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual absl::Status Append(const void* bytes, size_t size) = 0;
  // Blocks until everything that was appended is on the disk.
  virtual absl::Status Sync() = 0;
};

class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual int64_t size() const = 0;  // when it was opened
  // Reads `size` bytes, starting at `offset`. Errors: also if the file ends before.
  virtual absl::Status ReadAt(int64_t offset, void* bytes, size_t size) const = 0;
};

// Errors of all functions: kUnavailable, with path and reason (a full disk, no permission), and
// kNotFound or kAlreadyExists where the comment says so.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // kAlreadyExists: something of that name exists.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) = 0;
  // Opens an ordinary file. kNotFound.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> OpenFile(const std::string& path) = 0;
  // The names in it, unordered, without "." and "..". kNotFound: there is no such folder.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  // Blocks until the names in the folder are on the disk.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  // Renames a file, or a folder with its contents. If `to` is a file or an empty folder, it is
  // replaced. kNotFound: there is no `from`; kAlreadyExists: `to` is a folder that is not empty.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Removes a file, or an empty folder. kNotFound; kAlreadyExists: a folder that is not empty.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Two files or folders exchange their names, atomically. kNotFound: there is no `a`, or no `b`.
  // Not every file system can do this (NFS cannot).
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  // Creates a hard link `to` to a file, or to a symbolic link. kNotFound; kAlreadyExists: `to`
  // exists.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // Gives `to` the permissions of `from`, and its owner and group if the process may set them.
  // kNotFound.
  virtual absl::Status CopyPermissions(const std::string& from, const std::string& to) = 0;
  // The path with all symbolic links resolved, including links to things that do not exist yet.
  virtual absl::StatusOr<std::string> Resolve(const std::string& path) = 0;
  // Whether something is mounted there, so that nothing can be renamed to it. False if that is
  // unknown.
  virtual bool IsMountRoot(const std::string&) { return false; }

  static FileSystem& OfThisMachine();
};

// Returns the whole text of a file of at most `most` bytes. Errors: FileSystem's; kInvalidArgument
// for a longer file.
absl::StatusOr<std::string> ReadText(FileSystem& files, const std::string& path, int64_t most);
// Creates a new file with this text, and syncs it. Errors: FileSystem's.
absl::Status WriteText(FileSystem& files, const std::string& path, const std::string& text);
// The folder that contains a path: "." for "a", "/" for "/a". Of ".", "/" and "": the same path.
std::string ParentFolder(absl::string_view path);
// The absolute path, for use after the process has changed its working directory. Does not resolve
// links. Returns `path` itself if it is empty, or if the working directory is unknown.
std::string AbsolutePath(const std::string& path);
// Creates the folder and all missing folders above it, and syncs each. Errors: FileSystem's.
absl::Status MakeFolders(FileSystem& files, const std::string& path);
// Removes a folder with its contents; a symbolic link is removed, but not its target. It is no
// error if something is already gone. Errors: FileSystem's.
absl::Status RemoveFolder(FileSystem& files, const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_FILE_SYSTEM_H_
