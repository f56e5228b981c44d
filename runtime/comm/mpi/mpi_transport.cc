#include "dtensor/runtime/comm/mpi/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/mpi/mpi_session.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

enum class Kind : uint8_t { kNote = 1, kMessage, kLeave };
constexpr int kNoteTag = 0;  // messages have higher tags
constexpr size_t kHeaderBytes = 9;
// How long to wait for the last messages of a rank, when the control plane says that all ranks have
// returned.
constexpr std::chrono::seconds kGrace(1);

WireWriter Header(Kind kind, uint64_t channel) {
  WireWriter header;
  header.U8(static_cast<uint8_t>(kind));
  header.U64(channel);
  return header;
}

int MostTag(MPI_Comm comm, int wanted) {
  if (wanted > 0) return wanted;
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found);
  return found != 0 ? *static_cast<int*>(value) : 32767;
}

int RanksOf(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

int RankIn(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

}  // namespace

// kSendAndHear is done when the receiver has begun to take it in.
enum class MpiTransport::How : uint8_t { kSend, kSendAndHear, kReceive };

// A note or a message in flight.
struct MpiTransport::Transfer {
  int peer;
  How how;
  std::string text;                   // a note
  std::unique_ptr<std::byte[]> kept;  // a message's bytes, if copied (keeps_bytes)
  absl::Span<std::byte> into;         // where `kept` then goes, for a received message
  uint64_t size = 0;                  // of a message
  int* pending = nullptr;             // of a message
  int unfinished = 0;                 // MPI messages that are not done
};

struct MpiTransport::Peer {
  struct Slot {
    absl::Span<std::byte> into;
    int* pending;
  };
  struct Announced {
    uint64_t size;
    int tag;
  };
  struct Channel {
    std::deque<std::string> notes;
    std::deque<Slot> slots;
    std::deque<Announced> announced;  // messages without memory so far
  };

  std::map<uint64_t, Channel> channels;
  std::set<int> tags;                              // of announced messages
  std::deque<std::unique_ptr<Transfer>> arriving;  // notes, in the order in which they were sent
  int64_t not_received = 0;                        // messages that were announced and not received
  uint64_t moved = 0;                              // bytes of messages
  bool left = false;
  absl::Status lost;
};

MpiTransport::MpiTransport(MPI_Comm comm, WorldState& world, const MpiOptions& options)
    : comm_(comm),
      world_(world),
      options_(options),
      most_tag_(MostTag(comm, options.most_tag)),
      peers_(RanksOf(comm)),
      watch_([&world] { return world.failure(); }, {.who = absl::StrCat("rank ", RankIn(comm))}) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int>(peer) != RankIn(comm)) peers_[peer] = std::make_unique<Peer>();
  }
  world_.TellOfFailure([this] { watch_.Wake(); });
  BeginMpiWorld();
}

MpiTransport::~MpiTransport() {
  const bool failed = !world_.failure().ok();
  const bool under_way = std::any_of(
      transfers_.begin(), transfers_.end(),
      [](const auto& transfer) { return transfer->pending != nullptr && !transfer->kept; });
  Cancel();
  if (drained_ && !failed && MpiIsRunning()) {
    MPI_Comm comm = comm_;
    watch_.Call("MPI_Comm_free", [&] { return MPI_Comm_free(&comm); });
  }
  world_.TellOfFailure(nullptr);
  EndMpiWorld(!failed ? MpiEnd::kClean : under_way ? MpiEnd::kFailedUnderWay : MpiEnd::kFailed);
  if (transfers_.empty()) return;
  // MPI refers to them for as long as the transport exists.
  static std::mutex mutex;
  static auto& kept = *new std::list<std::unique_ptr<Transfer>>;
  const std::lock_guard lock(mutex);
  kept.splice(kept.end(), transfers_);
}

// Returns false if MPI must not be called any more.
bool MpiTransport::CanCall() {
  if (cancelled_ || !world_.failure().ok()) return false;
  if (MpiIsRunning()) return true;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer] == nullptr) continue;
    Lose(peer, absl::FailedPreconditionError("MPI_Finalize was called before the world ended"));
  }
  return false;
}

// --- Sending and receiving.

// Transfers all of `bytes`: a note as a whole, a message as MPI messages of one tag, which arrive
// in order.
void MpiTransport::Start(std::unique_ptr<Transfer> made, absl::Span<std::byte> bytes, int tag) {
  const SigpipeGuard guard;
  Transfer& transfer = *transfers_.emplace_back(std::move(made));
  const bool receives = transfer.how == How::kReceive, hears = transfer.how == How::kSendAndHear;
  const auto send = hears ? MPI_Issend : MPI_Isend;
  const char* const name = receives ? "MPI_Irecv" : hears ? "MPI_Issend" : "MPI_Isend";
  const size_t most = tag == kNoteTag ? bytes.size() : options_.most_bytes;
  for (size_t at = 0; at < bytes.size(); at += most) {
    const absl::Span<std::byte> part = bytes.subspan(at, most);
    const int size = static_cast<int>(part.size());
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = watch_.Call(name, [&] {
      return receives ? MPI_Irecv(part.data(), size, MPI_BYTE, transfer.peer, tag, comm_, &request)
                      : send(part.data(), size, MPI_BYTE, transfer.peer, tag, comm_, &request);
    });
    if (code != MPI_SUCCESS) return Lose(transfer.peer, MpiError(name, code));
    requests_.push_back(request);
    of_.push_back(&transfer);
    ++transfer.unfinished;
  }
}

void MpiTransport::StartText(int peer, std::string text, How how) {
  auto transfer = std::make_unique<Transfer>(Transfer{.peer = peer, .how = how});
  transfer->text = std::move(text);
  const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(transfer->text.data()),
                                    transfer->text.size());
  Start(std::move(transfer), bytes, kNoteTag);
}

void MpiTransport::SendNote(int peer, uint64_t channel, absl::string_view note) {
  DT_CHECK(note.size() <= kMostNoteBytes);
  if (!CanCall() || !peers_[peer]->lost.ok()) return;
  WireWriter text = Header(Kind::kNote, channel);
  text.Raw(note);
  StartText(peer, text.bytes(), How::kSend);
}

void MpiTransport::Send(int peer, uint64_t channel, SentRows rows, int& pending) {
  if (cancelled_) return;
  const absl::Span<const std::byte> bytes = rows.only();
  ++pending;
  if (!CanCall() || !peers_[peer]->lost.ok()) return;
  last_tag_ = last_tag_ < most_tag_ ? last_tag_ + 1 : kNoteTag + 1;
  WireWriter text = Header(Kind::kMessage, channel);
  text.U64(bytes.size());
  text.U32(static_cast<uint32_t>(last_tag_));
  StartText(peer, text.bytes(), How::kSend);
  if (bytes.empty()) {
    --pending;
    return;
  }
  auto transfer =
      std::make_unique<Transfer>(Transfer{.peer = peer, .how = How::kSend, .pending = &pending});
  transfer->size = bytes.size();
  // MPI's interface takes memory that is sent as if it might be written; it does not write it.
  absl::Span<std::byte> from(const_cast<std::byte*>(bytes.data()), bytes.size());
  if (options_.keeps_bytes) {
    transfer->kept.reset(new std::byte[bytes.size()]);
    std::memcpy(transfer->kept.get(), bytes.data(), bytes.size());
    from = absl::MakeSpan(transfer->kept.get(), bytes.size());
  }
  Start(std::move(transfer), from, last_tag_);
}

void MpiTransport::Receive(int peer, uint64_t channel, TakenRows into, int& pending) {
  if (cancelled_) return;
  peers_[peer]->channels[channel].slots.push_back({into.only(), &pending});
  ++pending;
  if (CanCall()) Match(peer, channel);
}

// A message for which both the announcement and the memory are there.
void MpiTransport::Match(int peer, uint64_t channel) {
  Peer& from = *peers_[peer];
  Peer::Channel& on = from.channels[channel];
  while (from.lost.ok() && !on.slots.empty() && !on.announced.empty()) {
    const Peer::Slot slot = on.slots.front();
    const Peer::Announced message = on.announced.front();
    if (slot.into.size() != message.size) {
      return Lose(peer, InvalidArgument({"it sent a message of ", absl::StrCat(message.size),
                                         " bytes, where ", absl::StrCat(slot.into.size()),
                                         " are expected"}));
    }
    on.slots.pop_front();
    on.announced.pop_front();
    from.tags.erase(message.tag);
    auto transfer = std::make_unique<Transfer>(
        Transfer{.peer = peer, .how = How::kReceive, .into = slot.into, .pending = slot.pending});
    transfer->size = slot.into.size();
    if (slot.into.empty()) {
      Finish(*transfer);
      continue;
    }
    absl::Span<std::byte> into = slot.into;
    if (options_.keeps_bytes) {
      transfer->kept.reset(new std::byte[into.size()]);
      into = absl::MakeSpan(transfer->kept.get(), into.size());
    }
    Start(std::move(transfer), into, message.tag);
  }
}

void MpiTransport::Finish(Transfer& transfer) {
  if (transfer.pending == nullptr) return;
  --*transfer.pending;
  peers_[transfer.peer]->moved += transfer.size;
  if (transfer.how != How::kReceive) return;
  --peers_[transfer.peer]->not_received;
  if (transfer.kept) {
    std::memcpy(transfer.into.data(), transfer.kept.get(), transfer.into.size());
  }
}

std::optional<std::string> MpiTransport::TakeNote(int peer, uint64_t channel) {
  auto& channels = peers_[peer]->channels;
  const auto it = channels.find(channel);
  if (it == channels.end() || it->second.notes.empty()) return std::nullopt;
  std::string note = std::move(it->second.notes.front());
  it->second.notes.pop_front();
  return note;
}

// --- Progress.

void MpiTransport::Progress(std::chrono::microseconds longest) {
  const Clock::time_point start = Clock::now();
  while (CanCall() && !Look()) {
    const auto waited = Clock::now() - start;
    if (waited >= longest) return;
    PauseBetweenLooks(waited, longest - waited);
  }
}

// Returns whether anything was received or sent.
bool MpiTransport::Look() {
  const SigpipeGuard guard;
  const bool any_note = TakeNotesIn();
  if (requests_.empty()) return any_note;
  std::vector<int> done(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  int count = 0;
  const int code = watch_.Call("MPI_Testsome", [&] {
    return MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done.data(),
                        statuses.data());
  });
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    LoseAll(MpiError("MPI_Testsome", code));
    return any_note;
  }
  if (count == MPI_UNDEFINED || count == 0) return any_note;
  std::vector<Transfer*> finished;
  for (int i = 0; i < count; ++i) {
    Transfer* const transfer = of_[done[i]];
    of_[done[i]] = nullptr;
    if (code == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR != MPI_SUCCESS) {
      Lose(transfer->peer, MpiError("MPI_Testsome", statuses[i].MPI_ERROR));
    } else if (--transfer->unfinished == 0) {
      finished.push_back(transfer);
    }
  }
  std::erase_if(requests_, [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
  std::erase(of_, nullptr);
  for (Transfer* const transfer : finished) Finish(*transfer);
  std::erase_if(transfers_, [](const auto& transfer) { return transfer->unfinished == 0; });
  // Notes are read in order, even if a long one takes longer.
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer] == nullptr) continue;
    auto& arriving = peers_[peer]->arriving;
    while (!arriving.empty() && arriving.front()->unfinished == 0) {
      const std::unique_ptr<Transfer> note = std::move(arriving.front());
      arriving.pop_front();
      Read(static_cast<int>(peer), note->text);
    }
  }
  return true;
}

// Starts to receive all notes that have come. Returns whether there were any.
bool MpiTransport::TakeNotesIn() {
  bool any = false;
  while (true) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = watch_.Call("MPI_Improbe", [&] {
      return MPI_Improbe(MPI_ANY_SOURCE, kNoteTag, comm_, &found, &message, &status);
    });
    if (code != MPI_SUCCESS) {
      LoseAll(MpiError("MPI_Improbe", code));
      return any;
    }
    if (found == 0) return any;
    any = true;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    auto note =
        std::make_unique<Transfer>(Transfer{.peer = status.MPI_SOURCE, .how = How::kReceive});
    note->text.resize(size);
    MPI_Request request = MPI_REQUEST_NULL;
    const int asked = watch_.Call("MPI_Imrecv", [&] {
      return MPI_Imrecv(note->text.data(), size, MPI_BYTE, &message, &request);
    });
    if (asked != MPI_SUCCESS) {
      Lose(note->peer, MpiError("MPI_Imrecv", asked));
      continue;
    }
    note->unfinished = 1;
    requests_.push_back(request);
    of_.push_back(note.get());
    peers_[note->peer]->arriving.push_back(std::move(note));
  }
}

void MpiTransport::Read(int peer, absl::string_view text) {
  Peer& from = *peers_[peer];
  WireReader in(text);
  const auto kind = static_cast<Kind>(in.U8());
  const uint64_t channel = in.U64();
  if (kind == Kind::kNote && in.ok()) {
    from.channels[channel].notes.emplace_back(text.substr(kHeaderBytes));
    return;
  }
  const bool is_message = kind == Kind::kMessage;
  const uint64_t size = is_message ? in.U64() : 0;
  const int64_t tag = is_message ? in.U32() : 0;
  const bool is_known = is_message ? kNoteTag < tag && tag <= most_tag_ : kind == Kind::kLeave;
  if (!in.done() || !is_known) {
    return Lose(peer, InvalidArgument({"it sent what no rank sends"}));
  }
  from.left |= kind == Kind::kLeave;
  if (!is_message) return;
  if (!from.tags.insert(static_cast<int>(tag)).second) {
    return Lose(peer, absl::ResourceExhaustedError(
                          "it sent more messages that wait for memory than MPI has tags"));
  }
  ++from.not_received;
  from.channels[channel].announced.push_back({.size = size, .tag = static_cast<int>(tag)});
  Match(peer, channel);
}

void MpiTransport::Lose(int peer, const absl::Status& why) {
  if (peers_[peer]->lost.ok()) peers_[peer]->lost = why;
}

void MpiTransport::LoseAll(const absl::Status& why) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer] != nullptr) Lose(static_cast<int>(peer), why);
  }
}

uint64_t MpiTransport::moved(int peer) const { return peers_[peer]->moved; }

absl::Status MpiTransport::lost(int peer) const { return peers_[peer]->lost; }

// --- The end.

void MpiTransport::Leave() {
  if (!CanCall()) return;
  leaves_ = true;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer] == nullptr || !peers_[peer]->lost.ok()) continue;
    StartText(static_cast<int>(peer), Header(Kind::kLeave, 0).bytes(), How::kSendAndHear);
  }
}

bool MpiTransport::has_left(int peer) const {
  return peers_[peer]->left && peers_[peer]->not_received == 0;
}

// MPI may hold back what it has reported as sent. So this rank continues to call MPI until all
// others have what they want, that is, until they have left as well.
bool MpiTransport::is_sending() const {
  if (cancelled_) return false;
  bool all_left = true, all_returned = true;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer] == nullptr) continue;
    all_left &= has_left(peer);
    all_returned &= world_.returned(static_cast<int>(peer)).has_value();
  }
  if (transfers_.empty() && (!leaves_ || all_left)) return false;
  if (!leaves_ || !all_returned) return true;
  if (!over_) over_ = Clock::now();
  return Clock::now() - *over_ < kGrace;
}

void MpiTransport::Cancel() {
  if (cancelled_) return;
  cancelled_ = true;
  drained_ = transfers_.empty();
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer] == nullptr) continue;
    drained_ &= has_left(peer) && peers_[peer]->arriving.empty();
    peers_[peer]->channels.clear();
    // MPI still writes to them.
    for (auto& note : peers_[peer]->arriving) transfers_.push_back(std::move(note));
    peers_[peer]->arriving.clear();
  }
}

}  // namespace dtensor
