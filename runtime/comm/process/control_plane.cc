#include "dtensor/runtime/comm/process/control_plane.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/descriptor.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/quiet_thread.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/admission.h"

namespace dtensor {
namespace {

using std::chrono::milliseconds;

constexpr double kLongest = 1e9;      // seconds: what a clock can add
constexpr milliseconds kGrace(2000);  // for others to learn of a failure
constexpr milliseconds kLook(100);    // interval to check joined ranks while others are missing

NetClock::duration ToDuration(std::chrono::duration<double> seconds) {
  return std::chrono::duration_cast<NetClock::duration>(seconds);
}

uint8_t TypeOf(ControlMessage message) { return static_cast<uint8_t>(message); }

absl::Status With(const absl::Status& status, absl::string_view before) {
  return absl::Status(status.code(), absl::StrCat(before, status.message()));
}

std::string RanksText(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::Status Gone(int rank, const absl::Status& why) {
  return With(why, absl::StrCat("rank ", rank, ": its process is gone: "));
}

// The card of a rank that has come. Waits for half of the time that is left, so that the others,
// which began earlier or later, still wait when they are told.
absl::StatusOr<std::string> AwaitCard(int rank, FramedLink& link, NetClock::time_point deadline) {
  const auto now = NetClock::now();
  const auto patience = std::max<NetClock::duration>(kGrace, (deadline - now) / 2);
  auto frame = link.Await(now + patience);
  if (absl::IsDeadlineExceeded(frame.status())) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(patience).count();
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank,
                                                    " came, and then said nothing for ", seconds,
                                                    " s; is its process stopped?"));
  }
  if (!frame.ok()) return Gone(rank, frame.status());
  if (frame->type != TypeOf(ControlMessage::kCard)) {
    return Gone(rank, InvalidArgument({"it sent what no rank sends"}));
  }
  return std::move(frame->body);
}

}  // namespace

ControlPlane::ControlPlane(const ControlPlaneOptions& options)
    : options_(options), returned_(options.size) {
  SetTimeout(std::clamp(options.timeout_seconds, 1e-6, kLongest));
}

void ControlPlane::SetTimeout(double seconds) {
  timeout_ = std::chrono::duration<double>(seconds);
  interval_ = milliseconds(static_cast<int64_t>(std::clamp(seconds * 1000 / 8, 20., 250.)));
}

absl::StatusOr<std::unique_ptr<ControlPlane>> ControlPlane::Join(const ControlPlaneOptions& options,
                                                                 const std::string& card,
                                                                 Socket listener) {
  DT_REQUIRE(0 <= options.rank && options.rank < options.size,
             "ControlPlane::Join: the rank must be one of the world's");
  std::unique_ptr<ControlPlane> made(new ControlPlane(options));
  made->listener_ = std::move(listener);
  absl::Status status = options.rank == 0 ? made->Gather(card) : made->Present(card);
  if (status.ok()) status = NoThrow([&] { return made->Start(); });
  if (!status.ok()) {
    return With(status,
                absl::StrCat("rank ", options.rank, " of ", options.size,
                             " cannot join the world at ", options.address.ToString(), ": "));
  }
  return made;
}

absl::Status ControlPlane::Gather(const std::string& card) {
  cards_.resize(size());
  cards_[0] = {"", card};
  if (size() == 1) return absl::OkStatus();
  const absl::Status status = Admit();
  if (status.ok()) {
    Broadcast(TypeOf(ControlMessage::kCards), Encode(WorldCards{timeout_.count(), cards_}));
    return status;
  }
  Broadcast(TypeOf(ControlMessage::kFailed), Encode(RankStatus{0, status}));
  for (auto& [rank, peer] : peers_) {
    if (peer.link.is_open()) peer.link.Flush().IgnoreError();
  }
  return status;
}

absl::Status ControlPlane::Admit() {
  if (!listener_.is_open()) {
    DT_ASSIGN_OR_RETURN(listener_, ListenAt(options_.address));
  }
  const NetClock::time_point deadline = DeadlineIn(timeout_.count());
  const auto is_awaited = [&](int rank) { return rank != 0 && peers_.find(rank) == peers_.end(); };
  Admission door(std::move(listener_), LinkKind::kControl, Key(), is_awaited);
  while (static_cast<int>(peers_.size()) + 1 < size()) {
    DT_ASSIGN_OR_RETURN(std::optional<Admitted> guest,
                        door.Next(std::min(deadline, NetClock::now() + kLook)));
    if (guest) {
      peers_.emplace(guest->rank, FramedLink(std::move(guest->socket), kMostControlBytes));
      continue;
    }
    DT_RETURN_IF_ERROR(CheckGuests());
    if (NetClock::now() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(MissingText(), " did not come within ", options_.timeout_seconds, " s",
                     door.TurnedAway(), "; start them, or wait longer"));
  }
  for (auto& [rank, peer] : peers_) {
    absl::StatusOr<std::string> host = PeerHostOf(peer.link.socket());
    if (!host.ok()) return Gone(rank, host.status());
    // It is on this host, which others reach by the address that they know.
    cards_[rank].host = IsLoopback(*host) ? "" : *std::move(host);
    DT_ASSIGN_OR_RETURN(cards_[rank].text, AwaitCard(rank, peer.link, deadline));
  }
  return absl::OkStatus();
}

// Checks the ranks that have joined, while others are missing.
absl::Status ControlPlane::CheckGuests() {
  absl::Status gone;
  for (auto& [rank, peer] : peers_) {
    const absl::Status status = peer.link.Receive();
    if (!status.ok() && gone.ok()) {
      gone = Gone(rank, With(status, absl::StrCat("before ", MissingText(), " came, ")));
    }
    if (!status.ok()) peer.link.Close();
  }
  return gone;
}

std::string ControlPlane::MissingText() const {
  std::vector<int> missing;
  for (int rank = 1; rank < size(); ++rank) {
    if (peers_.find(rank) == peers_.end()) missing.push_back(rank);
  }
  return absl::StrCat(RanksText(missing), " of ", size());
}

absl::Status ControlPlane::Present(const std::string& card) {
  const NetClock::time_point deadline = DeadlineIn(timeout_.count());
  DT_ASSIGN_OR_RETURN(Socket socket,
                      ConnectAs(LinkKind::kControl, rank(), Key(), options_.address, deadline));
  FramedLink& link =
      peers_.emplace(0, FramedLink(std::move(socket), kMostControlBytes)).first->second.link;
  link.Queue(TypeOf(ControlMessage::kCard), card);
  if (const absl::Status sent = link.Flush(); !sent.ok()) return Gone(0, sent);
  const auto frame = link.Await(deadline + kGrace);
  if (absl::IsDeadlineExceeded(frame.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank 0: listens, but has not said within ", options_.timeout_seconds,
                     " s that all ranks are there; start the others sooner, or wait longer"));
  }
  if (!frame.ok()) return Gone(0, frame.status());
  if (frame->type == TypeOf(ControlMessage::kFailed)) {
    DT_ASSIGN_OR_RETURN(const RankStatus why, ReadRankStatus(frame->body, size()));
    return why.status.ok() ? absl::UnavailableError("rank 0 gave up") : why.status;
  }
  if (frame->type != TypeOf(ControlMessage::kCards)) {
    return absl::FailedPreconditionError("rank 0 speaks another language");
  }
  DT_ASSIGN_OR_RETURN(WorldCards cards, ReadCards(frame->body, size()));
  cards_ = std::move(cards.ranks);
  SetTimeout(cards.timeout_seconds);
  return absl::OkStatus();
}

absl::Status ControlPlane::Start() {
  const NetClock::time_point now = NetClock::now();
  for (auto& [rank, peer] : peers_) peer.heard = peer.said = now;
  looked_ = now;
  if (size() == 1) return absl::OkStatus();
  wake_fd_ = OffStandardStreams(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake_fd_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no descriptor to wake a thread by (", std::strerror(errno),
                     "); raise this process's limit of open files (ulimit -n)"));
  }
  try {
    thread_ = QuietThread([this] { Run(); });
  } catch (const std::exception& exception) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system has no thread that hears the other ranks (", exception.what(),
                     "); run fewer ranks on this host, or raise the limits of the process (ulimit "
                     "-u, ulimit -v)"));
  }
  return absl::OkStatus();
}

ControlPlane::~ControlPlane() {
  if (thread_.joinable()) {
    if (!returned(rank())) Leave(absl::OkStatus());
    AwaitEnd();
    End();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

void ControlPlane::End() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Wake();
  thread_.join();
  const std::lock_guard lock(mutex_);
  for (auto& [rank, peer] : peers_) peer.link.Close();
}

void ControlPlane::Wake() {
  const uint64_t one = 1;
  if (wake_fd_ >= 0) (void)!write(wake_fd_, &one, sizeof(one));
}

// --- Queries.

absl::Status ControlPlane::Fail(int rank, const absl::Status& reason) {
  DT_REQUIRE(!reason.ok(), "ControlPlane::Fail: the reason must be an error");
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  const absl::Status failure = With(reason, absl::StrCat("rank ", rank, ": "));
  const auto rank0 = peers_.find(0);
  const bool asks = rank0 != peers_.end() && rank0->second.link.is_open();
  if (!asks) {
    SetFailure(failure);
  } else {
    rank0->second.link.Queue(TypeOf(ControlMessage::kFail), Encode(RankStatus{rank, failure}));
  }
  Wake();
  changed_.wait_for(lock, kGrace, [&] { return !failure_.ok(); });
  if (failure_.ok()) SetFailure(failure);  // rank 0 does not answer
  return failure_;
}

absl::Status ControlPlane::failure() const {
  if (!failed()) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ControlPlane::TellOfFailure(std::function<void()> told) {
  const std::lock_guard lock(mutex_);
  told_of_failure_ = std::move(told);
  if (!failure_.ok() && told_of_failure_) told_of_failure_();
}

void ControlPlane::Leave(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (returned_[rank()]) return;
    SetLeft(rank(), status);
    const auto rank0 = peers_.find(0);
    if (rank0 != peers_.end()) {
      rank0->second.link.Queue(TypeOf(ControlMessage::kLeave), Encode(RankStatus{rank(), status}));
    }
  }
  Wake();
}

std::optional<absl::Status> ControlPlane::returned(int rank) const {
  const std::lock_guard lock(mutex_);
  return returned_[rank];
}

void ControlPlane::AwaitEnd(absl::FunctionRef<bool()> work) {
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return size() == 1 || over_ || !failure_.ok(); };
  const NetClock::time_point late = DeadlineIn(timeout_.count());
  bool works = true, is_late = false;
  while (works || !ended()) {
    if (works) {
      lock.unlock();
      works = work();
      lock.lock();
    } else if (is_late) {
      changed_.wait(lock, ended);
    } else {
      changed_.wait_until(lock, late, ended);
    }
    if (is_late || ended() || NetClock::now() < late) continue;
    is_late = true;
    ReportWaits(lock);
  }
  if (size() == 1) return;
  // Rank 0 stays until the others know, and have closed their connections. They learn of the end
  // from rank 0; and if it closed a connection with unread heartbeats, the connection would be
  // reset, which discards what has not reached the peer.
  changed_.wait_for(lock, kGrace, [&] { return told_all(); });
}

void ControlPlane::ReportWaits(std::unique_lock<std::mutex>& lock) {
  const absl::Status waits = StillWaits();
  if (waits.ok() || !options_.report) return;
  lock.unlock();  // the function may take time, and must not block the thread
  NoThrow([&] {
    options_.report(waits);
    return absl::OkStatus();
  }).IgnoreError();
  lock.lock();
}

// The lowest of the ranks that have returned reports for all; others get OK.
absl::Status ControlPlane::StillWaits() const {
  std::vector<int> awaited;
  int first = -1;
  for (int rank = 0; rank < size(); ++rank) {
    if (!returned_[rank]) awaited.push_back(rank);
    if (returned_[rank] && first < 0) first = rank;
  }
  if (first != options_.rank || awaited.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(RanksText(awaited), awaited.size() == 1 ? " has" : " have", " not returned ",
                   timeout_.count(), " s after rank ", first, ", and the world waits for that"));
}

bool ControlPlane::told_all() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const auto& known) {
    const auto& [rank, peer] = known;
    if (!peer.link.is_open()) return true;
    const bool waits = options_.rank == 0 && (over_ || !returned_[rank]);
    return !peer.link.has_queued() && !waits;
  });
}

// --- With mutex_ held.

void ControlPlane::Broadcast(uint8_t type, const std::string& body) {
  if (rank() != 0) return;
  for (auto& [rank, peer] : peers_) {
    if (peer.link.is_open()) peer.link.Queue(type, body);
  }
}

void ControlPlane::SetFailure(const absl::Status& failure) {
  if (!failure_.ok()) return;
  failure_ = failure;
  failed_.store(true, std::memory_order_release);
  Broadcast(TypeOf(ControlMessage::kFailed), Encode(RankStatus{0, failure}));
  changed_.notify_all();
  if (told_of_failure_) told_of_failure_();
}

void ControlPlane::SetLeft(int rank, const absl::Status& status) {
  if (returned_[rank]) return;
  returned_[rank] = status;
  ++left_;
  Broadcast(TypeOf(ControlMessage::kLeft), Encode(RankStatus{rank, status}));
  if (this->rank() == 0 && left_ == size()) {
    over_ = true;
    Broadcast(TypeOf(ControlMessage::kOver), "");
  }
  changed_.notify_all();
}

// --- The thread.

void ControlPlane::Run() {
  while (true) {
    std::vector<pollfd> waits = {{wake_fd_, POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      for (const auto& [rank, peer] : peers_) {
        if (!peer.link.is_open()) continue;
        const short events = peer.link.has_queued() ? POLLIN | POLLOUT : POLLIN;
        waits.push_back({peer.link.socket().fd(), events, 0});
      }
    }
    poll(waits.data(), waits.size(), static_cast<int>(interval_.count()));
    uint64_t count = 0;
    (void)!read(wake_fd_, &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    Look(NetClock::now());
  }
}

void ControlPlane::Look(NetClock::time_point now) {
  // This process was stopped, perhaps with all others: give them time to report.
  const bool was_stopped = now - looked_ > 3 * interval_ + milliseconds(500);
  looked_ = now;
  for (auto& [rank, peer] : peers_) {
    if (was_stopped) peer.heard = now;
    if (peer.link.is_open()) Hear(rank, now);
  }
  Tell(now);
}

void ControlPlane::Hear(int peer, NetClock::time_point now) {
  Peer& from = peers_.at(peer);
  absl::Status status = from.link.Receive();
  while (true) {
    const auto frame = from.link.Next();
    if (!frame.ok()) {
      status = frame.status();
      break;
    }
    if (!*frame) break;
    from.heard = now;
    const absl::Status handled = Handle(peer, **frame);
    if (!handled.ok()) status = handled;
  }
  if (status.ok() && now - from.heard > ToDuration(timeout_)) {
    status = absl::DeadlineExceededError(
        absl::StrCat("its process has given no sign of life for ", timeout_.count(), " s"));
  } else if (!status.ok()) {
    status = With(status, "its process is gone: ");
  }
  if (!status.ok()) Lose(peer, status);
}

absl::Status ControlPlane::Handle(int peer, const Frame& frame) {
  const auto type = static_cast<ControlMessage>(frame.type);
  if (type == ControlMessage::kAlive) return absl::OkStatus();
  if (type == ControlMessage::kOver && rank() != 0) {
    over_ = true;
    changed_.notify_all();
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const RankStatus said, ReadRankStatus(frame.body, size()));
  const bool fails = type == ControlMessage::kFail || type == ControlMessage::kFailed;
  const bool from_rank0 = type == ControlMessage::kFailed || type == ControlMessage::kLeft;
  const bool leaves = type == ControlMessage::kLeave || type == ControlMessage::kLeft;
  if (!(fails || leaves) || from_rank0 != (peer == 0) || (fails && said.status.ok())) {
    return InvalidArgument({"it sent what no rank sends"});
  }
  if (fails) SetFailure(said.status);
  if (leaves) SetLeft(from_rank0 ? said.rank : peer, said.status);
  return absl::OkStatus();
}

void ControlPlane::Lose(int peer, const absl::Status& why) {
  peers_.at(peer).link.Close();
  const bool expected = over_ || (rank() == 0 && returned_[peer]);
  if (!expected) SetFailure(With(why, absl::StrCat("rank ", peer, ": ")));
  changed_.notify_all();
}

void ControlPlane::Tell(NetClock::time_point now) {
  for (auto& [rank, peer] : peers_) {
    if (!peer.link.is_open()) continue;
    if (now - peer.said >= interval_ && !peer.link.has_queued()) {
      peer.link.Queue(TypeOf(ControlMessage::kAlive), "");
    }
    if (!peer.link.has_queued()) continue;
    peer.said = now;
    if (const absl::Status status = peer.link.Flush(); !status.ok()) {
      Lose(rank, With(status, "its process is gone: "));
    }
  }
  if (over_ || !failure_.ok()) changed_.notify_all();
}

}  // namespace dtensor
