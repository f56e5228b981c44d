#include "dtensor/runtime/comm/messages/message_notes.h"

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {

std::string Encode(const Note& note) {
  WireWriter out;
  out.U64(note.number);
  out.U8(static_cast<uint8_t>(note.kind));
  if (note.kind == NoteKind::kCall) {
    out.U64(note.fingerprint);
    out.Raw(note.bytes);
  } else if (note.kind == NoteKind::kGo) {
    out.Raw(note.bytes);
  } else if (note.kind == NoteKind::kSummary) {
    for (const std::string& text : {note.summary.op, note.summary.kind, note.summary.what}) {
      out.Text(text);
    }
    out.U8(note.summary.described ? 1 : 0);
  }
  return out.bytes();
}

absl::StatusOr<Note> ReadNote(absl::string_view bytes) {
  WireReader in(bytes);
  Note note;
  note.number = in.U64();
  const uint8_t kind = in.U8();
  note.kind = static_cast<NoteKind>(kind);
  if (note.kind == NoteKind::kCall) {
    note.fingerprint = in.U64();
    note.bytes = std::string(in.Rest());
  } else if (note.kind == NoteKind::kGo) {
    note.bytes = std::string(in.Rest());
  } else if (note.kind == NoteKind::kSummary) {
    note.summary.op = in.Text();
    note.summary.kind = in.Text();
    note.summary.what = in.Text();
    note.summary.described = in.Bool();
  }
  const bool is_known = kind >= 1 && kind <= static_cast<uint8_t>(NoteKind::kSummary);
  if (in.done() && is_known) return note;
  return InvalidArgument({"a note of ", absl::StrCat(bytes.size()), " bytes is none"});
}

}  // namespace dtensor
