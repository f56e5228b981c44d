// Children: the processes that dtrun starts, their output, and their end.
#ifndef DTENSOR_TOOLS_DTRUN_CHILDREN_H_
#define DTENSOR_TOOLS_DTRUN_CHILDREN_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dtensor::dtrun {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Each leads a process group, and is killed when dtrun dies. One object at a time.
class Children {
 public:
  // `grace`: after one process has failed, how long the others may take to end by themselves. Then
  // they are asked to end (SIGTERM), and killed 2 s later.
  explicit Children(std::chrono::duration<double> grace);
  ~Children();  // kills processes that still run, and those that they started

  // Starts a program, with these variables in addition to dtrun's own. Its lines are printed with
  // `label` in front. Errors: kNotFound for a program that cannot be run, kResourceExhausted.
  absl::Status Start(const std::vector<std::string>& command, const Variables& variables,
                     std::string label);
  // Prints until all have ended; passes signals on, and kills all if a second one, more than 1 s
  // later, tells us to end. If nobody reads what ranks print, they wait. Once they were told to
  // end, and all have, remaining output for a stream from which nobody has read for 5 s is dropped.
  // Returns 128 plus the signal number of the first process that a signal killed, unless the signal
  // was ours; else the exit status of the first that failed; 0 if none did.
  int Wait();
  // After Wait: the label of the process whose status it returned.
  const std::string& failed() const { return failed_; }
  // Prints a line of ours on stderr, as Wait prints those of processes.
  void Say(absl::string_view line) { Write(2, absl::StrCat(line, "\n")); }
  bool interrupted() const;  // whether a signal has told us to end

 private:
  struct Stream {
    int fd = -1;
    int to = 1;  // our stdout or stderr
    std::string line;
  };
  struct Child {
    int pid = -1;
    std::string label;
    Stream streams[2];
    bool ended = false;
  };

  void Look();  // periodic work, during every wait
  void PassSignalsOn();
  void NoteInterrupt();  // kills all if it is not the first
  void Print(Child& child, Stream& stream);
  void PrintLeft();
  void Write(int to, absl::string_view text);
  bool PrintAll(int milliseconds);  // false if there was nothing
  void Reap();
  void Fail(const Child& child, int status);
  void Hurry();
  void SignalAll(int signal);
  bool all_ended() const;

  const std::chrono::duration<double> grace_;
  std::vector<Child> children_;
  int result_ = 0;
  std::string failed_;
  bool is_killed_ = false;     // that rank
  int urged_ = 0;              // 1: asked to end, 2: killed
  bool told_to_end_ = false;   // by us, or by a forwarded signal
  bool interrupted_ = false;   // by a forwarded signal
  bool nobody_reads_[3] = {};  // by stream
  std::chrono::steady_clock::time_point looked_;
  std::chrono::steady_clock::time_point failed_at_, interrupted_at_;
};

}  // namespace dtensor::dtrun

#endif  // DTENSOR_TOOLS_DTRUN_CHILDREN_H_
