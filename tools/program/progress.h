// Shows how far a long run is, and how long the rest will take, on stderr:
//
//   Progress progress("rounds", rounds, Progress::OnStderr(/*asked=*/flags.progress));
//   for (int64_t i = 0; i < rounds; ++i) { ...; progress.Report(i + 1); }
//
//   120 of 1000 rounds, 1:05 left
//
// Nothing is printed in the first two seconds of a run. On a terminal it is one line, which is
// rewritten at most twice a second, and erased at the end. Elsewhere it is a line every ten
// seconds, and only if progress was asked for.
#ifndef DTENSOR_TOOLS_PROGRAM_PROGRESS_H_
#define DTENSOR_TOOLS_PROGRAM_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtensor {

class Progress {
 public:
  struct Options {
    bool shows = false, terminal = false;
    std::function<double()> seconds;  // a clock
    std::function<void(absl::string_view)> write;
  };
  static Options OnStderr(bool asked);

  // For `total` things, called `what`; time counts from now on. Requires: total >= 1.
  Progress(std::string what, int64_t total, Options options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` things are done; `more` is printed after that: "loss 2.31". One thread at a time.
  void Report(int64_t done, absl::string_view more = "");

 private:
  const std::string what_;
  const int64_t total_;
  const Options options_;
  double begin_, next_;  // seconds of the clock
  bool written_ = false;
};

// "0:07", "1:05", "2:00:00". Requires: seconds >= 0.
std::string DurationText(double seconds);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_PROGRESS_H_
