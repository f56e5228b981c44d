#include "dtensor/runtime/testing/message_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/collective.h"
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

// The box in parts of at most `most` elements, which follow one another where it is packed.
void Cut(const BoxDims& box, int64_t most, std::vector<BoxDims>& parts) {
  const int64_t elements = NumElements(ShapeOf(box));
  if (elements <= most) {
    if (elements > 0) parts.push_back(box);
    return;
  }
  size_t d = 0;
  while (box[d].size() == 1) ++d;
  const int64_t each = std::max<int64_t>(1, most / (elements / box[d].size()));
  for (int64_t run = 0; run < box[d].count; ++run) {
    for (int64_t begin = 0; begin < box[d].length; begin += each) {
      BoxDims part = box;
      part[d] = {.src = box[d].src + run * box[d].src_stride + begin,
                 .dst = box[d].dst + run * box[d].dst_stride + begin,
                 .length = std::min(each, box[d].length - begin)};
      Cut(part, most, parts);
    }
  }
}

std::vector<BoxDims> Cut(const BoxDims& box, DType dtype) {
  std::vector<BoxDims> parts;
  Cut(box, MessageCommunicator::kChunkBytes / SizeOf(dtype), parts);
  return parts;
}

// The box of `source`, without gaps.
absl::StatusOr<BoxMessage> Pack(const Tensor& source, const BoxDims& box) {
  BoxMessage message{source.dtype(), {}};
  for (const BoxDims& part : Cut(box, source.dtype())) {
    DT_ASSIGN_OR_RETURN(const Tensor packed,
                        Tensor::Empty(source.device(), source.dtype(), ShapeOf(part)));
    ReceiveBox copy{.peers = {0}, .dims = part};
    for (MatchedRun& run : copy.dims) {
      run.dst = 0;
      run.dst_stride = run.length;
    }
    const Tensor* const sources[] = {&source};
    const kernels::BoxMove pack(copy, packed, sources);
    DT_RETURN_IF_ERROR(kernels::MoveBoxes(source.device(), "Pack", {&pack, 1}));
    const auto* const bytes = packed.data<std::byte>();
    message.bytes.insert(message.bytes.end(), bytes, bytes + packed.bytes());
  }
  return message;
}

// `shape` of a message's elements, from `offset` bytes on.
absl::StatusOr<Tensor> TensorOf(const BoxMessage& message, int64_t offset, const Dims& shape,
                                Device& device) {
  DT_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::Empty(device, message.dtype, shape));
  std::memcpy(tensor.raw(), message.bytes.data() + offset, tensor.bytes());
  return tensor;
}

// Combines packed terms into the part's result.
absl::Status Unpack(const ExchangePart& part, const ReceiveBox& box,
                    const std::vector<BoxMessage>& terms) {
  int64_t offset = 0;
  for (const BoxDims& piece : Cut(box.dims, part.src.dtype())) {
    ReceiveBox packed{.peers = box.peers, .dims = piece};
    for (MatchedRun& run : packed.dims) {
      run.src = 0;
      run.src_stride = run.length;
    }
    std::vector<Tensor> staged;
    std::vector<const Tensor*> sources;
    for (const BoxMessage& term : terms) {
      DT_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(term, offset, ShapeOf(piece), part.dst.device()));
      staged.push_back(std::move(tensor));
    }
    for (const Tensor& term : staged) sources.push_back(&term);
    const kernels::BoxMove unpack(packed, part.dst, sources, part.op, part.scale);
    DT_RETURN_IF_ERROR(kernels::MoveBoxes(part.dst.device(), "Unpack", {&unpack, 1}));
    offset += staged[0].bytes();
  }
  return absl::OkStatus();
}

size_t BytesOf(const std::deque<BoxMessage>& boxes) {
  size_t sum = 0;
  for (const BoxMessage& box : boxes) sum += box.bytes.size();
  return sum;
}

// A native collective gives each rank as much from every peer, and as much as it gives them.
absl::Status CheckNative(const Collective& collective, int rank, const std::map<int, size_t>& sent,
                         const std::map<int, std::deque<BoxMessage>>& inbox) {
  if (!collective.native) return absl::OkStatus();
  for (const auto& [peer, boxes] : inbox) {
    const size_t bytes = BytesOf(boxes);
    if (bytes == BytesOf(inbox.begin()->second) && bytes == sent.at(peer)) continue;
    return absl::InternalError(absl::StrCat(collective.op, ": rank ", rank, " and rank ", peer,
                                            " do not get alike in a native collective"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BoxMessage> TakeFirst(std::deque<BoxMessage>& boxes) {
  if (boxes.empty()) return absl::InternalError("a peer sent too little");
  BoxMessage first = std::move(boxes.front());
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
    DT_ASSIGN_OR_RETURN(BoxMessage message, Pack(parts[send.part].src, send.dims));
    messages[send.receiver].push_back(std::move(message));
  }
  for (const ExchangePart& part : parts) {
    for (const ReceiveBox& box : part.receives) {
      for (int peer : box.peers) {
        if (peer != rank()) continue;
        DT_ASSIGN_OR_RETURN(BoxMessage message, Pack(part.src, box.dims));
        begun.own.push_back(std::move(message));
      }
    }
  }
  for (auto& [peer, boxes] : messages) {
    if (peer == rank()) continue;
    begun.sent[peer] = BytesOf(boxes);
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
  DT_RETURN_IF_ERROR(CheckNative(collective, rank(), begun.sent, inbox));
  int64_t messages = 0, bytes = 0;
  for (const ExchangePart& part : begun.parts) {
    for (const ReceiveBox& box : part.receives) {
      std::vector<BoxMessage> terms;
      for (int peer : box.peers) {
        DT_ASSIGN_OR_RETURN(BoxMessage term, TakeFirst(peer == rank() ? begun.own : inbox[peer]));
        messages += peer != rank();
        bytes += peer != rank() ? term.bytes.size() : 0;
        terms.push_back(std::move(term));
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
