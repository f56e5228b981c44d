#include "dtensor/runtime/comm/testing/socket_ranks.h"

#include <chrono>
#include <optional>
#include <tuple>
#include <utility>

#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/comm/testing/reordered_sends.h"
#include "dtensor/runtime/comm/testing/threads_state.h"
#include "dtensor/runtime/testing/socket_pair.h"

namespace dtensor {

struct SocketRank::Parts {
  Parts(Communicator& threads, Device& device, std::vector<Socket> peers,
        const MessageOptions& options, size_t least_row_bytes, SendsEnd sends_end)
      : state(threads),
        tcp(std::move(peers), least_row_bytes),
        reordered(tcp),
        transport(sends_end == SendsEnd::kInOrder ? static_cast<MessageTransport&>(tcp)
                                                  : reordered),
        messages(threads.rank(), threads.size(), device, transport, state, options) {}
  ~Parts() {
    while (transport.is_sending()) transport.Progress(std::chrono::milliseconds(1));
  }
  ThreadsState state;
  TcpTransport tcp;
  ReorderedSends reordered;
  MessageTransport& transport;
  MessageCommunicator messages;
};

SocketRank::SocketRank(Communicator& threads, Device& device, std::vector<Socket> peers,
                       const MessageOptions& options, size_t least_row_bytes, SendsEnd sends_end)
    : parts_(std::make_unique<Parts>(threads, device, std::move(peers), options, least_row_bytes,
                                     sends_end)) {}

SocketRank::~SocketRank() = default;

Communicator& SocketRank::communicator() { return parts_->messages; }

SocketRanks::SocketRanks(int size) {
  for (int rank = 0; rank < size; ++rank) {
    sockets_.emplace_back(size);
    for (int peer = 0; peer < rank; ++peer) {
      std::tie(sockets_[rank][peer], sockets_[peer][rank]) = SocketPair();
    }
  }
}

SocketRank SocketRanks::Make(Communicator& threads, Device& device, const MessageOptions& options,
                             size_t least_row_bytes, SendsEnd sends_end) {
  return SocketRank(threads, device, std::move(sockets_[threads.rank()]), options, least_row_bytes,
                    sends_end);
}

}  // namespace dtensor
