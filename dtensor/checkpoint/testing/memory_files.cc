#include "dtensor/checkpoint/testing/memory_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

struct MemoryFiles::Node {
  bool is_folder = false;
  std::string bytes, synced_bytes;
  std::map<std::string, NodePtr> names, synced_names;
};

class MemoryFiles::Output final : public OutputFile {
 public:
  Output(MemoryFiles& files, int file, std::string path)
      : files_(files), file_(file), path_(std::move(path)) {}
  absl::Status Append(const void* bytes, size_t size) override {
    const std::lock_guard lock(files_.mutex_);
    return files_.Do({FileCall::Kind::kAppend, path_, "", file_,
                      std::string(static_cast<const char*>(bytes), size)});
  }
  absl::Status Sync() override {
    const std::lock_guard lock(files_.mutex_);
    return files_.Do({FileCall::Kind::kSync, path_, "", file_, ""});
  }

 private:
  MemoryFiles& files_;
  const int file_;
  const std::string path_;
};

class MemoryFiles::Input final : public InputFile {
 public:
  Input(MemoryFiles& files, NodePtr node) : files_(files), node_(std::move(node)) {}
  int64_t size() const override { return static_cast<int64_t>(node_->bytes.size()); }
  absl::Status ReadAt(int64_t offset, void* bytes, size_t size) const override {
    const std::lock_guard lock(files_.mutex_);
    files_.bytes_read_ += static_cast<int64_t>(size);
    if (offset + size > node_->bytes.size()) return absl::UnavailableError("the file ends before");
    node_->bytes.copy(static_cast<char*>(bytes), size, offset);
    return absl::OkStatus();
  }

 private:
  MemoryFiles& files_;
  const NodePtr node_;
};

MemoryFiles::MemoryFiles() : root_(std::make_shared<Node>()) { root_->is_folder = true; }

MemoryFiles::NodePtr MemoryFiles::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == ".") continue;
    const auto at = node->names.find(std::string(part));
    if (at == node->names.end()) return nullptr;
    node = at->second;
  }
  return node;
}

MemoryFiles::NodePtr MemoryFiles::FolderOf(const std::string& path, std::string& name) const {
  const size_t slash = path.rfind('/');
  name = slash == path.npos ? path : path.substr(slash + 1);
  return Find(slash == path.npos ? "" : path.substr(0, slash));
}

absl::Status MemoryFiles::Do(const FileCall& call) {
  if (refuse_) DT_RETURN_IF_ERROR(refuse_(call));
  DT_RETURN_IF_ERROR(Apply(call));
  calls_.push_back(call);
  return absl::OkStatus();
}

absl::Status MemoryFiles::Apply(const FileCall& call) {
  const absl::Status not_found = absl::NotFoundError(absl::StrCat("there is no '", call.path, "'"));
  std::string name;
  const NodePtr folder = FolderOf(call.path, name);
  switch (call.kind) {
    case FileCall::Kind::kAppend:
      files_[call.file]->bytes += call.bytes;
      return absl::OkStatus();
    case FileCall::Kind::kSync:
      files_[call.file]->synced_bytes = files_[call.file]->bytes;
      return absl::OkStatus();
    case FileCall::Kind::kSyncFolder: {
      const NodePtr node = Find(call.path);
      if (node == nullptr) return not_found;
      node->synced_names = node->names;
      return absl::OkStatus();
    }
    case FileCall::Kind::kMakeFolder:
    case FileCall::Kind::kCreate: {
      if (folder == nullptr) return not_found;
      if (folder->names.contains(name)) return absl::AlreadyExistsError(call.path);
      auto node = std::make_shared<Node>();
      node->is_folder = call.kind == FileCall::Kind::kMakeFolder;
      if (!node->is_folder) files_[call.file] = node;
      folder->names[name] = std::move(node);
      return absl::OkStatus();
    }
    case FileCall::Kind::kRename:
    case FileCall::Kind::kExchange:
    case FileCall::Kind::kLink:
    case FileCall::Kind::kCopyPermissions:
      return ApplyToTwo(call);
    default: {
      if (folder == nullptr || !folder->names.contains(name)) return not_found;
      if (!folder->names[name]->names.empty()) return absl::AlreadyExistsError(call.path);
      folder->names.erase(name);
      return absl::OkStatus();
    }
  }
}

absl::Status MemoryFiles::ApplyToTwo(const FileCall& call) {
  std::string name, to_name;
  const NodePtr folder = FolderOf(call.path, name), to = FolderOf(call.to, to_name);
  const bool is_there = folder != nullptr && folder->names.contains(name);
  if (!is_there || to == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no '", call.path, "'"));
  }
  const auto there = to->names.find(to_name);
  const bool is_taken = there != to->names.end();
  switch (call.kind) {
    case FileCall::Kind::kExchange:
      if (!is_taken) return absl::NotFoundError(absl::StrCat("there is no '", call.to, "'"));
      std::swap(folder->names[name], there->second);
      return absl::OkStatus();
    case FileCall::Kind::kLink:
      if (is_taken) return absl::AlreadyExistsError(call.to);
      if (folder->names[name]->is_folder) return absl::UnavailableError("it is a folder");
      to->names[to_name] = folder->names[name];
      return absl::OkStatus();
    case FileCall::Kind::kCopyPermissions:
      return absl::OkStatus();
    default:
      if (is_taken && there->second->is_folder && !there->second->names.empty()) {
        return absl::AlreadyExistsError(call.to);
      }
      to->names[to_name] = folder->names[name];
      folder->names.erase(name);
      return absl::OkStatus();
  }
}

absl::Status MemoryFiles::MakeFolder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kMakeFolder, path, "", 0, ""});
}

absl::StatusOr<std::unique_ptr<OutputFile>> MemoryFiles::CreateFile(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const int file = next_file_++;
  DT_RETURN_IF_ERROR(Do({FileCall::Kind::kCreate, path, "", file, ""}));
  return std::make_unique<Output>(*this, file, path);
}

absl::StatusOr<std::unique_ptr<InputFile>> MemoryFiles::OpenFile(const std::string& path) {
  const std::lock_guard lock(mutex_);
  NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("there is no '", path, "'"));
  if (node->is_folder) return absl::UnavailableError(absl::StrCat("'", path, "' is a folder"));
  return std::make_unique<Input>(*this, std::move(node));
}

absl::StatusOr<std::vector<std::string>> MemoryFiles::List(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = Find(folder);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("there is no '", folder, "'"));
  if (!node->is_folder) return absl::UnavailableError(absl::StrCat("'", folder, "' is no folder"));
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

absl::Status MemoryFiles::SyncFolder(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kSyncFolder, folder, "", 0, ""});
}

absl::Status MemoryFiles::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kRename, from, to, 0, ""});
}

absl::Status MemoryFiles::Remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kRemove, path, "", 0, ""});
}

absl::Status MemoryFiles::Exchange(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kExchange, a, b, 0, ""});
}

absl::Status MemoryFiles::Link(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kLink, from, to, 0, ""});
}

absl::Status MemoryFiles::CopyPermissions(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  return Do({FileCall::Kind::kCopyPermissions, from, to, 0, ""});
}

void MemoryFiles::set_refuse(std::function<absl::Status(const FileCall&)> refuse) {
  const std::lock_guard lock(mutex_);
  refuse_ = std::move(refuse);
}

std::vector<FileCall> MemoryFiles::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

// Advances `seed`.
void MemoryFiles::Crash(Node& node, CrashKind kind, uint64_t& seed) {
  const auto next = [&seed] {
    return (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33;
  };
  const bool some = kind == CrashKind::kSomeOfIt;
  size_t kept = node.synced_bytes.size();
  if (some && node.bytes.size() > kept) kept += next() % (node.bytes.size() - kept + 1);
  node.bytes.resize(kept);
  const bool keeps_names = kind == CrashKind::kNames || (some && next() % 2 == 0);
  if (!keeps_names) node.names = node.synced_names;
  for (const auto& [name, child] : node.names) Crash(*child, kind, seed);
}

std::unique_ptr<MemoryFiles> MemoryFiles::AfterCrash(const std::vector<FileCall>& calls,
                                                     size_t count, CrashKind kind, uint64_t seed) {
  auto files = std::make_unique<MemoryFiles>();
  for (size_t i = 0; i < count; ++i) files->Apply(calls[i]).IgnoreError();  // they succeeded
  Crash(*files->root_, kind, seed);
  return files;
}

void MemoryFiles::CollectPaths(const Node& node, const std::string& path,
                               std::vector<std::string>& paths) const {
  if (!node.is_folder) paths.push_back(path);
  for (const auto& [name, child] : node.names) {
    CollectPaths(*child, path.empty() ? name : absl::StrCat(path, "/", name), paths);
  }
}

std::vector<std::string> MemoryFiles::Paths() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> paths;
  CollectPaths(*root_, "", paths);
  return paths;
}

std::string MemoryFiles::Bytes(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return Find(path)->bytes;
}

void MemoryFiles::SetBytes(const std::string& path, std::string bytes) {
  const std::lock_guard lock(mutex_);
  Find(path)->bytes = std::move(bytes);
}

int64_t MemoryFiles::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

}  // namespace dtensor
