#include "dtensor/tools/dtrun/children.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor::dtrun {
namespace {

constexpr std::array<int, 7> kPassedOn = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                          SIGUSR1, SIGUSR2, SIGTSTP};
constexpr std::chrono::seconds kBeforeKilling(2);
constexpr std::chrono::seconds kBetweenTwo(1);  // one that two send is no second one
constexpr int kMostLeft = 64;                   // reads
constexpr std::chrono::seconds kBeforeDropping(5);
constexpr std::chrono::milliseconds kSlice(20);
constexpr size_t kLongestLine = 1 << 20;

// Signals that have arrived, for the loop to pass on.
volatile std::sig_atomic_t arrived[65];

void Remember(int signal) { arrived[signal] = 1; }

// The first child that failed: several may have ended before we look. (Signals do not queue, so
// Reap finds those that were missed.)
volatile std::sig_atomic_t first_failed = 0;

void RememberEnd(int, siginfo_t* info, void*) {
  const bool ok = info->si_code == CLD_EXITED && info->si_status == 0;
  if (first_failed == 0 && !ok) first_failed = info->si_pid;
}

bool TellsToEnd(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

// As nohup ignores SIGHUP, and a shell SIGINT in the background: for the ranks as for dtrun.
bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = Remember;
  for (const int signal : kPassedOn) {
    if (!IsIgnored(signal)) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);  // ranks go on if nobody reads their output
  action.sa_flags = SA_SIGINFO | SA_NOCLDSTOP;
  action.sa_sigaction = RememberEnd;
  sigaction(SIGCHLD, &action, nullptr);
  sigset_t caught;  // the parent process may have blocked them
  sigemptyset(&caught);
  for (const int signal : kPassedOn) sigaddset(&caught, signal);
  sigaddset(&caught, SIGCHLD);
  sigprocmask(SIG_UNBLOCK, &caught, nullptr);
}

struct Pipe {
  bool Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = Socket(ends[0]);
    write = Socket(ends[1]);
    return true;
  }
  Socket read, write;
};

// The child's side of a fork: never returns.
[[noreturn]] void Become(const std::vector<std::string>& command, const Variables& variables,
                         int out, int error, int parent, int failed) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : kPassedOn) {
    if (!IsIgnored(signal)) std::signal(signal, SIG_DFL);
  }
  for (const int signal : {SIGCHLD, SIGPIPE}) std::signal(signal, SIG_DFL);
  if (getppid() != parent) _exit(127);  // dtrun died before that
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
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

// A shell whose program was killed by a signal also ends with such a status.
bool IsOfSignal(int status) { return 128 < status && status <= 128 + SIGRTMAX; }

}  // namespace

Children::Children(std::chrono::duration<double> grace) : grace_(grace) { first_failed = 0; }

Children::~Children() {
  SignalAll(SIGKILL);
  for (const Child& child : children_) {  // another process may have their other ends still
    for (const Stream& stream : child.streams) {
      if (stream.fd >= 0) close(stream.fd);
    }
  }
}

absl::Status Children::Start(const std::vector<std::string>& command, const Variables& variables,
                             std::string label) {
  CatchSignals();
  Pipe out, error, failed;
  if (!out.Open() || !error.Open() || !failed.Open()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no pipe for ", label, ": ", std::strerror(errno),
                     "; start fewer ranks, or raise the limit of open files (ulimit -n)"));
  }
  const int parent = getpid();
  const int pid = fork();
  if (pid == 0) {
    Become(command, variables, out.write.fd(), error.write.fd(), parent, failed.write.fd());
  }
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no process for ", label, ": ", std::strerror(errno),
                     "; start fewer ranks, or raise the limit of processes (ulimit -u)"));
  }
  for (Pipe* const pipe : {&out, &error, &failed}) pipe->write.Close();
  setpgid(pid, pid);
  int why = 0;
  ssize_t got = 0;
  while ((got = read(failed.read.fd(), &why, sizeof(why))) < 0 && errno == EINTR) {
  }
  if (got == sizeof(why)) {
    waitpid(pid, nullptr, 0);
    return absl::NotFoundError(absl::StrCat(command[0], " cannot be run: ", std::strerror(why)));
  }
  for (Pipe* const pipe : {&out, &error}) fcntl(pipe->read.fd(), F_SETFL, O_NONBLOCK);
  children_.push_back(
      {pid, std::move(label), {{out.read.Release(), 1, ""}, {error.read.Release(), 2, ""}}, false});
  return absl::OkStatus();
}

int Children::Wait() {
  while (!all_ended()) {
    PrintAll(static_cast<int>(kSlice.count()));
    Look();
  }
  // Prints what is left, but only as much as pipes hold: another process may have one and go on
  // writing.
  for (int turn = 0; turn < kMostLeft && PrintAll(0); ++turn) {
  }
  PrintLeft();
  PassSignalsOn();  // those that came last
  return result_;
}

void Children::Look() {
  looked_ = std::chrono::steady_clock::now();
  PassSignalsOn();
  Reap();
  Hurry();
}

bool Children::all_ended() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.ended; });
}

void Children::PassSignalsOn() {
  for (const int signal : kPassedOn) {
    if (arrived[signal] == 0) continue;
    arrived[signal] = 0;
    if (TellsToEnd(signal)) NoteInterrupt();
    SignalAll(signal);
    if (signal != SIGTSTP) continue;
    raise(SIGSTOP);  // like the ranks; who continues this process means them, too
    SignalAll(SIGCONT);
  }
}

void Children::NoteInterrupt() {
  const auto now = std::chrono::steady_clock::now();
  if (!interrupted_) interrupted_at_ = now;
  interrupted_ = told_to_end_ = true;
  if (now - interrupted_at_ <= kBetweenTwo) return;
  urged_ = 2;
  SignalAll(SIGKILL);
}

bool Children::interrupted() const {
  return interrupted_ || std::any_of(kPassedOn.begin(), kPassedOn.end(), [](int signal) {
           return arrived[signal] != 0 && TellsToEnd(signal);
         });
}

namespace {

// How many bytes to pass to one write(). To a file: all, since it never waits. To a pipe: what it
// takes at once if it has room at all, in whole lines if there are any.
size_t PieceOf(absl::string_view text, bool is_file) {
  if (is_file || text.size() <= PIPE_BUF) return text.size();
  const size_t end = text.substr(0, PIPE_BUF).rfind('\n');
  return end == absl::string_view::npos ? PIPE_BUF : end + 1;
}

}  // namespace

void Children::Write(int to, absl::string_view text) {
  struct stat about;
  const bool is_file = fstat(to, &about) == 0 && S_ISREG(about.st_mode);
  auto taken = std::chrono::steady_clock::now();
  while (!text.empty() && !nobody_reads_[to]) {
    pollfd wait = {to, POLLOUT, 0};
    const bool has_room = poll(&wait, 1, static_cast<int>(kSlice.count())) > 0;
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ >= kSlice) Look();
    if (!has_room) {
      nobody_reads_[to] = told_to_end_ && all_ended() && now - taken > kBeforeDropping;
      continue;
    }
    const ssize_t written = write(to, text.data(), PieceOf(text, is_file));
    if (written < 0 && errno != EAGAIN && errno != EINTR) return;  // its reader is gone
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    taken = now;
  }
}

// Prints what is there, at most a full pipe, so that signals and the other ranks have their turn.
// Prints whole lines, so that those of several ranks do not mix; but a part of a line when the
// stream ends, or if the line is too long.
void Children::Print(Child& child, Stream& stream) {
  static char buffer[65536];  // there is one thread; a small stack (ulimit -s) has no room
  const ssize_t got = read(stream.fd, buffer, sizeof(buffer));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const size_t known = stream.line.size();  // without an end of line
  if (got > 0) stream.line.append(buffer, static_cast<size_t>(got));
  std::string text;
  size_t begin = 0;
  const auto take = [&](size_t end) {
    const absl::string_view line = absl::string_view(stream.line).substr(begin, end - begin);
    absl::StrAppend(&text, "[", child.label, "] ", line, "\n");
    begin = end + 1;
  };
  for (size_t end = stream.line.find('\n', known); end != std::string::npos;
       end = stream.line.find('\n', begin)) {
    take(end);
  }
  const size_t left = stream.line.size() - begin;
  if (left >= kLongestLine || (got <= 0 && left > 0)) take(stream.line.size());
  stream.line.erase(0, begin);
  if (got <= 0) {
    close(stream.fd);
    stream.fd = -1;
  }
  Write(stream.to, text);
}

// Prints the rest of streams that another process keeps open: the ranks themselves have ended.
void Children::PrintLeft() {
  for (Child& child : children_) {
    for (Stream& stream : child.streams) {
      if (stream.line.empty()) continue;
      Write(stream.to, absl::StrCat("[", child.label, "] ", stream.line, "\n"));
      stream.line.clear();
    }
  }
}

bool Children::PrintAll(int milliseconds) {
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
    return false;
  }
  if (poll(waits.data(), waits.size(), milliseconds) <= 0) return false;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].revents != 0) Print(*of[i].first, *of[i].second);
  }
  return true;
}

void Children::Reap() {
  for (Child& child : children_) {
    siginfo_t ended = {};
    if (child.ended || waitid(P_PID, child.pid, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != child.pid) {
      continue;
    }
    kill(-child.pid, SIGKILL);  // processes that it left behind, while its number is in use
    int status = 0;
    waitpid(child.pid, &status, 0);
    child.ended = true;
    if (StatusOf(status) != 0) Fail(child, StatusOf(status));
  }
}

// The status of the first rank that failed counts. But ranks killed by a signal come before all
// others, since their peers may exit because of it before we notice; the first of them counts.
void Children::Fail(const Child& child, int status) {
  if (first_failed == 0) first_failed = child.pid;
  if (result_ == 0) failed_at_ = std::chrono::steady_clock::now();
  const bool killed = IsOfSignal(status) && urged_ == 0;
  if (result_ != 0 && (killed == is_killed_ ? child.pid != first_failed : !killed)) return;
  result_ = status;
  failed_ = child.label;
  is_killed_ = killed;
}

void Children::Hurry() {
  if (result_ == 0) return;
  const auto since = std::chrono::steady_clock::now() - failed_at_;
  if (urged_ == 0 && since > grace_) {
    urged_ = 1;
    told_to_end_ = true;
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
    if (signal == SIGTERM) kill(-child.pid, SIGCONT);  // stopped ranks get it as well
  }
}

}  // namespace dtensor::dtrun
