// TraceFile: where the ranks of a world, as far as they are of this process, leave their traces.
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
  // An empty path: nothing is written. "%r" stands for the rank: then each has a file of its own.
  // A relative path is one of the folder in which the process runs now.
  explicit TraceFile(std::string path);

  // Whether it could be written, before anything is traced. Errors: kUnavailable, with the path.
  absl::Status Check() const;
  // In place of what that rank has left before.
  void Add(RankTrace trace);
  // What the ranks have left so far: as TraceTable where the name ends in ".txt", else as
  // ChromeTrace. Errors: kUnavailable.
  absl::Status Write();

 private:
  std::string NameFor(int rank) const;

  const std::string path_;
  const std::filesystem::path folder_;  // whose "%r" is no rank; empty: nobody knows
  std::mutex mutex_;
  std::map<int, RankTrace> ranks_;
};

// The file of one rank that is a process of its own: `path`, with the rank before its extension
// where it has no "%r" and there are several ranks: "trace.json" is "trace.3.json". What is no file
// (IsStream) all ranks write into, one behind the other.
std::string TracePathOfRank(absl::string_view path, int rank, int world_size);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_FILE_H_
