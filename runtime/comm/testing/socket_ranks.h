// SocketRanks: rank threads that talk over sockets, as processes do: what they exchange is packed,
// or sent in rows, and unpacked. Barriers and failures are the threads' own.
//
//   SocketRanks sockets(n);
//   RunLocalRanks(n, [&](Communicator& threads, Device& device) {
//     SocketRank rank = sockets.Make(threads, device);
//     ... rank.communicator() ...
#ifndef DTENSOR_RUNTIME_COMM_TESTING_SOCKET_RANKS_H_
#define DTENSOR_RUNTIME_COMM_TESTING_SOCKET_RANKS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/message_communicator.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

// Pieces so small that boxes are cut, and little that goes at once.
inline MessageOptions SmallPieces() { return {.piece_bytes = 64, .note_bytes = 16}; }
// Messages to a peer are done with in the order in which they were given, as TCP's are, or in
// another one (reordered_sends.h), as MPI's may be.
enum class SendsEnd : bool { kInOrder, kReordered };
// Such that of small pieces some are sent in rows, and others are packed.
constexpr size_t kShortRowBytes = 16;

// One rank's.
class SocketRank {
 public:
  // `threads` and `device` outlive it.
  SocketRank(Communicator& threads, Device& device, std::vector<Socket> peers,
             const MessageOptions& options, size_t least_row_bytes, SendsEnd sends_end);
  ~SocketRank();
  Communicator& communicator();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class SocketRanks {
 public:
  explicit SocketRanks(int size);
  // For a rank's thread; once for each rank.
  SocketRank Make(Communicator& threads, Device& device,
                  const MessageOptions& options = SmallPieces(),
                  size_t least_row_bytes = kShortRowBytes, SendsEnd sends_end = SendsEnd::kInOrder);

 private:
  std::vector<std::vector<Socket>> sockets_;  // [rank][peer]
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_TESTING_SOCKET_RANKS_H_
