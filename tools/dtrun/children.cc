#include "dtensor/tools/dtrun/children.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::dtrun {
namespace {

constexpr std::array<int, 6> kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr std::chrono::seconds kBeforeKilling(2);

// The last signals, which the loop passes on.
volatile std::sig_atomic_t arrived[65];

void Remember(int signal) { arrived[signal] = 1; }

// Of the children that failed, the first: several may have ended before we look.
volatile std::sig_atomic_t first_failed = 0;

void RememberEnd(int, siginfo_t* info, void*) {
  const bool ok = info->si_code == CLD_EXITED && info->si_status == 0;
  if (first_failed == 0 && !ok) first_failed = info->si_pid;
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = Remember;
  for (const int signal : kPassedOn) sigaction(signal, &action, nullptr);
  action.sa_flags = SA_SIGINFO | SA_NOCLDSTOP;
  action.sa_sigaction = RememberEnd;
  sigaction(SIGCHLD, &action, nullptr);
}

// The child's side of a fork: never returns.
[[noreturn]] void Become(const std::vector<std::string>& command, const Variables& variables,
                         int out, int error, int parent, int failed) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : kPassedOn) std::signal(signal, SIG_DFL);
  std::signal(SIGCHLD, SIG_DFL);
  if (getppid() != parent) _exit(127);  // it died before that
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, 0);
  dup2(out, 1);
  dup2(error, 2);
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int why = errno;
  (void)!write(failed, &why, sizeof(why));
  _exit(127);
}

int StatusOf(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Children::~Children() { SignalAll(SIGKILL); }

absl::Status Children::Start(const std::vector<std::string>& command, const Variables& variables,
                             std::string label) {
  CatchSignals();
  int out[2], error[2], failed[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0 || pipe2(failed, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no pipe for ", label, ": ", std::strerror(errno)));
  }
  const int parent = getpid();
  const int pid = fork();
  if (pid == 0) Become(command, variables, out[1], error[1], parent, failed[1]);
  const int fork_error = errno;
  for (const int fd : {out[1], error[1], failed[1]}) close(fd);
  if (pid > 0) setpgid(pid, pid);
  int why = 0;
  const bool refused = pid > 0 && read(failed[0], &why, sizeof(why)) == sizeof(why);
  close(failed[0]);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no process for ", label, ": ", std::strerror(fork_error)));
  }
  if (refused) {
    waitpid(pid, nullptr, 0);
    close(out[0]);
    close(error[0]);
    return absl::NotFoundError(absl::StrCat(command[0], " cannot be run: ", std::strerror(why)));
  }
  for (const int fd : {out[0], error[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  children_.push_back({pid, std::move(label), {{out[0], 1, ""}, {error[0], 2, ""}}, false});
  return absl::OkStatus();
}

int Children::Wait() {
  while (!all_ended()) {
    PassSignalsOn();
    PrintAll(20);
    Reap();
    Hurry();
  }
  PrintAll(0);
  return result_;
}

bool Children::all_ended() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.ended; });
}

void Children::PassSignalsOn() {
  for (const int signal : kPassedOn) {
    if (arrived[signal] == 0) continue;
    arrived[signal] = 0;
    for (const Child& child : children_) {
      if (!child.ended) kill(-child.pid, signal);
    }
  }
}

// Whole lines, so that those of several ranks do not mix; what is left when the stream ends.
void Children::Print(Child& child, Stream& stream) {
  char buffer[65536];
  ssize_t got = 0;
  std::string text;
  const auto take = [&](size_t end) {
    absl::StrAppend(&text, "[", child.label, "] ", stream.line.substr(0, end), "\n");
    stream.line.erase(0, end + 1);
  };
  while ((got = read(stream.fd, buffer, sizeof(buffer))) > 0) {
    stream.line.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = stream.line.find('\n')) != std::string::npos;) take(end);
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    if (!stream.line.empty()) take(stream.line.size());
    close(stream.fd);
    stream.fd = -1;
  }
  for (size_t written = 0; written < text.size();) {
    const ssize_t n = write(stream.to, text.data() + written, text.size() - written);
    if (n < 0 && errno != EINTR) return;  // nobody reads
    written += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
}

void Children::PrintAll(int milliseconds) {
  std::vector<pollfd> waits;
  std::vector<std::pair<Child*, Stream*>> of;
  for (Child& child : children_) {
    for (Stream& stream : child.streams) {
      if (stream.fd < 0) continue;
      waits.push_back({stream.fd, POLLIN, 0});
      of.push_back({&child, &stream});
    }
  }
  if (waits.empty()) {
    poll(nullptr, 0, std::min(milliseconds, 5));
    return;
  }
  if (poll(waits.data(), waits.size(), milliseconds) <= 0) return;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].revents != 0) Print(*of[i].first, *of[i].second);
  }
}

void Children::Reap() {
  for (Child& child : children_) {
    int status = 0;
    if (child.ended || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.ended = true;
    kill(-child.pid, SIGKILL);  // what it started and left behind
    if (StatusOf(status) == 0) continue;
    if (result_ == 0) failed_at_ = std::chrono::steady_clock::now();
    if (result_ == 0 || child.pid == first_failed) result_ = StatusOf(status);
  }
}

void Children::Hurry() {
  if (result_ == 0) return;
  const auto since = std::chrono::steady_clock::now() - failed_at_;
  if (urged_ == 0 && since > grace_) {
    urged_ = 1;
    SignalAll(SIGTERM);
  } else if (urged_ == 1 && since > grace_ + kBeforeKilling) {
    urged_ = 2;
    SignalAll(SIGKILL);
  }
}

void Children::SignalAll(int signal) {
  for (const Child& child : children_) {
    if (child.ended) continue;
    kill(-child.pid, signal);
    if (signal == SIGTERM) kill(-child.pid, SIGCONT);  // one that is stopped hears of it as well
  }
}

}  // namespace dtensor::dtrun
