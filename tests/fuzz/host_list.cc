// Slurm's list of hosts, or an address: "node[03-05,9],other", "[::1]:29500".
#include <string>

#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

void TryList(absl::string_view list) {
  const absl::StatusOr<std::string> host = FirstSlurmHost(list);
  if (!IsRead(host)) return;
  Require(!host->empty() && host->find_first_of(",[]") == std::string::npos, "a host is one name");
  Require(host->size() <= list.size(), "a host is no longer than its list");
  RequireSame(*host, FirstSlurmHost(*host), *host);
  RequireSame(*host, FirstSlurmHost(*host + ",other[1-2]"), *host);
}

void TryAddress(absl::string_view text) {
  const absl::StatusOr<HostPort> read = ParseHostPort(text);
  if (!IsRead(read)) return;
  Require(1 <= read->port && read->port <= 65535, "a port is one");
  Require(!read->host.empty() && read->host.find('\0') == std::string::npos,
          "a host can be asked for");
  const absl::StatusOr<HostPort> again = ParseHostPort(read->ToString());
  Require(again.ok() && again->host == read->host && again->port == read->port, read->ToString());
}

}  // namespace

void Try(absl::string_view input) {
  TryList(input);
  TryAddress(input);
}

}  // namespace dtensor::fuzz
