#include "dtensor/runtime/comm/shared/shared_world.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/runtime/comm/pulls/pull_communicator-inl.h"
#include "dtensor/runtime/comm/shared/board_wait.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Between two checks of the world's state. If a sleep takes longer, the process was stopped.
constexpr std::chrono::microseconds kSlice(20000);
// If `meanwhile` says that there is more to do.
constexpr std::chrono::microseconds kBusySlice(200);
constexpr Seconds kLookForCycles(1);

}  // namespace

template class PullCommunicator<SharedWorld>;

SharedWorld::SharedWorld(int size, HostRanks& host, WorldState& state,
                         std::function<bool()> meanwhile)
    : size_(size),
      host_(host),
      state_(state),
      meanwhile_(std::move(meanwhile)),
      spinning_(static_cast<int>(host.all().size())) {}

std::shared_ptr<SharedGroup> SharedWorld::GroupOf(absl::Span<const int> ranks) {
  return std::make_shared<SharedGroup>(host_, state_, ranks);
}

absl::Status SharedWorld::Fail(int rank, const absl::Status& reason) {
  absl::Status failure = state_.Fail(rank, reason);
  host_.board().withdrawn.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before anything is overwritten
  return failure;
}

absl::Status SharedWorld::EndReading(int rank, const SharedGroup& group) {
  std::atomic_thread_fence(std::memory_order_acquire);  // all reads are before this
  for (int member = 0; member < group.size(); ++member) {
    const int peer = group.ranks()[member];
    if (peer == rank || !group.has_withdrawn(member)) continue;
    // It had failed the world before that, and the reason will arrive.
    const absl::Status known = AwaitFailure(state_);
    return known.ok() ? Fail(peer, absl::AbortedError("left an exchange")) : known;
  }
  return absl::OkStatus();
}

absl::Status SharedWorld::AwaitSlowly(const Wait& wait) {
  if (spinning_.Until([&] { return wait.over(); })) return absl::OkStatus();
  // If a publisher does not see the sleeper, the sleeper sees the publication.
  Board& board = host_.board();
  board.sleeps_for.store(static_cast<uint32_t>(wait.peer()) + 1, std::memory_order_seq_cst);
  absl::Status status = NoThrow([&] { return Sleep(wait); });
  board.sleeps_for.store(0, std::memory_order_relaxed);
  if (board.wait[0].load(std::memory_order_relaxed) != 0) ClearWait(board);
  return status;
}

absl::Status SharedWorld::Sleep(const Wait& wait) {
  Seconds waited(0), looked(0);
  const Seconds longest(std::min(state_.timeout_seconds(), 1e9));
  bool noted = false;
  while (true) {
    const auto start = Clock::now();
    const bool is_busy = meanwhile_ && meanwhile_();
    wait.group.SleepUntilReached(wait.member, wait.stage, wait.number,
                                 (is_busy ? kBusySlice : kSlice).count());
    if (wait.over()) return absl::OkStatus();
    DT_RETURN_IF_ERROR(CheckPeer(wait));
    waited += std::min<Seconds>(Clock::now() - start, 3 * kSlice);
    if (!noted) {
      WriteWait({wait.peer(), wait.group.key(), wait.stage, wait.number, wait.ToString()},
                host_.board());
      noted = true;
    }
    const bool timed_out = waited >= longest;
    if (!timed_out && waited - looked < kLookForCycles) continue;
    looked = waited;
    DT_RETURN_IF_ERROR(CheckSilence(wait, timed_out));
  }
}

// Returns why the peer will not do what is waited for.
absl::Status SharedWorld::CheckPeer(const Wait& wait) {
  DT_RETURN_IF_ERROR(failure());
  const std::optional<absl::Status> returned = state_.returned(wait.peer());
  // A rank that left has published all that it ever will.
  if (!returned || wait.over()) return absl::OkStatus();
  return Fail(wait.peer(), ReturnedWhile(*returned, wait.rank, wait.ToString()));
}

absl::Status SharedWorld::CheckSilence(const Wait& wait, bool timed_out) {
  const std::vector<WaitText> chain = ChainFrom(wait);
  if (wait.over()) return absl::OkStatus();
  const absl::Status trouble = TroubleOf(chain, timed_out, state_.timeout_seconds());
  return trouble.ok() ? trouble : Fail(chain.back().peer, trouble);
}

// As World::ChainFrom (local). A rank clears its note after its wait is over, so a note whose wait
// is not over belongs to a rank that will not continue by itself. Notes are read one after the
// other: only notes that are still not over after all have been read were true at one moment.
std::vector<WaitText> SharedWorld::ChainFrom(const Wait& wait) const {
  std::vector<WaitText> chain = {{wait.rank, wait.peer(), wait.ToString()}};
  std::vector<BoardWait> notes;
  std::set<int> met = {wait.rank};
  while (met.insert(chain.back().peer).second) {
    const HostRank& next = *host_.Find(chain.back().peer);
    const std::optional<BoardWait> note = ReadWait(next.board());
    if (!note || host_.Find(note->peer) == nullptr || IsOver(*note)) break;
    chain.push_back({next.rank, note->peer, note->call});
    notes.push_back(*note);
  }
  if (absl::c_any_of(notes, [&](const BoardWait& note) { return IsOver(note); })) chain.resize(1);
  return chain;
}

bool SharedWorld::IsOver(const BoardWait& note) const {
  const BoardGroup* const place = FindGroup(host_.Find(note.peer)->board(), note.key);
  return place != nullptr && place->counter(note.stage).load() >= note.number;
}

}  // namespace dtensor
