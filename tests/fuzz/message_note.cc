// What a rank sends in an exchange, and about its waits. The first byte is the size of the world.
#include <string>
#include <vector>

#include "dtensor/runtime/comm/messages/message_notes.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/comm/wait_chain.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

void TryNote(absl::string_view bytes) {
  const absl::StatusOr<Note> read = ReadNote(bytes);
  if (IsRead(read)) Require(Encode(*read) == bytes, "a note is written as it was read");
}

void TryWaits(absl::string_view bytes, int size) {
  const absl::StatusOr<WaitNote> read = ReadWaitNote(bytes, size);
  if (!IsRead(read)) return;
  Require(Encode(*read) == bytes, "a chain of waits is written as it was read");
  Require(!read->waits.empty() && read->waits.size() <= WaitNote::kMostWaits, "it has some waits");
  for (const RankWait& wait : read->waits) {
    Require(0 <= wait.rank && wait.rank < size && 0 <= wait.peer && wait.peer < size,
            "a rank is one of the world's");
  }
  const std::vector<WaitText> texts(read->waits.begin(), read->waits.end());
  Require(!TroubleOf(texts, /*timed_out=*/true, 1).ok(), "it has words");
}

}  // namespace

void Try(absl::string_view input) {
  if (input.empty()) return;
  TryNote(input.substr(1));
  TryWaits(input.substr(1), static_cast<unsigned char>(input[0]));
}

}  // namespace dtensor::fuzz
