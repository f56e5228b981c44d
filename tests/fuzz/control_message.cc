// A message of the control plane: its first byte is the size of the world, the rest its body.
#include <string>
#include <vector>

#include "dtensor/runtime/comm/process/control_messages.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

void TryStatus(absl::string_view body, int size) {
  const absl::StatusOr<RankStatus> read = ReadRankStatus(body, size);
  if (!IsRead(read)) return;
  Require(0 <= read->rank && read->rank < size, "a rank is one of the world's");
  Require(read->status.ok() || Encode(*read) == body, "a status is written as it was read");
  const absl::StatusOr<RankStatus> again = ReadRankStatus(Encode(*read), size);
  Require(again.ok() && again->rank == read->rank && again->status == read->status,
          "a status is read as it was written");
}

void TryCards(absl::string_view body, int size) {
  const absl::StatusOr<WorldCards> read = ReadCards(body, size);
  if (!IsRead(read)) return;
  Require(static_cast<int>(read->ranks.size()) == size, "there is a card for each rank");
  Require(Encode(*read) == body, "cards are written as they were read");
}

}  // namespace

void Try(absl::string_view input) {
  if (input.empty()) return;
  const int size = static_cast<unsigned char>(input[0]);
  TryStatus(input.substr(1), size);
  TryCards(input.substr(1), size);
}

}  // namespace dtensor::fuzz
