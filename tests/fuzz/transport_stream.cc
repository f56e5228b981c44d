// What a peer sends over a data connection: the first byte says how much memory waits for messages
// of channel 1, the second how often the stream is cut.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

class Listener {
 public:
  Listener(Socket peer, size_t memory) : transport_(Sockets(std::move(peer))) {
    // The longer one twice as long, so that a message for one does not fit the other.
    memory_ = {std::string(memory, '\0'), std::string(2 * memory, '\0')};
    for (std::string& memory : memory_) transport_.Receive(1, 1, Rows(BytesOf(memory)), pending_);
  }

  void Move() {
    transport_.Progress(std::chrono::microseconds(0));
    for (const uint64_t channel : {0, 1}) {
      while (const auto note = transport_.TakeNote(1, channel)) noted_ += note->size();
    }
  }
  void Check(size_t sent) const {
    const absl::Status lost = transport_.lost(1);
    if (!lost.ok() && !absl::IsUnavailable(lost)) RequireRefusal(lost);
    Require(noted_ + transport_.moved(1) <= sent, "nothing comes that was not sent");
    Require(0 <= pending_ && pending_ <= 2, "each message comes once");
  }

 private:
  // Memory with a row for every few bytes.
  static TakenRows Rows(absl::Span<std::byte> memory) {
    TakenRows::Rows rows;
    for (; !memory.empty(); memory.remove_prefix(rows.back().size())) {
      rows.push_back(memory.subspan(0, 3));
    }
    return TakenRows(std::move(rows));
  }
  static std::vector<Socket> Sockets(Socket peer) {
    std::vector<Socket> sockets(2);
    sockets[1] = std::move(peer);
    return sockets;
  }
  TcpTransport transport_;
  std::vector<std::string> memory_;
  int pending_ = 0;
  size_t noted_ = 0;
};

}  // namespace

void Try(absl::string_view input) {
  if (input.size() < 2) return;
  auto [ours, theirs] = SocketPair();
  Listener listener(std::move(ours), static_cast<unsigned char>(input[0]));
  const size_t cut = 1 + static_cast<unsigned char>(input[1]);
  size_t sent = 0;
  for (input.remove_prefix(2); !input.empty(); listener.Check(sent)) {
    const absl::string_view part = input.substr(0, cut);
    const auto taken = theirs.SendSome(BytesOf(part));
    if (!taken.ok() || *taken == 0) break;
    input.remove_prefix(*taken);
    sent += *taken;
    listener.Move();
  }
  theirs.Close();
  listener.Move();
  listener.Check(sent);
}

}  // namespace dtensor::fuzz
