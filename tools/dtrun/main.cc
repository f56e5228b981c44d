// dtrun: starts a program as the ranks of a world, on this machine or on several.
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/tools/dtrun/children.h"
#include "dtensor/tools/program/command_line.h"

namespace dtensor::dtrun {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

struct Request {
  int ranks = 1, nodes = 1, node = 0;
  std::string address;
  double grace_seconds = 10;
  int max_restarts = 0;
  std::vector<std::string> command;
};

int Refuse(const std::string& why) {
  std::fprintf(stderr, "dtrun: %s\n", why.c_str());
  return 2;
}

std::string RandomText() {
  char bytes[24];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return "";
  return absl::BytesToHexString({bytes, sizeof(bytes)});
}

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> LocalAddress(Socket& reserved) {
  DT_ASSIGN_OR_RETURN(reserved, ReservePort());
  DT_ASSIGN_OR_RETURN(const int port, PortOf(reserved));
  return HostPort{"127.0.0.1", port}.ToString();
}

// Checks a flag that counts something. Returns what is wrong, or an empty text.
std::string CheckCount(const char* flag, int count) {
  constexpr int kMost = 65536;
  if (1 <= count && count <= kMost) return "";
  return absl::StrCat(flag, ": ", count, " is not from 1 to ", kMost);
}

// What is wrong with a request, or an empty text.
std::string Check(const Request& request) {
  for (const std::string& wrong :
       {CheckCount("--ranks", request.ranks), CheckCount("--nnodes", request.nodes)}) {
    if (!wrong.empty()) return wrong;
  }
  if (request.grace_seconds < 0) {
    return absl::StrCat("--grace: ", request.grace_seconds, " is less than 0 seconds");
  }
  if (request.max_restarts < 0) {
    return absl::StrCat("--max-restarts: ", request.max_restarts, " is less than 0");
  }
  if (int64_t{request.ranks} * request.nodes > kMostRanks) {
    return absl::StrCat(request.ranks, " ranks on each of ", request.nodes, " nodes are more than ",
                        kMostRanks);
  }
  if (request.nodes > 1 && (request.address.empty() || FromEnvironment("DTENSOR_SECRET").empty())) {
    return "several nodes need --address host:port of the first, and DTENSOR_SECRET set to the "
           "same text on all of them";
  }
  if (request.node < 0 || request.node >= request.nodes) {
    return absl::StrCat("there is no node ", request.node, " of ", request.nodes,
                        "; they count from 0");
  }
  if (request.address.empty()) return "";
  const auto read = ParseHostPort(request.address);
  return read.ok() ? "" : absl::StrCat("--address: ", read.status().message());
}

// Starts this machine's ranks. On one machine their world has a job and a secret that none before
// had, unless told which. On several they have what was given: machines do not agree on how
// often each has started its ranks.
absl::Status Start(const Request& request, const std::string& address, Children& children) {
  std::string secret = FromEnvironment("DTENSOR_SECRET"), job = FromEnvironment("DTENSOR_JOB");
  if (secret.empty()) secret = RandomText();
  if (job.empty() && request.nodes == 1) job = RandomText();
  for (int local = 0; local < request.ranks; ++local) {
    const int rank = request.node * request.ranks + local;
    DT_RETURN_IF_ERROR(
        children.Start(request.command,
                       {{"DTENSOR_RANK", absl::StrCat(rank)},
                        {"DTENSOR_SIZE", absl::StrCat(request.ranks * request.nodes)},
                        {"DTENSOR_LOCAL_RANK", absl::StrCat(local)},
                        {"DTENSOR_ADDRESS", address},
                        {"DTENSOR_JOB", job},
                        {"DTENSOR_SECRET", secret}},
                       absl::StrCat(rank)));
  }
  return absl::OkStatus();
}

int Run(const Request& request) {
  if (const std::string wrong = Check(request); !wrong.empty()) return Refuse(wrong);
  for (int restarts = 0;; ++restarts) {
    Socket reserved;  // kept until all ranks end: nothing tells when rank 0 listens
    std::string address = request.address;
    if (address.empty()) {
      auto free = LocalAddress(reserved);
      if (!free.ok()) return Refuse(std::string(free.status().message()));
      address = *std::move(free);
    }
    Children children{std::chrono::duration<double>(request.grace_seconds)};
    if (const absl::Status started = Start(request, address, children); !started.ok()) {
      return Refuse(std::string(started.message()));
    }
    const int status = children.Wait();
    if (status == 0 || children.interrupted() || restarts == request.max_restarts) return status;
    children.Say(absl::StrCat("dtrun: rank ", children.failed(), " ended with status ", status,
                              "; all ranks start again, ", restarts + 1, " of ",
                              request.max_restarts));
    if (children.interrupted()) return status;
  }
}

// Opens standard streams that are closed, so that no file opened later is taken for one of them.
void OpenStandardStreams() {
  int fd = open("/dev/null", O_RDWR);
  while (0 <= fd && fd <= 2) fd = open("/dev/null", O_RDWR);
  if (fd > 2) close(fd);
}

int Main(int argc, char** argv) {
  OpenStandardStreams();
  CLI::App app{"Starts a program as the ranks of a world: dtrun -n 4 program arguments...",
               "dtrun"};
  Request request;
  app.add_option("-n,--ranks", request.ranks, "Processes on this machine.");
  app.add_option("--nnodes", request.nodes, "Machines that take part, each with its own dtrun.");
  app.add_option("--node", request.node, "Which of them this is, from 0.");
  app.add_option("--address", request.address,
                 "host:port where rank 0 listens: a free port of the first machine. Needed for "
                 "several machines.");
  app.add_option("--grace", request.grace_seconds,
                 "Seconds that the others have to end by themselves after one has failed.");
  app.add_option("--max-restarts", request.max_restarts,
                 "How often all ranks start again, in a new world, after one has failed.");
  // Its own environment may be that of a rank: in a Slurm job, or under another dtrun.
  if (const auto status = ParseLauncherLine(app, argc, argv, request.command)) return *status;
  return Run(request);
}

}  // namespace
}  // namespace dtensor::dtrun

int main(int argc, char** argv) { return dtensor::dtrun::Main(argc, argv); }
