// What the ranks of an exchange send each other, in rounds that all of them know. This is a pure
// function of what each rank receives, so both sides of each pair have the same messages in the
// same order.
//
// A rank receives its boxes in order, cut into pieces. The terms of one round fit into
// `round_bytes`, which determines the number of rounds. In each round, one message goes from a rank
// to another, with its pieces side by side, those with wide elements first, so that all are
// aligned. A rank that has nothing to do in a round skips it.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_CARRY_SCHEDULE_H_
#define DTENSOR_RUNTIME_COMM_NCCL_CARRY_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/box_pieces.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/lru_cache.h"

namespace dtensor {

struct CarriedPiece {
  size_t part = 0;
  int64_t element_bytes = 0;
  absl::InlinedVector<int, 4> peers;  // whose terms are combined, in that order
  BoxDims dims;                       // src in a peer's source, dst in the receiver's result
  int64_t bytes = 0;                  // of one term
};

struct CarriedRound {
  std::vector<CarriedPiece> receives;              // by this rank
  std::map<int, std::vector<CarriedPiece>> sends;  // by receiver
};

// A part for which one NCCL collective suffices. A gather: each rank gives all others the same
// elements, and all ranks give the same amount. A reduction: each rank receives one sum of what all
// ranks have for it, and all sums have the same size.
struct CarriedCollective {
  size_t part = 0;
  int64_t element_bytes = 0;
  bool reduces = false;
  // For a gather, by giving rank: this rank's src, the others' dst. For a reduction, by receiving
  // rank: src in this rank's source, and this rank's dst.
  std::map<int, BoxDims> boxes;
  bool gathers_own = false;  // a gather: this rank receives from itself, so its box has a dst
};

struct CarrySchedule {
  std::vector<CarriedRound> rounds;
  std::vector<CarriedCollective> collectives;      // in place of rounds, if all parts are such
  std::vector<std::pair<size_t, ReceiveBox>> own;  // what this rank receives from itself alone
  int64_t messages = 0;                            // boxes from other ranks
};

// `sizes`: the bytes of one element of each part, as sent. Requires: collective.boxes, round_bytes
// > 0.
CarrySchedule ScheduleOf(const Collective& collective, absl::Span<const int64_t> sizes, int rank,
                         int64_t round_bytes);

// Caches the schedules of the exchanges in which `rank` took part most recently.
class CarrySchedules {
 public:
  CarrySchedules(int rank, int64_t round_bytes) : rank_(rank), round_bytes_(round_bytes) {}
  // Valid until the next call.
  const CarrySchedule& Of(const Collective& collective, absl::Span<const int64_t> sizes);

 private:
  using Key = std::pair<uint64_t, std::vector<int64_t>>;
  static constexpr size_t kMostSchedules = 256;
  const int rank_;
  const int64_t round_bytes_;
  LruCache<Key, CarrySchedule> schedules_{kMostSchedules};
  CarrySchedule latest_;  // of an exchange that does not repeat
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_CARRY_SCHEDULE_H_
