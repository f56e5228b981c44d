// MpiTransport: messages by MPI's non-blocking calls, over a communicator of its own.
//
// All notes have one tag, so those of a peer come in the order in which they were sent. A message
// is announced by such a note, which has its channel, its size and a tag of its own, with which its
// bytes follow. They are received once both the announcement and the memory for them are there. So
// channels never mix, and an unexpected size is found before a byte is written. (Tags are reused: a
// peer with more messages that have no memory yet than there are tags, 32767 or more, is lost.)
//
// MPI does not report peers that die, and calls that wait for them never return. So nothing here
// waits in MPI. The world says which rank died (WorldState), and from then on MPI is not called any
// more. If a call nevertheless hangs for 5 s after the world has failed, this process ends with
// status 1, and the world's failure on stderr (call_watch.h). MPI may still move what was in flight
// at that time if others call it: see MpiOptions::keeps_bytes.
#ifndef DTENSOR_RUNTIME_COMM_MPI_MPI_TRANSPORT_H_
#define DTENSOR_RUNTIME_COMM_MPI_MPI_TRANSPORT_H_

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/comm/messages/message_transport.h"
#include "dtensor/runtime/comm/mpi/call_watch.h"
#include "dtensor/runtime/comm/world_state.h"

namespace dtensor {

struct MpiOptions {
  // If true, messages pass through memory of the transport's own, which costs one more copy on
  // either side. If the world fails, that memory is never freed. For processes that continue to
  // call MPI after a failure.
  bool keeps_bytes = false;
  size_t most_bytes = size_t{1} << 30;  // of one MPI message, whose count is an int
  int most_tag = 0;                     // 0: MPI's own limit
};

class MpiTransport final : public MessageTransport {
 public:
  // Takes over `comm`, whose ranks are the world's, and whose errors are returned. `world` outlives
  // the transport, and tells it of a failure. Requires: MPI is usable until the transport is
  // destroyed, or until nothing more is expected of it. Throws std::system_error if no thread can
  // be created.
  MpiTransport(MPI_Comm comm, WorldState& world, const MpiOptions& options = {});
  // Frees the communicator if all ranks have left and have been told so; otherwise leaves it as it
  // is.
  ~MpiTransport() override;

  void SendNote(int peer, uint64_t channel, absl::string_view note) override;
  std::optional<std::string> TakeNote(int peer, uint64_t channel) override;
  void Send(int peer, uint64_t channel, SentRows bytes, int& pending) override;
  void Receive(int peer, uint64_t channel, TakenRows into, int& pending) override;
  uint64_t moved(int peer) const override;
  void Progress(std::chrono::microseconds longest) override;
  absl::Status lost(int peer) const override;
  void Leave() override;
  bool has_left(int peer) const override;
  bool is_sending() const override;
  void Cancel() override;

 private:
  struct Peer;
  struct Transfer;
  enum class How : uint8_t;

  bool CanCall();
  void Start(std::unique_ptr<Transfer> made, absl::Span<std::byte> bytes, int tag);
  void StartText(int peer, std::string text, How how);
  bool Look();
  bool TakeNotesIn();
  void Finish(Transfer& transfer);
  void Read(int peer, absl::string_view text);
  void Match(int peer, uint64_t channel);
  void Lose(int peer, const absl::Status& why);
  void LoseAll(const absl::Status& why);  // MPI does not say whose message it is

  const MPI_Comm comm_;
  WorldState& world_;
  const MpiOptions options_;
  const int most_tag_;
  int last_tag_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;  // null: this rank
  std::vector<MPI_Request> requests_;
  std::vector<Transfer*> of_;  // [i]: the transfer of requests_[i]
  std::list<std::unique_ptr<Transfer>> transfers_;
  bool leaves_ = false, cancelled_ = false;
  bool drained_ = false;  // when cancelled, nothing was in flight, and nothing will be
  // When is_sending first found that all ranks had returned.
  mutable std::optional<std::chrono::steady_clock::time_point> over_;
  CallWatch watch_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MPI_MPI_TRANSPORT_H_
