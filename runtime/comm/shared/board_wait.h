// BoardWait: what a sleeping rank is waiting for, as its Board shows it.
#ifndef DTENSOR_RUNTIME_COMM_SHARED_BOARD_WAIT_H_
#define DTENSOR_RUNTIME_COMM_SHARED_BOARD_WAIT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/comm/shared/board.h"

namespace dtensor {

struct BoardWait {
  int peer = 0;
  uint64_t key = 0;  // of the group
  ExchangeStage stage = ExchangeStage::kPosted;
  uint64_t number = 0;
  std::string call;  // CallText, cut off if it is long
};

// For the owner of the board.
void WriteWait(const BoardWait& note, Board& board);
void ClearWait(Board& board);
// None if the rank does not wait, or is changing its note at this moment.
std::optional<BoardWait> ReadWait(const Board& board);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SHARED_BOARD_WAIT_H_
