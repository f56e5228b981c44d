// Faults at random moments in worlds of processes: whatever happens to a rank, every other rank
// soon returns an error that names it and the operation, and nothing is left behind.
//
//   faults --program=rank_program [--times=2] [--seed=N] [--only=FAULT] [--way=WAY] [--timeout=3]
//          [--grace=4]
//
// Each fault is tried --times times, in redistributions, barriers, backward passes and reads of
// values in turn. Errors must come within 1 s of a death, or within the time-out plus 1 s of a
// silence, plus --grace seconds for busy machines. docs/errors.md has the counts of a full run.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/tests/processes/proxy.h"
#include "dtensor/tests/processes/rank_processes.h"

namespace dtensor::processes {
namespace {

constexpr int kRanks = 3;
const char* const kMoments[] = {"redistribute", "barrier", "backward", "read"};

struct Fault {
  std::string name;
  // What every other rank says; V is the rank that it happens to. Of the operator, see Check().
  std::string says;
  double within;    // seconds until they do, after the time-out if it is silent
  std::string own;  // what the rank itself says, if anything
};
const std::string kGone = "rank V: its process is gone";
const std::string kSilent = "rank V: (silent for|its process has given no sign of life for)";
const std::string kOther = "rank [0-2]: ";
const std::vector<Fault> kFaults = {
    {"kill", kGone, 1, ""},
    {"abort", kGone, 1, ""},
    {"stop", kSilent, 1, ""},
    {"network_closes", kGone, 1, kOther + "its process is gone"},
    {"network_stops", kSilent, 1, kOther + "(silent for|its process has given no sign)"},
    {"return", "rank V: the dog ate it", 1, ""},
    {"leave", "rank V: returned while rank", 1, ""},
    {"disagree", "ranks disagree about call.*rank V makes", 1, "ranks disagree about call"},
    {"suspend", "", 0, ""},
    {"call", kGone, 1, ""},  // in the midst of a call of NCCL
};

bool IsOfNccl(const Fault& fault) { return fault.name == "call"; }
bool IsNetwork(const Fault& fault) { return fault.name.rfind("network", 0) == 0; }
bool IsSilent(const Fault& fault) { return fault.says == kSilent; }

struct Request {
  std::string program, only, way;
  int times = 2;
  // Ranks spin; one that gets no core for as long as the time-out is blamed.
  int parallel = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 3);
  double timeout = 3;  // seconds
  double grace = 4;    // seconds
  unsigned seed = 0;
};

// How the ranks reach each other, unless they compute on GPUs ("nccl"). A network that breaks is
// all that they have.
const std::vector<std::string> kWays = {"tcp", "memory", "pairs"};
const std::string kNccl = "nccl";

struct Trial {
  const Fault& fault;
  std::string moment;
  int victim;
  double after;   // seconds in which ranks do that
  double within;  // seconds until others say what they must
  unsigned seed;
  std::string way;
};

struct Outcome {
  std::string wrong;  // empty if all is as it should be
  double slowest = 0;
};

class World {
 public:
  World(const Request& request, const Trial& trial, const std::string& folder)
      : trial_(trial), timeout_(request.timeout) {
    const HostPort rank0 = {"127.0.0.1", PortOf(reserved_).value()};
    if (is_network()) proxy_ = std::make_unique<Proxy>(kRanks, rank0);
    std::vector<std::string> command = {request.program, "--loop=" + trial.moment,
                                        absl::StrCat("--timeout=", timeout_), "--steps=100000000"};
    if (trial.way == kNccl) command.push_back("--device=cuda");
    if (!is_network() && trial.fault.name != "suspend" && !IsOfNccl(trial.fault)) {
      for (const std::string& more :
           {absl::StrCat("--rank=", trial.victim), absl::StrCat("--after=", trial.after),
            absl::StrCat("--do=", trial.fault.name)}) {
        command.push_back(more);
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const HostPort address = rank > 0 && proxy_ ? proxy_->AddressFor(rank) : rank0;
      const bool dies = IsOfNccl(trial.fault) && rank == trial.victim;
      ranks_.push_back(std::make_unique<RankProcess>(
          command, Variables{{dies ? "DTENSOR_FAKE_NCCL_DIES" : "FAULTS_OF_ANOTHER",
                              absl::StrCat(5 + static_cast<int>(trial.after * 1000))},
                             {"DTENSOR_RANK", absl::StrCat(rank)},
                             {"DTENSOR_SIZE", absl::StrCat(kRanks)},
                             {"DTENSOR_LOCAL_RANK", absl::StrCat(rank)},
                             {"DTENSOR_ADDRESS", address.ToString()},
                             {"DTENSOR_JOB", absl::StrCat("job ", trial.seed)},
                             {"DTENSOR_SECRET", "a secret"},
                             {"DTENSOR_TRANSPORT", trial.way == "tcp" ? "tcp" : ""},
                             {"DTENSOR_HOST", absl::StrCat(trial.way == "pairs" ? rank / 2 : 0)},
                             {"TMPDIR", folder}}));
    }
  }

  Outcome Run() {
    for (auto& rank : ranks_) {
      if (rank->AwaitLine("ready", Now() + 30) == "none") return Wrong("does not begin");
    }
    if (trial_.fault.name == "suspend") return Suspend();
    const double struck = Strike();
    if (struck < 0) return Wrong("the fault does not come");
    Outcome outcome;
    for (int rank = 0; rank < kRanks && outcome.wrong.empty(); ++rank) {
      const std::string& says = rank == trial_.victim ? trial_.fault.own : trial_.fault.says;
      if (!says.empty()) Check(rank, says, struck, outcome);
    }
    return outcome;
  }

 private:
  bool is_network() const { return IsNetwork(trial_.fault); }
  Outcome Wrong(const std::string& what) const {
    std::vector<std::string> outputs;
    for (const auto& rank : ranks_) outputs.push_back(rank->output());
    return {absl::StrCat(what, "; ranks say:\n", absl::StrJoin(outputs, "---\n"))};
  }

  // When it came; below 0 if it did not.
  double Strike() {
    if (!is_network()) {
      double at = -1;
      const std::string line = ranks_[trial_.victim]->AwaitLine("fault at ", Now() + 30);
      return absl::SimpleAtod(line, &at) ? at : -1;
    }
    Sleep(trial_.after);
    const double at = Now();
    proxy_->CutOff(trial_.victim, trial_.fault.name == "network_stops" ? Proxy::Cut::kSilent
                                                                       : Proxy::Cut::kClosed);
    return at;
  }

  void Check(int rank, const std::string& says, double struck, Outcome& outcome) {
    RankProcess& process = *ranks_[rank];
    // Late ones are waited for, to say how late.
    const bool ends = process.AwaitEnd(struck + trial_.within + 20);
    const std::string error = process.AwaitLine("error at ", Now());
    double at = 0;
    const std::string name = absl::StrCat("rank ", rank, " ");
    if (!ends) {
      outcome = Wrong(name + "hangs");
    } else if (!absl::SimpleAtod(error.substr(0, error.find(' ')), &at)) {
      outcome = Wrong(name + "says nothing");
    } else if (!std::regex_search(error, std::regex(Expected(says))) ||
               (trial_.fault.name != "disagree" && error.find("op \"") == error.npos)) {
      outcome = Wrong(absl::StrCat(name, "does not say '", Expected(says), "' and the operator"));
    } else if (!WIFEXITED(process.status()) || WEXITSTATUS(process.status()) != 1) {
      outcome = Wrong(absl::StrCat(name, "ends with status ", process.status()));
    }
    outcome.slowest = std::max(outcome.slowest, at - struck);
  }
  // The fakes' GPU of a process that is stopped stands still with it: where all have launched, the
  // others may hear of that first.
  std::string Expected(const std::string& says) const {
    const bool may_be_launched = trial_.way == kNccl && says == kSilent;
    return absl::StrCat(
        absl::StrReplaceAll(says, {{"V", absl::StrCat(trial_.victim)}}),
        may_be_launched ? "|NCCL has not ended what all its ranks have launched" : "");
  }

  // All are stopped for longer than the time-out, and go on.
  Outcome Suspend() {
    Sleep(trial_.after);
    std::mt19937 random(trial_.seed);
    std::vector<int> order = {0, 1, 2};
    for (const int signal : {SIGSTOP, SIGCONT}) {
      std::shuffle(order.begin(), order.end(), random);
      for (const int rank : order) ranks_[rank]->Signal(signal);
      if (signal == SIGSTOP) Sleep(timeout_ * 1.5);
    }
    for (auto& rank : ranks_) {
      const size_t before = rank->output().size();
      const double until = Now() + 10;
      while (Steps(rank->output()) < Steps(rank->output().substr(0, before)) + 3) {
        if (rank->AwaitLine("never", Now() + 0.1) != "none" || Now() > until) {
          return Wrong("does not go on");
        }
        if (rank->output().find("error at") != std::string::npos) return Wrong("fails");
      }
    }
    return {};
  }
  static int64_t Steps(const std::string& output) {
    return std::count(output.begin(), output.end(), '\n');
  }
  static void Sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  const Trial trial_;
  const double timeout_;
  const Socket reserved_ = ReservePort().value();
  std::unique_ptr<Proxy> proxy_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

std::vector<std::string> Files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

std::vector<std::string> FaultNames() {
  std::vector<std::string> names;
  for (const Fault& fault : kFaults) names.push_back(fault.name);
  return names;
}

class Trials {
 public:
  explicit Trials(const Request& request) : request_(request), random_(request.seed) {
    const std::string folder = std::filesystem::temp_directory_path() / "faults.XXXXXX";
    folder_ = folder;
    if (mkdtemp(folder_.data()) == nullptr) std::abort();
    for (const Fault& fault : kFaults) {
      if (!request.only.empty() && fault.name != request.only) continue;
      if (request.way == kNccl ? IsNetwork(fault) : IsOfNccl(fault)) continue;
      for (int i = 0; i < request.times; ++i) {
        const std::string moment = kMoments[(i + request.seed) % 4];
        // A barrier has no bytes to call NCCL for.
        Add(fault, IsOfNccl(fault) && moment == "barrier" ? kMoments[0] : moment);
      }
    }
  }
  ~Trials() { std::filesystem::remove_all(folder_); }

  int Run() {
    std::vector<std::thread> workers;
    for (int i = 0; i < request_.parallel; ++i) workers.emplace_back([this] { Work(); });
    for (std::thread& worker : workers) worker.join();
    for (const Fault& fault : kFaults) Report(fault);
    const std::vector<std::string> left = Files(folder_);
    if (!left.empty()) {
      std::printf("FAILED: left behind: %s\n", absl::StrJoin(left, " ").c_str());
      ++failures_;
    }
    return failures_ == 0 ? 0 : 1;
  }

 private:
  void Add(const Fault& fault, const std::string& moment) {
    std::uniform_real_distribution<double> after(0, 0.3);
    std::uniform_int_distribution<int> victim(0, kRanks - 1);
    const int who = victim(random_);
    const double when = after(random_);
    const unsigned seed = random_();
    const std::string& way = IsNetwork(fault)       ? kWays[0]
                             : request_.way.empty() ? kWays[seed % kWays.size()]
                                                    : request_.way;
    const double within = fault.within + (IsSilent(fault) ? request_.timeout : 0);
    trials_.push_back({fault, moment, who, when, within, seed, way});
  }

  void Work() {
    while (true) {
      size_t mine = 0;
      {
        const std::lock_guard lock(mutex_);
        if (next_ == trials_.size()) return;
        mine = next_++;
        outcomes_.resize(trials_.size());
      }
      const Trial& trial = trials_[mine];
      Outcome outcome = World(request_, trial, folder_).Run();
      // The port was free when it was chosen, and is another world's now.
      for (int i = 0; i < 3 && absl::StrContains(outcome.wrong, "Address already in use"); ++i) {
        outcome = World(request_, trial, folder_).Run();
      }
      const double most = trial.within + request_.grace;
      if (outcome.wrong.empty() && outcome.slowest > most) {
        outcome.wrong = absl::StrCat("takes ", outcome.slowest, " s, which is more than ", most);
      }
      const std::lock_guard lock(mutex_);
      if (!outcome.wrong.empty()) {
        ++failures_;
        std::printf("FAILED: %s of rank %d during %s over %s, after %.6f s: %s\n",
                    trial.fault.name.c_str(), trial.victim, trial.moment.c_str(), trial.way.c_str(),
                    trial.after, outcome.wrong.c_str());
      }
      outcomes_[mine] = std::move(outcome);
    }
  }

  void Report(const Fault& fault) const {
    int times = 0, wrong = 0;
    double slowest = 0;
    for (size_t i = 0; i < trials_.size(); ++i) {
      if (trials_[i].fault.name != fault.name) continue;
      ++times;
      wrong += outcomes_[i].wrong.empty() ? 0 : 1;
      slowest = std::max(slowest, outcomes_[i].slowest);
    }
    if (times == 0) return;
    std::printf("%-15s %3d times, %d failed, slowest error after %.3f s\n", fault.name.c_str(),
                times, wrong, slowest);
  }

  const Request request_;
  std::mt19937 random_;
  std::string folder_;
  std::vector<Trial> trials_;
  std::mutex mutex_;
  size_t next_ = 0;
  std::vector<Outcome> outcomes_;
  int failures_ = 0;
};

int Main(int argc, char** argv) {
  CLI::App app{"Faults at random moments of worlds of processes."};
  Request request;
  request.seed = std::random_device()() % 1000000;
  app.add_option("--program", request.program)->required();
  app.add_option("--times", request.times, "How often each fault is tried.");
  app.add_option("--seed", request.seed);
  app.add_option("--only", request.only, "The fault that is tried.")
      ->check(CLI::IsMember(FaultNames()));
  std::vector<std::string> ways = kWays;
  ways.push_back(kNccl);
  app.add_option("--way", request.way, "How ranks reach each other; none: now so, now so.")
      ->check(CLI::IsMember(ways));
  app.add_option("--parallel", request.parallel, "Worlds at a time.");
  app.add_option("--timeout", request.timeout, "Of the worlds, in seconds.");
  app.add_option("--grace", request.grace, "Seconds by which errors may be late.");
  CLI11_PARSE(app, argc, argv);
  std::printf("--seed=%u --times=%d\n", request.seed, request.times);
  std::fflush(stdout);
  return Trials(request).Run();
}

}  // namespace
}  // namespace dtensor::processes

int main(int argc, char** argv) { return dtensor::processes::Main(argc, argv); }
