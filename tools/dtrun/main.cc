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

int Run(Request request) {
  for (const std::string& wrong :
       {CheckCount("--ranks", request.ranks), CheckCount("--nnodes", request.nodes)}) {
    if (!wrong.empty()) return Refuse(wrong);
  }
  if (request.grace_seconds < 0) {
    return Refuse(absl::StrCat("--grace: ", request.grace_seconds, " is less than 0 seconds"));
  }
  std::string secret = FromEnvironment("DTENSOR_SECRET"), job = FromEnvironment("DTENSOR_JOB");
  if (int64_t{request.ranks} * request.nodes > kMostRanks) {
    return Refuse(absl::StrCat(request.ranks, " ranks on each of ", request.nodes,
                               " nodes are more than ", kMostRanks));
  }
  if (request.nodes > 1 && (request.address.empty() || secret.empty())) {
    return Refuse(
        "several nodes need --address host:port of the first, and DTENSOR_SECRET set to the same "
        "text on all of them");
  }
  if (request.node < 0 || request.node >= request.nodes) {
    return Refuse(absl::StrCat("there is no node ", request.node, " of ", request.nodes,
                               "; they count from 0"));
  }
  if (secret.empty()) secret = RandomText();
  if (job.empty() && request.nodes == 1) job = RandomText();
  Socket reserved;  // kept until all ranks end: nothing tells when rank 0 listens
  if (request.address.empty()) {
    const auto address = LocalAddress(reserved);
    if (!address.ok()) return Refuse(std::string(address.status().message()));
    request.address = *address;
  } else if (const auto read = ParseHostPort(request.address); !read.ok()) {
    return Refuse(absl::StrCat("--address: ", read.status().message()));
  }
  Children children{std::chrono::duration<double>(request.grace_seconds)};
  for (int local = 0; local < request.ranks; ++local) {
    const int rank = request.node * request.ranks + local;
    const absl::Status started =
        children.Start(request.command,
                       {{"DTENSOR_RANK", absl::StrCat(rank)},
                        {"DTENSOR_SIZE", absl::StrCat(request.ranks * request.nodes)},
                        {"DTENSOR_LOCAL_RANK", absl::StrCat(local)},
                        {"DTENSOR_ADDRESS", request.address},
                        {"DTENSOR_JOB", job},
                        {"DTENSOR_SECRET", secret}},
                       absl::StrCat(rank));
    if (!started.ok()) return Refuse(std::string(started.message()));
  }
  return children.Wait();
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
  // Its own environment may be that of a rank: in a Slurm job, or under another dtrun.
  if (const auto status = ParseLauncherLine(app, argc, argv, request.command)) return *status;
  return Run(std::move(request));
}

}  // namespace
}  // namespace dtensor::dtrun

int main(int argc, char** argv) { return dtensor::dtrun::Main(argc, argv); }
