#include "dtensor/runtime/io/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/descriptor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/mount_root.h"

namespace dtensor {
namespace {

namespace fs = std::filesystem;

// The error of a failed call, from its errno; `what` is a verb.
absl::Status Failed(absl::string_view what, absl::string_view path, int reason = errno) {
  const std::string message =
      absl::StrCat("cannot ", what, " '", path, "': ", std::strerror(reason));
  if (reason == EMFILE || reason == ENFILE) {
    return absl::UnavailableError(
        absl::StrCat(message, "; raise the limit of open files (ulimit -n)"));
  }
  if (reason == ENOENT) return absl::NotFoundError(message);
  if (reason == EEXIST || reason == ENOTEMPTY) return absl::AlreadyExistsError(message);
  return absl::UnavailableError(message);
}

class Descriptor {
 public:
  explicit Descriptor(int file) : file_(file) {}
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  const int file_;
};

class RealOutputFile final : public OutputFile {
 public:
  RealOutputFile(int file, std::string path) : file_(file), path_(std::move(path)) {}

  absl::Status Append(const void* bytes, size_t size) override {
    return WriteAll(file_.get(), bytes, size) ? absl::OkStatus() : Failed("write", path_);
  }
  absl::Status Sync() override {
    return SyncAll(file_.get()) ? absl::OkStatus() : Failed("sync", path_);
  }

 private:
  const Descriptor file_;
  const std::string path_;
};

class RealInputFile final : public InputFile {
 public:
  RealInputFile(int file, std::string path) : file_(file), path_(std::move(path)) {}

  absl::Status Init() {
    struct stat status = {};
    if (fstat(file_.get(), &status) != 0) return Failed("read", path_);
    if (!S_ISREG(status.st_mode)) {
      return absl::UnavailableError(absl::StrCat("'", path_, "' is no ordinary file"));
    }
    size_ = status.st_size;
    return absl::OkStatus();
  }
  int64_t size() const override { return size_; }
  absl::Status ReadAt(int64_t offset, void* bytes, size_t size) const override {
    auto* at = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t got = pread(file_.get(), at, size, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read", path_);
      if (got == 0) {
        return absl::UnavailableError(
            absl::StrCat("'", path_, "' ends at byte ", offset, ", before what is read"));
      }
      at += got;
      size -= got;
      offset += got;
    }
    return absl::OkStatus();
  }

 private:
  const Descriptor file_;
  const std::string path_;
  int64_t size_ = 0;
};

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Replaces the first symbolic link in a path by its target. Returns false if there is none.
bool FollowBrokenLink(fs::path& place) {
  fs::path begin;
  for (auto part = place.begin(); part != place.end(); ++part) {
    begin /= *part;
    std::error_code error;
    fs::path followed = fs::read_symlink(begin, error);
    if (error) continue;
    followed = begin.parent_path() / followed;
    for (++part; part != place.end(); ++part) followed /= *part;
    place = std::move(followed);
    return true;
  }
  return false;
}

class RealFileSystem final : public FileSystem {
 public:
  absl::Status MakeFolder(const std::string& path) override {
    return mkdir(path.c_str(), 0777) == 0 ? absl::OkStatus() : Failed("make the folder", path);
  }
  absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override {
    const int file =
        OffStandardStreams(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file < 0) return Failed("make", path);
    return std::make_unique<RealOutputFile>(file, path);
  }
  absl::StatusOr<std::unique_ptr<InputFile>> OpenFile(const std::string& path) override {
    // A pipe is refused; O_NONBLOCK avoids waiting for its writer.
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return Failed("read", path);
    auto opened = std::make_unique<RealInputFile>(file, path);
    DT_RETURN_IF_ERROR(opened->Init());
    return opened;
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    DIR* const stream = opendir(folder.c_str());
    if (stream == nullptr) return Failed("read the folder", folder);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(stream)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int reason = errno;
    closedir(stream);
    if (reason != 0) return Failed("read the folder", folder, reason);
    return names;
  }
  absl::Status SyncFolder(const std::string& folder) override {
    const Descriptor file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems do not support this call for folders; that is no error.
    if (file.get() < 0) return Failed("sync the folder", folder);
    const bool synced =
        SyncAll(file.get()) || errno == EINVAL || errno == ENOTSUP || errno == ENOSYS;
    return synced ? absl::OkStatus() : Failed("sync the folder", folder);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return Failed(absl::StrCat("rename '", from, "' to"), to);
  }
  absl::Status Remove(const std::string& path) override {
    return std::remove(path.c_str()) == 0 ? absl::OkStatus() : Failed("remove", path);
  }
  absl::Status Exchange(const std::string& a, const std::string& b) override {
    if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
      return absl::OkStatus();
    }
    return Failed(absl::StrCat("exchange '", a, "' and"), b);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    if (link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return Failed(absl::StrCat("give '", from, "' the name"), to);
  }
  absl::Status CopyPermissions(const std::string& from, const std::string& to) override {
    struct stat status = {};
    if (stat(from.c_str(), &status) != 0) return Failed("read the permissions of", from);
    // The owner first: changing it may clear bits of the mode.
    if (chown(to.c_str(), status.st_uid, status.st_gid) != 0) {
      (void)!chown(to.c_str(), -1, status.st_gid);  // as far as it is allowed
    }
    if (chmod(to.c_str(), status.st_mode & 07777) == 0) return absl::OkStatus();
    return Failed("set the permissions of", to);
  }
  absl::StatusOr<std::string> Resolve(const std::string& path) override {
    constexpr int kMostLinks = 40;  // the kernel's own limit
    fs::path place = path;
    for (int i = 0; i < kMostLinks; ++i) {
      std::error_code error;
      place = fs::weakly_canonical(place, error);
      if (error) return Failed("find", path, error.value());
      if (!FollowBrokenLink(place)) return WithoutSlash(place.native());
    }
    return Failed("find", path, ELOOP);
  }
  bool IsMountRoot(const std::string& path) override { return dtensor::IsMountRoot(path); }
};

}  // namespace

FileSystem& FileSystem::OfThisMachine() {
  static RealFileSystem* const files = new RealFileSystem;  // threads may outlive main()
  return *files;
}

absl::StatusOr<std::string> ReadText(FileSystem& files, const std::string& path, int64_t most) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> file, files.OpenFile(path));
  if (file->size() > most) {
    return InvalidArgument({"'", path, "' has ", absl::StrCat(file->size()), " B; at most ",
                            absl::StrCat(most), " are read"});
  }
  std::string text(file->size(), '\0');
  DT_RETURN_IF_ERROR(file->ReadAt(0, text.data(), text.size()));
  return text;
}

absl::Status WriteText(FileSystem& files, const std::string& path, const std::string& text) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, files.CreateFile(path));
  DT_RETURN_IF_ERROR(file->Append(text.data(), text.size()));
  return file->Sync();
}

std::string ParentFolder(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  return error ? path : whole.native();
}

absl::Status MakeFolders(FileSystem& files, const std::string& path) {
  if (files.List(path).ok()) return absl::OkStatus();
  const std::string parent = ParentFolder(path);
  absl::Status made = files.MakeFolder(path);
  if (absl::IsNotFound(made) && parent != path) {
    DT_RETURN_IF_ERROR(MakeFolders(files, parent));
    made = files.MakeFolder(path);
  }
  // Another process may have made it first; but what is there may also be a file.
  if (absl::IsAlreadyExists(made)) return files.List(path).status();
  DT_RETURN_IF_ERROR(made);
  return files.SyncFolder(parent);
}

absl::Status RemoveFolder(FileSystem& files, const std::string& path) {
  // Tried first, so that of a link only the link is removed, not what is in the folder it leads to.
  absl::Status removed = files.Remove(path);
  if (absl::IsAlreadyExists(removed)) {
    const absl::StatusOr<std::vector<std::string>> names = files.List(path);
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    DT_RETURN_IF_ERROR(names.status());
    for (const std::string& name : *names) {
      DT_RETURN_IF_ERROR(RemoveFolder(files, absl::StrCat(path, "/", name)));
    }
    removed = files.Remove(path);
  }
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

}  // namespace dtensor
