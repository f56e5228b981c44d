#include "dtensor/runtime/comm/messages/wait_notes.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

RankWait ReadWait(WireReader& in) {
  RankWait wait;
  wait.rank = static_cast<int>(in.U32());
  wait.peer = static_cast<int>(in.U32());
  wait.stage = static_cast<WaitStage>(in.U8());
  wait.channel = in.U64();
  wait.number = in.U64();
  wait.call = in.Text();
  return wait;
}

// Whether `wait` is a valid continuation of those before it.
bool Follows(absl::Span<const RankWait> before, const RankWait& wait, int size) {
  const auto is_rank = [&](int rank) { return 0 <= rank && rank < size; };
  return is_rank(wait.rank) && is_rank(wait.peer) && wait.rank != wait.peer &&
         wait.stage <= WaitStage::kBytes && wait.call.size() <= WaitNote::kMostCallBytes &&
         (before.empty() || before.back().peer == wait.rank) &&
         absl::c_none_of(before, [&](const RankWait& known) { return known.rank == wait.rank; });
}

}  // namespace

std::string Encode(const WaitNote& note) {
  WireWriter out;
  out.U8(static_cast<uint8_t>(note.kind));
  out.U64(note.id);
  out.U32(static_cast<uint32_t>(note.waits.size()));
  for (const RankWait& wait : note.waits) {
    out.U32(static_cast<uint32_t>(wait.rank));
    out.U32(static_cast<uint32_t>(wait.peer));
    out.U8(static_cast<uint8_t>(wait.stage));
    out.U64(wait.channel);
    out.U64(wait.number);
    out.Text(absl::string_view(wait.call).substr(0, WaitNote::kMostCallBytes));
  }
  return out.bytes();
}

absl::StatusOr<WaitNote> ReadWaitNote(absl::string_view bytes, int size) {
  WireReader in(bytes);
  WaitNote note;
  const uint8_t kind = in.U8();
  note.kind = static_cast<WaitNoteKind>(kind);
  note.id = in.U64();
  const uint32_t waits = in.U32();
  bool sound = (kind == 1 || kind == 2) && 1 <= waits && waits <= WaitNote::kMostWaits;
  for (uint32_t i = 0; i < waits && sound && in.ok(); ++i) {
    RankWait wait = ReadWait(in);
    sound = Follows(note.waits, wait, size);
    note.waits.push_back(std::move(wait));
  }
  if (sound && in.done()) return note;
  return InvalidArgument({"a note of ", absl::StrCat(bytes.size()), " bytes is no chain of waits"});
}

}  // namespace dtensor
