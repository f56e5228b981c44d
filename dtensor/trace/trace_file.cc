#include "dtensor/trace/trace_file.h"

#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/trace/trace_text.h"

namespace dtensor {
namespace {

std::string TextFor(const std::string& path, absl::Span<const RankTrace> ranks) {
  if (!absl::EndsWith(path, ".txt")) return ChromeTrace(ranks);
  std::string text;
  for (const RankTrace& rank : ranks) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", TraceTable(rank));
  }
  return text;
}

std::filesystem::path FolderOfProcess() {
  std::error_code error;
  return std::filesystem::current_path(error);
}

}  // namespace

TraceFile::TraceFile(std::string path) : path_(std::move(path)), folder_(FolderOfProcess()) {}

std::string TraceFile::NameFor(int rank) const {
  return folder_ / absl::StrReplaceAll(path_, {{"%r", absl::StrCat(rank)}});
}

absl::Status TraceFile::Check() const {
  return path_.empty() ? absl::OkStatus() : CheckWritable(NameFor(0));
}

void TraceFile::Add(RankTrace trace) {
  if (path_.empty()) return;
  const std::lock_guard lock(mutex_);
  const int rank = trace.rank;
  ranks_.insert_or_assign(rank, std::move(trace));
}

absl::Status TraceFile::Write() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<RankTrace>> files;
  for (const auto& [rank, trace] : ranks_) files[NameFor(rank)].push_back(trace);
  absl::Status status;
  for (const auto& [name, ranks] : files) {
    status.Update(WriteFileAtomically(name, TextFor(name, ranks)));
  }
  return status;
}

std::string TracePathOfRank(absl::string_view path, int rank, int world_size) {
  const std::string whole(path.data(), path.size());
  if (world_size == 1 || path.empty() || absl::StrContains(path, "%r")) {
    return absl::StrReplaceAll(whole, {{"%r", absl::StrCat(rank)}});
  }
  if (IsStream(whole)) return whole;
  const size_t name = whole.rfind('/') + 1;  // 0 if there is no folder
  const size_t dot = whole.rfind('.');
  const bool has_extension = dot != std::string::npos && dot > name;
  const size_t at = has_extension ? dot : whole.size();
  return absl::StrCat(whole.substr(0, at), ".", rank, whole.substr(at));
}

}  // namespace dtensor
