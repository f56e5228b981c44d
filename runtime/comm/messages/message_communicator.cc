#include "dtensor/runtime/comm/messages/message_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/box.h"
#include "dtensor/runtime/net/wire.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

enum class Note : uint8_t { kCall = 1, kGo, kSummary };

uint64_t Mix(uint64_t hash, absl::string_view bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}
uint64_t Mix(uint64_t hash, uint64_t value) {
  return Mix(hash, {reinterpret_cast<const char*>(&value), sizeof(value)});
}

// The same on all hosts of a job, whose byte order is one.
uint64_t ChannelOf(absl::Span<const int> ranks) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const int rank : ranks) hash = Mix(hash, static_cast<uint64_t>(rank));
  return hash;
}

uint64_t FingerprintOf(const Collective& collective, size_t parts) {
  uint64_t hash = Mix(0xcbf29ce484222325ull, collective.op);
  hash = Mix(hash, static_cast<uint64_t>(collective.kind));
  return Mix(Mix(hash, collective.digest), static_cast<uint64_t>(parts));
}

std::string EncodeNote(uint64_t number, Note kind, absl::string_view body = {}) {
  WireWriter note;
  note.U64(number);
  note.U8(static_cast<uint8_t>(kind));
  note.Raw(body);
  return note.bytes();
}

DType SentType(const ExchangePart& part) {
  return (part.src.defined() ? part.src : part.dst).dtype();
}

int64_t DefaultPiece(int size) {
  return std::clamp<int64_t>((int64_t{16} << 20) / (4 * size), 64 << 10, 1 << 20);
}

// What a rank receives from itself alone.
absl::Status MoveOwn(const ExchangePart& part, const ReceiveBox& box) {
  const Tensor* const sources[] = {&part.src};
  const kernels::BoxMove move(box, part.dst, sources, part.op, part.scale);
  return move.is_done() ? absl::OkStatus()
                        : kernels::MoveBoxes(part.dst.device(), "Exchange", {&move, 1});
}

}  // namespace

// What one peer receives from here.
struct MessageCommunicator::Outgoing {
  int peer;
  std::vector<SendBox> boxes;
  int64_t bytes = 0;
  bool eager = false, go = false;
  // What of it was given to the transport: boxes before `box`, and of that pieces before `piece`.
  size_t box = 0, piece = 0;
  std::vector<BoxDims> pieces;
  int pending = 0;
  // Those that may be on their way, in turn: of two, the older one is done first.
  Tensor staged[2];
  size_t given = 0;  // to the transport, pieces
  bool sent() const { return eager || (go && box == boxes.size() && pending == 0); }
};

struct MessageCommunicator::Incoming {
  bool called = false;
  uint64_t fingerprint = 0;
  std::string eager;  // what it sent at once
  size_t taken = 0;   // bytes of it
  std::optional<CallSummary> summary;
};

struct MessageCommunicator::Exchange {
  Group* group;
  const Collective* collective;
  absl::Span<const ExchangePart> parts;
  uint64_t number, fingerprint;
  std::shared_ptr<const void> owner;  // of what was dropped
  std::vector<Outgoing> outgoing;
  std::map<int, Incoming> incoming;
  int64_t messages = 0, bytes = 0;
};

MessageCommunicator::MessageCommunicator(int rank, int size, Device& device,
                                         MessageTransport& transport, WorldState& world,
                                         const MessageOptions& options)
    : rank_(rank),
      size_(size),
      device_(device),
      transport_(transport),
      world_(world),
      piece_bytes_(options.piece_bytes > 0 ? options.piece_bytes : DefaultPiece(size)),
      eager_bytes_(options.eager_bytes),
      everyone_(size),
      lists_(rank) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

MessageCommunicator::~MessageCommunicator() = default;

// --- The life of an exchange.

absl::Status MessageCommunicator::Begin(const Collective& collective,
                                        absl::Span<const ExchangePart> parts) {
  DT_RETURN_IF_ERROR(failure());
  DT_RETURN_IF_ERROR(CheckExchange(collective, parts, rank_, size_, &device_));
  if (collective.group.size() > 1 && !parts.empty() && collective.boxes == nullptr) {
    return InvalidArgument({ExchangeLabel(collective),
                            "says nothing of what others receive (Collective::boxes), which ranks "
                            "that cannot read each other's memory have to know"});
  }
  // Whatever goes wrong from here on, peers may have heard of this exchange.
  const absl::Status status = NoThrow([&] { return Start(collective, parts); });
  return status.ok() ? status : Fail(status);
}

absl::Status MessageCommunicator::Start(const Collective& collective,
                                        absl::Span<const ExchangePart> parts) {
  Group& group = GroupOf(collective.group);
  if (Exchange* const before = group.exchange; before != nullptr) {
    const Collective* const known = before->collective;
    const std::shared_ptr<const void> dropped = before->owner;
    const absl::Status status = Complete(*before);
    if (dropped == nullptr) finished_.emplace_back(known, status);
    DT_RETURN_IF_ERROR(failure());
  }
  auto exchange = std::make_unique<Exchange>();
  exchange->group = &group;
  exchange->collective = &collective;
  exchange->parts = parts;
  exchange->number = ++group.number;
  exchange->fingerprint = FingerprintOf(collective, parts.size());
  group.exchange = exchange.get();
  exchanges_.push_back(std::move(exchange));
  FindOutgoing(*group.exchange);
  DT_RETURN_IF_ERROR(TellCall(*group.exchange));
  return Advance(microseconds(0));
}

absl::Status MessageCommunicator::Finish(const Collective& collective) {
  if (Exchange* const exchange = Find(collective); exchange != nullptr) return Complete(*exchange);
  const auto known = absl::c_find_if(
      finished_, [&](const auto& finished) { return finished.first == &collective; });
  if (known == finished_.end()) return failure();  // it never began
  const absl::Status status = std::move(known->second);
  finished_.erase(known);
  return status;
}

absl::Status MessageCommunicator::Complete(Exchange& exchange) {
  absl::Status status = NoThrow([&] { return Perform(exchange); });
  if (!status.ok()) {
    status = Fail(status);
    transport_.Cancel();
  }
  Forget(exchange);
  return status;
}

absl::Status MessageCommunicator::Perform(Exchange& exchange) {
  DT_RETURN_IF_ERROR(failure());
  DT_RETURN_IF_ERROR(CompareCalls(exchange));
  DT_RETURN_IF_ERROR(ReceiveAll(exchange));
  for (const Outgoing& outgoing : exchange.outgoing) {
    DT_RETURN_IF_ERROR(Await(exchange, outgoing.peer, [&] { return outgoing.sent(); }));
  }
  Count(*exchange.collective, exchange.messages, exchange.bytes);
  return absl::OkStatus();
}

void MessageCommunicator::Drop(const Collective& collective, std::shared_ptr<const void> owner) {
  Exchange* const exchange = Find(collective);
  if (exchange == nullptr) {
    std::erase_if(finished_, [&](const auto& known) { return known.first == &collective; });
  } else if (ended_ || !failure().ok()) {
    transport_.Cancel();
    Forget(*exchange);
  } else {
    exchange->owner = std::move(owner);
  }
}

absl::Status MessageCommunicator::FinishDropped() {
  while (true) {
    const auto first = absl::c_find_if(
        exchanges_, [](const auto& exchange) { return exchange->owner != nullptr; });
    if (first == exchanges_.end()) return absl::OkStatus();
    const std::shared_ptr<const void> owner = (*first)->owner;
    DT_RETURN_IF_ERROR(Complete(**first));
  }
}

absl::Status MessageCommunicator::Barrier(absl::string_view what) {
  DT_RETURN_IF_ERROR(failure());
  const Collective everybody = {.op = what, .group = everyone_, .counts_as_call = false};
  const absl::Status status = NoThrow([&] { return Start(everybody, {}); });
  return status.ok() ? Finish(everybody) : Fail(status);
}

absl::Status MessageCommunicator::Fail(const absl::Status& reason) {
  const absl::Status known = failure();
  return known.ok() ? world_.Fail(rank_, reason) : known;
}

void MessageCommunicator::End() {
  ended_ = true;
  transport_.Cancel();
  while (!exchanges_.empty()) Forget(*exchanges_.front());
}

MessageCommunicator::Exchange* MessageCommunicator::Find(const Collective& collective) {
  for (const auto& exchange : exchanges_) {
    if (exchange->collective == &collective) return exchange.get();
  }
  return nullptr;
}

void MessageCommunicator::Forget(Exchange& exchange) {
  exchange.group->exchange = nullptr;
  exchanges_.remove_if([&](const auto& known) { return known.get() == &exchange; });
}

MessageCommunicator::Group& MessageCommunicator::GroupOf(absl::Span<const int> ranks) {
  for (Group& group : groups_) {
    if (group.ranks == ranks) return group;
  }
  groups_.push_back({{ranks.begin(), ranks.end()}, ChannelOf(ranks)});
  return groups_.back();
}

// --- Sending.

void MessageCommunicator::FindOutgoing(Exchange& exchange) {
  std::map<int, Outgoing> by_peer;
  for (const int peer : exchange.group->ranks) {
    if (peer == rank_) continue;
    by_peer[peer].peer = peer;
    exchange.incoming[peer];
  }
  if (!exchange.parts.empty() && !by_peer.empty()) {
    for (const SendBox& box : lists_.Of(*exchange.collective, exchange.parts.size())) {
      Outgoing& outgoing = by_peer.at(box.receiver);
      const int64_t elements = NumElements(ShapeOf(box.dims));
      if (elements == 0) continue;
      outgoing.bytes += elements * SizeOf(SentType(exchange.parts[box.part]));
      outgoing.boxes.push_back(box);
    }
  }
  for (auto& [peer, outgoing] : by_peer) {
    outgoing.eager = outgoing.bytes <= eager_bytes_;
    exchange.outgoing.push_back(std::move(outgoing));
  }
}

absl::Status MessageCommunicator::TellCall(Exchange& exchange) {
  WireWriter fingerprint;
  fingerprint.U64(exchange.fingerprint);
  for (const Outgoing& outgoing : exchange.outgoing) {
    std::string body = fingerprint.bytes();
    if (outgoing.eager) {
      DT_ASSIGN_OR_RETURN(const std::string packed, PackAll(exchange, outgoing));
      body += packed;
    }
    transport_.SendNote(outgoing.peer, exchange.group->channel,
                        EncodeNote(exchange.number, Note::kCall, body));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MessageCommunicator::PackAll(const Exchange& exchange,
                                                         const Outgoing& outgoing) {
  std::vector<Tensor> packed;
  for (const SendBox& box : outgoing.boxes) {
    const Tensor& source = exchange.parts[box.part].src;
    DT_ASSIGN_OR_RETURN(Tensor piece, Tensor::Empty(device_, source.dtype(), ShapeOf(box.dims)));
    DT_RETURN_IF_ERROR(PackPiece(source, box.dims, piece));
    packed.push_back(std::move(piece));
  }
  DT_RETURN_IF_ERROR(Settle());
  std::string bytes;
  for (const Tensor& piece : packed) bytes.append(piece.data<char>(), piece.bytes());
  return bytes;
}

absl::Status MessageCommunicator::SendMore(Exchange& exchange, Outgoing& outgoing) {
  while (outgoing.go && !outgoing.eager && outgoing.box < outgoing.boxes.size()) {
    const SendBox& box = outgoing.boxes[outgoing.box];
    const Tensor& source = exchange.parts[box.part].src;
    if (outgoing.pieces.empty()) {
      outgoing.pieces = CutBox(box.dims, piece_bytes_ / SizeOf(source.dtype()));
    }
    if (outgoing.pending >= 2) return absl::OkStatus();
    const BoxDims& piece = outgoing.pieces[outgoing.piece];
    std::optional<absl::Span<std::byte>> bytes = RunOf(source, piece, BoxSide::kSource);
    if (!bytes) {
      Tensor& staged = outgoing.staged[outgoing.given % 2];
      staged = Tensor();
      DT_ASSIGN_OR_RETURN(staged, Tensor::Empty(device_, source.dtype(), ShapeOf(piece)));
      DT_RETURN_IF_ERROR(PackPiece(source, piece, staged));
      bytes = absl::MakeSpan(staged.data<std::byte>(), static_cast<size_t>(staged.bytes()));
    }
    DT_RETURN_IF_ERROR(Settle());
    transport_.Send(outgoing.peer, exchange.group->channel, *bytes, outgoing.pending);
    ++outgoing.given;
    if (++outgoing.piece < outgoing.pieces.size()) continue;
    ++outgoing.box;
    outgoing.piece = 0;
    outgoing.pieces.clear();
  }
  return absl::OkStatus();
}

// --- Agreement.

void MessageCommunicator::TakeNotes(Exchange& exchange) {
  for (const auto& [peer, incoming] : exchange.incoming) {
    std::deque<std::string>& notes = exchange.group->notes[peer];
    while (auto note = transport_.TakeNote(peer, exchange.group->channel)) {
      notes.push_back(*std::move(note));
    }
    // Those of the next exchange wait for it.
    while (!notes.empty() && WireReader(notes.front()).U64() <= exchange.number) {
      ReadNote(exchange, peer, notes.front());
      notes.pop_front();
    }
  }
}

void MessageCommunicator::ReadNote(Exchange& exchange, int peer, absl::string_view note) {
  WireReader in(note);
  if (in.U64() != exchange.number) return;
  const auto kind = static_cast<Note>(in.U8());
  Incoming& incoming = exchange.incoming.at(peer);
  if (kind == Note::kCall) {
    incoming.called = true;
    incoming.fingerprint = in.U64();
    if (in.ok()) incoming.eager = std::string(note.substr(17));
  } else if (kind == Note::kGo) {
    for (Outgoing& outgoing : exchange.outgoing) outgoing.go |= outgoing.peer == peer;
  } else if (kind == Note::kSummary) {
    CallSummary summary;
    summary.op = in.Text();
    summary.kind = in.Text();
    summary.what = in.Text();
    summary.described = in.U8() != 0;
    incoming.summary = std::move(summary);
  }
}

absl::Status MessageCommunicator::CompareCalls(Exchange& exchange) {
  for (const auto& [peer, incoming] : exchange.incoming) {
    DT_RETURN_IF_ERROR(Await(exchange, peer, [&, of = &incoming] { return of->called; }));
  }
  int other = -1;
  const Collective& collective = *exchange.collective;
  for (const auto& [peer, incoming] : exchange.incoming) {
    if (incoming.fingerprint == exchange.fingerprint) continue;
    if (other < 0) other = peer;
    const CallSummary mine = SummaryOf(collective.op, collective.kind, collective.digest,
                                       collective.description, exchange.parts.size());
    WireWriter summary;
    for (const std::string& text : {mine.op, mine.kind, mine.what}) summary.Text(text);
    summary.U8(mine.described ? 1 : 0);
    if (summary.bytes().size() > MessageTransport::kMostNoteBytes / 2) continue;
    transport_.SendNote(peer, exchange.group->channel,
                        EncodeNote(exchange.number, Note::kSummary, summary.bytes()));
  }
  return other < 0 ? absl::OkStatus() : DisagreeWith(exchange, other);
}

absl::Status MessageCommunicator::DisagreeWith(Exchange& exchange, int peer) {
  const Incoming& incoming = exchange.incoming.at(peer);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(2);
  while (!incoming.summary && Clock::now() < deadline && transport_.lost(peer).ok()) {
    DT_RETURN_IF_ERROR(Advance(microseconds(1000)));
    TakeNotes(exchange);
  }
  const Collective& collective = *exchange.collective;
  const CallSummary mine = SummaryOf(collective.op, collective.kind, collective.digest,
                                     collective.description, exchange.parts.size());
  const CallSummary unknown = {"?", "?", "it does not say", false};
  return Disagreement(exchange.number, exchange.group->ranks, rank_, mine, peer,
                      incoming.summary.value_or(unknown));
}

// --- Receiving.

int64_t MessageCommunicator::BytesFrom(const Exchange& exchange, int peer) const {
  int64_t bytes = 0;
  for (const ExchangePart& part : exchange.parts) {
    for (const ReceiveBox& box : part.receives) {
      bytes += absl::c_count(box.peers, peer) * box.elements() * SizeOf(SentType(part));
    }
  }
  return bytes;
}

// A native collective gives each rank as much from every peer as from others, and as much as it
// gives them; a plan that says so of another exchange would hang where a backend takes it at its
// word.
absl::Status MessageCommunicator::CheckNative(const Exchange& exchange) const {
  for (const Outgoing& outgoing : exchange.outgoing) {
    const int64_t bytes = BytesFrom(exchange, outgoing.peer);
    if (bytes == outgoing.bytes && bytes == BytesFrom(exchange, exchange.outgoing[0].peer))
      continue;
    return absl::InternalError(absl::StrCat(ExchangeLabel(*exchange.collective), "rank ", rank_,
                                            " and rank ", outgoing.peer,
                                            " do not get alike in a native collective"));
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::ReceiveAll(Exchange& exchange) {
  if (exchange.collective->native) DT_RETURN_IF_ERROR(CheckNative(exchange));
  for (auto& [peer, incoming] : exchange.incoming) {
    const int64_t bytes = BytesFrom(exchange, peer);
    if (bytes > eager_bytes_) {
      transport_.SendNote(peer, exchange.group->channel, EncodeNote(exchange.number, Note::kGo));
    } else if (static_cast<int64_t>(incoming.eager.size()) != bytes) {
      return absl::InternalError(absl::StrCat(ExchangeLabel(*exchange.collective), "rank ", peer,
                                              " sent ", incoming.eager.size(), " bytes, where ",
                                              bytes, " are expected"));
    }
  }
  for (const ExchangePart& part : exchange.parts) {
    for (const ReceiveBox& box : part.receives) {
      if (box.elements() > 0) DT_RETURN_IF_ERROR(Receive(exchange, part, box));
    }
  }
  return Settle();
}

absl::Status MessageCommunicator::Receive(Exchange& exchange, const ExchangePart& part,
                                          const ReceiveBox& box) {
  const int64_t others = box.peers.size() - absl::c_count(box.peers, rank_);
  const int64_t size = SizeOf(SentType(part));
  exchange.messages += others;
  exchange.bytes += others * box.elements() * size;
  if (others == 0) return MoveOwn(part, box);
  for (const BoxDims& piece : CutBox(box.dims, piece_bytes_ / size)) {
    DT_RETURN_IF_ERROR(ReceivePiece(exchange, part, box, piece));
  }
  return absl::OkStatus();
}

// Its terms come side by side, and in place if there is one and it is what the result is to be.
absl::Status MessageCommunicator::ReceivePiece(Exchange& exchange, const ExchangePart& part,
                                               const ReceiveBox& box, const BoxDims& piece) {
  const DType dtype = SentType(part);
  const bool is_copy = box.peers.size() == 1 && part.scale == 1 && dtype == part.dst.dtype();
  const auto in_place = is_copy ? RunOf(part.dst, piece, BoxSide::kResult) : std::nullopt;
  absl::InlinedVector<Tensor, 8> terms;
  for (size_t i = 0; i < box.peers.size() && !in_place; ++i) {
    DT_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(device_, dtype, ShapeOf(piece)));
    if (box.peers[i] == rank_) DT_RETURN_IF_ERROR(PackPiece(part.src, piece, term));
    terms.push_back(std::move(term));
  }
  DT_RETURN_IF_ERROR(Settle());  // the host writes where work may still be reading
  int pending = 0;
  for (size_t i = 0; i < box.peers.size(); ++i) {
    if (box.peers[i] == rank_) continue;
    const absl::Span<std::byte> into =
        in_place
            ? *in_place
            : absl::MakeSpan(terms[i].data<std::byte>(), static_cast<size_t>(terms[i].bytes()));
    DT_RETURN_IF_ERROR(ReceiveFrom(exchange, box.peers[i], into, pending));
  }
  for (const int peer : box.peers) {
    if (peer != rank_) DT_RETURN_IF_ERROR(Await(exchange, peer, [&] { return pending == 0; }));
  }
  return in_place ? absl::OkStatus() : CombinePiece(part, piece, terms);
}

absl::Status MessageCommunicator::ReceiveFrom(Exchange& exchange, int peer,
                                              absl::Span<std::byte> into, int& pending) {
  Incoming& incoming = exchange.incoming.at(peer);
  if (BytesFrom(exchange, peer) > eager_bytes_) {
    transport_.Receive(peer, exchange.group->channel, into, pending);
    return absl::OkStatus();
  }
  DT_CHECK(incoming.taken + into.size() <= incoming.eager.size());
  std::memcpy(into.data(), incoming.eager.data() + incoming.taken, into.size());
  incoming.taken += into.size();
  return absl::OkStatus();
}

// --- Waiting.

absl::Status MessageCommunicator::Await(const Exchange& exchange, int peer,
                                        const std::function<bool()>& over) {
  constexpr microseconds kSlice(20000);
  std::chrono::duration<double> waited(0);
  while (!over()) {
    DT_RETURN_IF_ERROR(failure());
    const Clock::time_point start = Clock::now();
    DT_RETURN_IF_ERROR(Advance(kSlice));
    if (over()) return absl::OkStatus();
    DT_RETURN_IF_ERROR(CheckPeer(exchange, peer));
    waited += std::min<std::chrono::duration<double>>(Clock::now() - start, 3 * kSlice);
    if (waited.count() < world_.timeout_seconds()) continue;
    return world_.Fail(
        peer, absl::DeadlineExceededError(absl::StrCat("silent for ", world_.timeout_seconds(),
                                                       " s: ", WaitText(exchange))));
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::Advance(microseconds longest) {
  transport_.Progress(longest);
  for (const auto& exchange : exchanges_) {
    TakeNotes(*exchange);
    for (Outgoing& outgoing : exchange->outgoing) {
      DT_RETURN_IF_ERROR(SendMore(*exchange, outgoing));
    }
  }
  return absl::OkStatus();
}

std::string MessageCommunicator::WaitText(const Exchange& exchange) const {
  return absl::StrCat("rank ", rank_, " waits for it in op \"", exchange.collective->op,
                      "\" (call ", exchange.number, " of ranks [",
                      absl::StrJoin(exchange.group->ranks, ", "), "])");
}

// Why `peer` will not do what is waited for.
absl::Status MessageCommunicator::CheckPeer(const Exchange& exchange, int peer) {
  DT_RETURN_IF_ERROR(failure());
  if (const absl::Status lost = transport_.lost(peer); !lost.ok()) {
    return world_.Fail(
        peer, absl::Status(lost.code(), absl::StrCat("its process is gone: ", lost.message(), " (",
                                                     WaitText(exchange), ")")));
  }
  const std::optional<absl::Status> returned =
      transport_.has_left(peer) ? world_.returned(peer) : std::nullopt;
  if (!returned) return absl::OkStatus();
  if (!returned->ok()) {
    return world_.Fail(peer, absl::Status(returned->code(), absl::StrCat(returned->message(), " (",
                                                                         WaitText(exchange), ")")));
  }
  return world_.Fail(peer, absl::AbortedError(absl::StrCat("returned while ", WaitText(exchange))));
}

absl::Status MessageCommunicator::Settle() {
  return device_.kind() == Device::Kind::kCpu ? absl::OkStatus() : device_.Synchronize();
}

}  // namespace dtensor
