// Processes of rank_program that a test starts, watches, and never leaves behind.
#ifndef DTENSOR_TESTS_PROCESSES_RANK_PROCESSES_H_
#define DTENSOR_TESTS_PROCESSES_RANK_PROCESSES_H_

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtensor::processes {

using Clock = std::chrono::steady_clock;  // the same in all processes of a machine
using Variables = std::vector<std::pair<std::string, std::string>>;

double Now();  // seconds of Clock

// Dies with this process; is killed when it goes out of scope.
class RankProcess {
 public:
  RankProcess(const std::vector<std::string>& command, const Variables& variables);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;

  void Signal(int signal) const;
  // Until it has printed a line that begins so, or has ended, or Clock says `until`. The line's
  // rest, or "none".
  std::string AwaitLine(absl::string_view start, double until);
  // Until it has ended; false if it has not by then.
  bool AwaitEnd(double until);
  const std::string& output() const { return output_; }
  int status() const { return status_; }  // as of waitpid, if it has ended

 private:
  bool Read(double until);  // false at the end of its output, or at `until`
  int pid_ = -1, fd_ = -1, status_ = 0;
  bool ended_ = false;
  std::string output_;
};

}  // namespace dtensor::processes

#endif  // DTENSOR_TESTS_PROCESSES_RANK_PROCESSES_H_
