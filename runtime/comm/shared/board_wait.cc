#include "dtensor/runtime/comm/shared/board_wait.h"

#include <algorithm>
#include <array>

namespace dtensor {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kHead = 5;  // peer + 1, key, stage, number, bytes of the text
constexpr size_t kTextBytes = (Board::kWaitWords - kHead) * sizeof(uint64_t);
using Words = std::array<uint64_t, Board::kWaitWords>;

// Odd while the words change. A reader that sees the same even version before and after has read
// the words of a single note.
void Write(const Words& words, Board& board) {
  const uint64_t version = board.wait_version.load(kRelaxed);
  board.wait_version.store(version + 1, std::memory_order_seq_cst);
  for (size_t i = 0; i < words.size(); ++i)
    board.wait[i].store(words[i], std::memory_order_seq_cst);
  board.wait_version.store(version + 2, std::memory_order_seq_cst);
}

}  // namespace

void WriteWait(const BoardWait& note, Board& board) {
  Words words = {static_cast<uint64_t>(note.peer) + 1, note.key, static_cast<uint64_t>(note.stage),
                 note.number, std::min(note.call.size(), kTextBytes)};
  note.call.copy(reinterpret_cast<char*>(words.data() + kHead), words[kHead - 1]);
  Write(words, board);
}

void ClearWait(Board& board) { Write({}, board); }

std::optional<BoardWait> ReadWait(const Board& board) {
  Words words;
  const uint64_t version = board.wait_version.load(std::memory_order_seq_cst);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = board.wait[i].load(std::memory_order_seq_cst);
  const bool whole =
      version % 2 == 0 && board.wait_version.load(std::memory_order_seq_cst) == version;
  if (!whole || words[0] == 0 || words[kHead - 1] > kTextBytes) return std::nullopt;
  if (words[2] > static_cast<uint64_t>(ExchangeStage::kDone)) return std::nullopt;
  return BoardWait{
      static_cast<int>(words[0] - 1), words[1], static_cast<ExchangeStage>(words[2]), words[3],
      std::string(reinterpret_cast<const char*>(words.data() + kHead), words[kHead - 1])};
}

}  // namespace dtensor
