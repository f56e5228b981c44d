// MemoryFiles: a file system in memory, for tests of writing and reading. It records every call
// that changes something, so that a test can ask what a crash after any of them would leave. It can
// also refuse calls, and lets a test change bytes.
#ifndef DTENSOR_CHECKPOINT_TESTING_MEMORY_FILES_H_
#define DTENSOR_CHECKPOINT_TESTING_MEMORY_FILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/io/file_system.h"

namespace dtensor {

// A call that changes something.
struct FileCall {
  enum class Kind {
    kMakeFolder,
    kCreate,
    kAppend,
    kSync,
    kSyncFolder,
    kRename,
    kRemove,
    kExchange,
    kLink,
    kCopyPermissions,  // nothing has any
  };
  Kind kind;
  std::string path, to;  // `to`: of calls with two paths
  int file = 0;          // of kCreate, kAppend, kSync: the file's number, which survives renames
  std::string bytes;     // of kAppend
};

// What happens to data that was not synced.
enum class CrashKind {
  kNothing,   // all of it is lost: names in folders as well as bytes
  kNames,     // all names are there, as after a crash with a metadata journal; bytes are lost
  kSomeOfIt,  // each folder and each file may or may not be there, with bytes up to some place
};

// Thread-safe.
class MemoryFiles : public FileSystem {
 public:
  MemoryFiles();

  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<InputFile>> OpenFile(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::Status SyncFolder(const std::string& folder) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status Exchange(const std::string& a, const std::string& b) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status CopyPermissions(const std::string& from, const std::string& to) override;
  absl::StatusOr<std::string> Resolve(const std::string& path) override { return path; }

  // Called before each call. If it returns an error, the call returns that error and changes
  // nothing.
  void set_refuse(std::function<absl::Status(const FileCall&)> refuse);
  std::vector<FileCall> calls() const;

  // The files that exist when the machine comes up again after the first `count` of `calls`. `seed`
  // determines the random part of it.
  static std::unique_ptr<MemoryFiles> AfterCrash(const std::vector<FileCall>& calls, size_t count,
                                                 CrashKind kind, uint64_t seed);

  // The paths of all files, and the bytes of one.
  std::vector<std::string> Paths() const;
  std::string Bytes(const std::string& path) const;
  void SetBytes(const std::string& path, std::string bytes);
  int64_t bytes_read() const;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  class Output;
  class Input;

  NodePtr Find(const std::string& path) const;
  // The folder of a path. Sets `name` to the name in it.
  NodePtr FolderOf(const std::string& path, std::string& name) const;
  absl::Status Do(const FileCall& call);     // with the lock
  absl::Status Apply(const FileCall& call);  // without asking, and noting
  absl::Status ApplyToTwo(const FileCall& call);
  static void Crash(Node& node, CrashKind kind, uint64_t& seed);
  void CollectPaths(const Node& node, const std::string& path,
                    std::vector<std::string>& paths) const;

  mutable std::mutex mutex_;
  NodePtr root_;
  std::map<int, NodePtr> files_;  // by number
  int next_file_ = 0;
  std::vector<FileCall> calls_;
  std::function<absl::Status(const FileCall&)> refuse_;
  int64_t bytes_read_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_TESTING_MEMORY_FILES_H_
