#include "dtensor/runtime/testing/socket_ranks.h"

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <utility>

#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The threads' world.
class ThreadsState final : public WorldState {
 public:
  explicit ThreadsState(Communicator& threads) : threads_(threads) {}
  absl::Status Fail(int, const absl::Status& reason) override { return threads_.Fail(reason); }
  absl::Status failure() const override { return threads_.failure(); }
  bool failed() const override { return !failure().ok(); }
  std::optional<absl::Status> returned(int) const override { return std::nullopt; }
  double timeout_seconds() const override { return 60; }

 private:
  Communicator& threads_;
};

}  // namespace

struct SocketRank::Parts {
  Parts(Communicator& threads, Device& device, std::vector<Socket> peers,
        const MessageOptions& options)
      : state(threads),
        transport(std::move(peers)),
        messages(threads.rank(), threads.size(), device, transport, state, options) {}
  ~Parts() {
    while (transport.is_sending()) transport.Progress(std::chrono::milliseconds(1));
  }
  ThreadsState state;
  TcpTransport transport;
  MessageCommunicator messages;
};

SocketRank::SocketRank(Communicator& threads, Device& device, std::vector<Socket> peers,
                       const MessageOptions& options)
    : parts_(std::make_unique<Parts>(threads, device, std::move(peers), options)) {}

SocketRank::~SocketRank() = default;

Communicator& SocketRank::communicator() { return parts_->messages; }

SocketRanks::SocketRanks(int size) {
  for (int rank = 0; rank < size; ++rank) {
    sockets_.emplace_back(size);
    for (int peer = 0; peer < rank; ++peer) {
      int ends[2];
      DT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
      sockets_[rank][peer] = Socket(ends[0]);
      sockets_[peer][rank] = Socket(ends[1]);
    }
  }
}

SocketRank SocketRanks::Make(Communicator& threads, Device& device, const MessageOptions& options) {
  return SocketRank(threads, device, std::move(sockets_[threads.rank()]), options);
}

}  // namespace dtensor
