// What the ranks of an exchange tell each other in notes (message_transport.h). The reading
// function accepts any bytes, and refuses those that are no note.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_NOTES_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_NOTES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/call_summary.h"

namespace dtensor {

enum class NoteKind : uint8_t {
  kCall = 1,  // what this rank is about to do, and what the other receives if that is little
  kGo,        // the other may send, memory is ready; with a carrier: this rank is there
  kSummary,   // what this rank asked for, in words, for the error when ranks disagree
};

// A note about exchange `number` of a group.
struct Note {
  uint64_t number = 0;
  NoteKind kind = NoteKind::kGo;
  uint64_t fingerprint = 0;  // of a call
  std::string bytes;         // of a call: what the other receives; of a go: a carrier's word
  CallSummary summary;
};
std::string Encode(const Note& note);
// Errors: kInvalidArgument if the bytes are no note.
absl::StatusOr<Note> ReadNote(absl::string_view bytes);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_MESSAGE_NOTES_H_
