// What a rank tells the others about its host when it joins. The world has two ranks.
#include "dtensor/runtime/comm/process/host_card.h"

#include <vector>

#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  const absl::StatusOr<HostCard> read = ReadHostCard(input);
  if (!IsRead(read)) return;
  Require(Encode(*read) == input, "a card is written as it was read");
  Require(0 <= read->port && read->port <= 65535, "a port is one");
  Require(read->arena.bytes >= 0, "memory has a size");
  const std::vector<HostCard> cards = {*read, *read};
  Require(CheckGpus(cards).ok() == read->gpu.empty(), "two ranks share no GPU");
  Require(FirstOfHost(cards) == std::vector<int>({0, read->host.empty() ? 1 : 0}),
          "who says the same is on one host");
}

}  // namespace dtensor::fuzz
