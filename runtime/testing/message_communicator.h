// A transport of messages: ranks that could not read each other's memory, as in processes. Each
// packs what others receive from it (send_list.h) when it begins an exchange, and unpacks what came
// when it finishes. To show that an exchange says all that a sender has to know, that staging_bytes
// is enough, and that what is called native is even.
#ifndef DTENSOR_RUNTIME_TESTING_MESSAGE_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_TESTING_MESSAGE_COMMUNICATOR_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/send_list.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// A packed box: bytes alone, since a tensor belongs to the thread of its rank.
struct BoxMessage {
  DType dtype;
  std::vector<std::byte> bytes;
};

// What has been sent and not received: of all ranks of a world.
class Mailbox {
 public:
  // A sender's how manieth exchange of this group, and to whom.
  using Address = std::tuple<std::vector<int>, uint64_t, int, int>;

  // Packed boxes, in the order of the send list.
  void Send(const Address& address, std::deque<BoxMessage> boxes);
  // Waits for them. Errors: kDeadlineExceeded after 20 s.
  absl::StatusOr<std::deque<BoxMessage>> Receive(const Address& address);

 private:
  std::mutex mutex_;
  std::condition_variable sent_;
  std::map<Address, std::deque<BoxMessage>> boxes_;
};

// For tensors on a `cpu` device. Barriers and failures are those of `world`, which outlives this.
class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(Communicator& world, Mailbox& mailbox)
      : world_(world), mailbox_(mailbox), lists_(world.rank()) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  // Boxes are packed and combined in chunks: of each a term from every rank.
  static constexpr int64_t kChunkBytes = 64;
  int64_t staging_bytes() const override { return kChunkBytes * size(); }
  absl::Status Begin(const Collective& collective, absl::Span<const ExchangePart> parts) override;
  absl::Status Finish(const Collective& collective) override;
  void Drop(const Collective& collective, std::shared_ptr<const void> owner) override;
  absl::Status FinishDropped() override { return failure(); }
  absl::Status Barrier(absl::string_view what) override { return world_.Barrier(what); }
  absl::Status Fail(const absl::Status& reason) override { return world_.Fail(reason); }
  absl::Status failure() const override { return world_.failure(); }

 private:
  // Of an exchange on its way.
  struct Begun {
    absl::Span<const ExchangePart> parts;
    uint64_t number = 0;
    std::map<int, size_t> sent;  // bytes, by peer
    std::deque<BoxMessage> own;  // terms of this rank's, packed, as they are received
  };
  Mailbox::Address AddressOf(const Collective& collective, uint64_t number, int from, int to) const;
  absl::Status PostAll(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Receive(const Collective& collective, Begun begun);

  Communicator& world_;
  Mailbox& mailbox_;
  SendLists lists_;
  std::map<std::vector<int>, uint64_t> numbers_;  // of the last exchange, by group
  std::map<const Collective*, Begun> begun_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_MESSAGE_COMMUNICATOR_H_
