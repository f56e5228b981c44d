#include "dtensor/runtime/testing/message_communicator.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

using BoxDims = absl::InlinedVector<MatchedRun, 4>;

Dims ShapeOf(const BoxDims& box) {
  Dims shape;
  for (const MatchedRun& run : box) shape.push_back(run.size());
  return shape;
}

// The box of `source`, without gaps.
absl::StatusOr<Tensor> Pack(const Tensor& source, const BoxDims& box) {
  DT_ASSIGN_OR_RETURN(const Tensor packed,
                      Tensor::Empty(source.device(), source.dtype(), ShapeOf(box)));
  ReceiveBox copy{.peers = {0}, .dims = box};
  for (MatchedRun& run : copy.dims) {
    run.dst = 0;
    run.dst_stride = run.length;
  }
  const Tensor* const sources[] = {&source};
  const kernels::BoxMove pack(copy, packed, sources);
  DT_RETURN_IF_ERROR(kernels::MoveBoxes(source.device(), "Pack", {&pack, 1}));
  return packed;
}

BoxMessage MessageOf(const Tensor& packed) {
  BoxMessage message{packed.dtype(), packed.shape(), {}};
  message.bytes.resize(packed.bytes());
  std::memcpy(message.bytes.data(), packed.raw(), packed.bytes());
  return message;
}

absl::StatusOr<Tensor> TensorOf(const BoxMessage& message, Device& device) {
  DT_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::Empty(device, message.dtype, message.shape));
  std::memcpy(tensor.raw(), message.bytes.data(), message.bytes.size());
  return tensor;
}

// Combines packed terms into the part's result.
absl::Status Unpack(const ExchangePart& part, const ReceiveBox& box,
                    const std::vector<Tensor>& terms) {
  ReceiveBox packed = box;
  for (MatchedRun& run : packed.dims) {
    run.src = 0;
    run.src_stride = run.length;
  }
  std::vector<const Tensor*> sources;
  for (const Tensor& term : terms) sources.push_back(&term);
  const kernels::BoxMove unpack(packed, part.dst, sources, part.op, part.scale);
  return kernels::MoveBoxes(part.dst.device(), "Unpack", {&unpack, 1});
}

template <typename T>
absl::StatusOr<T> TakeFirst(std::deque<T>& boxes) {
  if (boxes.empty()) return absl::InternalError("a peer sent too little");
  T first = std::move(boxes.front());
  boxes.pop_front();
  return first;
}

}  // namespace

void Mailbox::Send(const Address& address, std::deque<BoxMessage> boxes) {
  const std::lock_guard lock(mutex_);
  boxes_[address] = std::move(boxes);
  sent_.notify_all();
}

absl::StatusOr<std::deque<BoxMessage>> Mailbox::Receive(const Address& address) {
  std::unique_lock lock(mutex_);
  const bool came = sent_.wait_for(lock, std::chrono::seconds(20),
                                   [&] { return boxes_.find(address) != boxes_.end(); });
  if (!came) return absl::DeadlineExceededError("nothing came");
  return std::move(boxes_.extract(address).mapped());
}

Mailbox::Address MessageCommunicator::AddressOf(const Collective& collective, uint64_t number,
                                                int from, int to) const {
  return {std::vector<int>(collective.group.begin(), collective.group.end()), number, from, to};
}

absl::Status MessageCommunicator::Begin(const Collective& collective,
                                        absl::Span<const ExchangePart> parts) {
  DT_RETURN_IF_ERROR(failure());
  const absl::Status status = PostAll(collective, parts);
  return status.ok() ? status : Fail(status);
}

absl::Status MessageCommunicator::PostAll(const Collective& collective,
                                          absl::Span<const ExchangePart> parts) {
  Begun& begun = begun_[&collective];
  begun.parts = parts;
  begun.number = ++numbers_[{collective.group.begin(), collective.group.end()}];
  std::map<int, std::deque<BoxMessage>> messages;
  for (int peer : collective.group) messages[peer];
  for (const SendBox& send : lists_.Of(collective, parts.size())) {
    DT_ASSIGN_OR_RETURN(const Tensor packed, Pack(parts[send.part].src, send.dims));
    messages[send.receiver].push_back(MessageOf(packed));
  }
  for (const ExchangePart& part : parts) {
    for (const ReceiveBox& box : part.receives) {
      for (int peer : box.peers) {
        if (peer != rank()) continue;
        DT_ASSIGN_OR_RETURN(Tensor packed, Pack(part.src, box.dims));
        begun.own.push_back(std::move(packed));
      }
    }
  }
  for (auto& [peer, boxes] : messages) {
    if (peer == rank()) continue;
    mailbox_.Send(AddressOf(collective, begun.number, rank(), peer), std::move(boxes));
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::Finish(const Collective& collective) {
  const auto it = begun_.find(&collective);
  if (it == begun_.end()) return failure();
  Begun begun = std::move(it->second);
  begun_.erase(it);
  const absl::Status status = Receive(collective, std::move(begun));
  return status.ok() ? status : Fail(status);
}

void MessageCommunicator::Drop(const Collective& collective, std::shared_ptr<const void>) {
  Finish(collective).IgnoreError();  // where tests drop, peers do not wait for this rank
}

absl::Status MessageCommunicator::Receive(const Collective& collective, Begun begun) {
  std::map<int, std::deque<BoxMessage>> inbox;
  for (int peer : collective.group) {
    if (peer == rank()) continue;
    DT_ASSIGN_OR_RETURN(inbox[peer],
                        mailbox_.Receive(AddressOf(collective, begun.number, peer, rank())));
  }
  int64_t messages = 0, bytes = 0;
  for (const ExchangePart& part : begun.parts) {
    for (const ReceiveBox& box : part.receives) {
      std::vector<Tensor> terms;
      for (int peer : box.peers) {
        if (peer == rank()) {
          DT_ASSIGN_OR_RETURN(Tensor own, TakeFirst(begun.own));
          terms.push_back(std::move(own));
          continue;
        }
        DT_ASSIGN_OR_RETURN(const BoxMessage message, TakeFirst(inbox[peer]));
        DT_ASSIGN_OR_RETURN(Tensor term, TensorOf(message, part.dst.device()));
        terms.push_back(std::move(term));
        ++messages;
        bytes += message.bytes.size();
      }
      DT_RETURN_IF_ERROR(Unpack(part, box, terms));
    }
  }
  for (const auto& [peer, boxes] : inbox) {
    if (!boxes.empty()) return absl::InternalError("a peer sent too much");
  }
  Count(collective, messages, bytes);
  return absl::OkStatus();
}

}  // namespace dtensor
