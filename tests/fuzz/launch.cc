// The environment of a rank, a line for each variable: NAME=value.
#include "dtensor/runtime/comm/process/launch.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  std::map<std::string, std::string> variables;
  for (const absl::string_view line : absl::StrSplit(input, '\n')) {
    const std::pair<absl::string_view, absl::string_view> said =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    variables.emplace(said.first, said.second);
  }
  const auto variable = [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  };
  const absl::StatusOr<LaunchedRank> read = ReadLaunch({}, variable);
  if (!IsRead(read)) return;
  Require(0 <= read->rank && read->rank < read->size, "a rank is one of the world's");
  Require(0 <= read->local_rank && read->local_rank < read->size, "also among its host's");
  Require(0 <= read->address.port && read->address.port <= 65535, "a port is none, or one");
  Require(!read->launcher.empty(), "somebody said so");
  Require(read->transport.empty() || read->transport == "tcp" || read->transport == "mpi",
          "messages go by something");
}

}  // namespace dtensor::fuzz
