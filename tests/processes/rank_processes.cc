#include "dtensor/tests/processes/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "dtensor/runtime/core/status.h"

namespace dtensor::processes {
namespace {

// Pointers to what `texts` has, for exec.
std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Our environment, with `variables` in place of its own.
std::vector<std::string> Environment(const Variables& variables) {
  std::vector<std::string> all;
  for (char** known = environ; *known != nullptr; ++known) {
    const absl::string_view text = *known;
    const bool is_set = std::any_of(variables.begin(), variables.end(), [&](const auto& variable) {
      return text.substr(0, text.find('=')) == variable.first;
    });
    if (!is_set) all.push_back(std::string(text));
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

}  // namespace

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

RankProcess::RankProcess(const std::vector<std::string>& command, const Variables& variables) {
  int ends[2];
  DT_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  const std::vector<std::string> environment = Environment(variables);
  const std::vector<char*> arguments = Pointers(command), settings = Pointers(environment);
  pid_ = fork();
  DT_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    execve(arguments[0], arguments.data(), settings.data());
    _exit(127);
  }
  close(ends[1]);
  fd_ = ends[0];
}

RankProcess::~RankProcess() {
  if (!ended_) Signal(SIGKILL);
  AwaitEnd(Now() + 10);
  close(fd_);
}

void RankProcess::Signal(int signal) const {
  if (!ended_) kill(pid_, signal);
}

bool RankProcess::Read(double until) {
  const double left = std::clamp(until - Now(), 0.0, 1000.0);
  pollfd wait = {fd_, POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(left * 1000)) <= 0) return Now() < until;
  char buffer[4096];
  const ssize_t got = read(fd_, buffer, sizeof(buffer));
  if (got > 0) output_.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

std::string RankProcess::AwaitLine(absl::string_view start, double until) {
  const std::string wanted = "\n" + std::string(start);
  while (true) {
    const std::string lines = "\n" + output_;
    const size_t found = lines.find(wanted);
    const size_t end = lines.find('\n', found == lines.npos ? found : found + 1);
    if (found != lines.npos && end != lines.npos) {
      return lines.substr(found + wanted.size(), end - found - wanted.size());
    }
    if (!Read(until)) return "none";
  }
}

bool RankProcess::AwaitEnd(double until) {
  while (!ended_) {
    ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    if (ended_) break;
    if (Now() >= until) return false;
    if (!Read(std::min(until, Now() + 0.02))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  while (Read(Now())) {
  }
  return true;
}

}  // namespace dtensor::processes
