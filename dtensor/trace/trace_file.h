// TraceFile: collects the traces of a world's ranks in this process, and writes them to files.
#ifndef DTENSOR_TRACE_TRACE_FILE_H_
#define DTENSOR_TRACE_TRACE_FILE_H_

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/trace/trace.h"

namespace DTENSOR_EXPORT dtensor {

// Thread-safe.
class TraceFile {
 public:
  // If the path is empty, nothing is written. "%r" in it is replaced by the rank, so that each rank
  // has a file of its own. A relative path is relative to the process's present working directory.
  explicit TraceFile(std::string path);

  // Checks, before anything is traced, that the file can be written. Errors: kUnavailable, with the
  // path.
  absl::Status Check() const;
  // Adds a rank's trace; replaces an earlier one of that rank.
  void Add(RankTrace trace);
  // Writes all traces added so far: as TraceTable if the name ends in ".txt", else as ChromeTrace.
  // Errors: kUnavailable.
  absl::Status Write();

 private:
  std::string NameFor(int rank) const;

  const std::string path_;
  const std::filesystem::path folder_;  // "%r" is not replaced in it; empty: unknown
  std::mutex mutex_;
  std::map<int, RankTrace> ranks_;
};

// The file for a rank that is a process of its own. If there are several ranks and `path` has no
// "%r", the rank is put before the extension: "trace.json" becomes "trace.3.json". If `path` is a
// stream and not a file (IsStream), it is returned as it is: all ranks write to it, one after the
// other.
std::string TracePathOfRank(absl::string_view path, int rank, int world_size);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_FILE_H_
