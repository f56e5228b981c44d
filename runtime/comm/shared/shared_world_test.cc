// Ranks as threads over one mapping of each arena, which ThreadSanitizer sees through; processes
// are tested by process_world_test and tests/processes.
#include "dtensor/runtime/comm/shared/shared_world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/fingerprint.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/shared/board.h"
#include "dtensor/runtime/comm/shared/board_wait.h"
#include "dtensor/runtime/comm/testing/random_exchanges.h"
#include "dtensor/runtime/comm/testing/shared_ranks.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using box_testing::RandomExchanges;
using testing::AllOf;
using testing::HasSubstr;

// --- Values.

class SharedExchangeTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SharedExchangeTest, testing::Values(1, 2, 3, 4, 8));

TEST_P(SharedExchangeTest, RandomExchanges) {
  const uint64_t seed = TestSeed();
  for (const bool adopts : {false, true}) {
    for (const int max_delay_us : {0, 100}) {
      SharedRanks ranks(GetParam());
      DT_EXPECT_OK(RunLocalRanks(GetParam(), [&](Communicator& threads, Device&) {
        SharedRank rank = ranks.Make(threads, max_delay_us);
        return RandomExchanges(rank.communicator(), rank.device(), seed, 30, adopts);
      }));
    }
  }
}

// All ranks receive all of each part: source p of rank r is p + r.
absl::Status GatherParts(SharedRank& rank, int64_t parts) {
  const int n = rank.communicator().size(), me = rank.communicator().rank();
  std::vector<int> group(n);
  std::iota(group.begin(), group.end(), 0);
  std::vector<ReceiveBox> receives;
  for (int peer = 0; peer < n; ++peer) {
    receives.push_back({{peer}, {{.dst = peer, .length = 1}}});
  }
  std::vector<Tensor> sources, results;
  for (int64_t part = 0; part < parts; ++part) {
    DT_ASSIGN_OR_RETURN(const Tensor source,
                        FromHost<int64_t>(rank.device(), std::vector<int64_t>{part + me}, {1}));
    DT_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(rank.device(), DType::kI64, {n}));
    sources.push_back(source);
    results.push_back(result);
  }
  std::vector<ExchangePart> all;
  for (int64_t part = 0; part < parts; ++part) {
    all.push_back({sources[part], results[part], receives});
  }
  DT_RETURN_IF_ERROR(
      rank.communicator().Exchange({.axes = "x", .op = "Gather", .group = group}, all));
  for (int64_t part = 0; part < parts; ++part) {
    for (int peer = 0; peer < n; ++peer) {
      if (results[part].data<int64_t>()[peer] != part + peer) {
        return absl::InternalError(absl::StrCat("part ", part, " of rank ", peer));
      }
    }
  }
  return absl::OkStatus();
}

// More descriptions than a board has room for, then fewer, then more.
TEST(SharedWorldTest, AnExchangeOfManyTensors) {
  SharedRanks ranks(3);
  DT_EXPECT_OK(RunLocalRanks(3, [&](Communicator& threads, Device&) -> absl::Status {
    SharedRank rank = ranks.Make(threads);
    for (const int64_t parts : {1, 59, 60, 61, 500, 3, 2000, 1000, 1}) {
      DT_RETURN_IF_ERROR(GatherParts(rank, parts));
      DT_RETURN_IF_ERROR(GatherParts(rank, parts));
    }
    return absl::OkStatus();
  }));
}

// Memory is copied into the arena only while it is awaited there.
TEST(SharedWorldTest, AdoptedMemoryIsHeldNoLongerThanItsExchange) {
  SharedRanks ranks(2);
  DT_EXPECT_OK(RunLocalRanks(2, [&](Communicator& threads, Device&) -> absl::Status {
    SharedRank rank = ranks.Make(threads);
    std::vector<float> memory(1000, 1.5f + static_cast<float>(threads.rank()));
    const Tensor source =
        Tensor::Adopt(rank.device(), memory.data(), DType::kF32, {1000}, {1}, nullptr);
    DT_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(rank.device(), DType::kF32, {1000}));
    const int64_t before = rank.device().memory().live_bytes;
    const std::vector<ReceiveBox> receives = {{{1 - threads.rank()}, {{.length = 1000}}}};
    const ExchangePart part = {source, result, receives};
    const std::vector<int> group = {0, 1};
    rank.device().ResetPeak();
    DT_RETURN_IF_ERROR(rank.communicator().Exchange({.op = "Swap", .group = group}, {&part, 1}));
    EXPECT_EQ(result.data<float>()[999], 2.5f - static_cast<float>(threads.rank()));
    EXPECT_EQ(rank.device().memory().live_bytes, before);
    EXPECT_EQ(rank.device().memory().peak_bytes, before + 4000);
    return absl::OkStatus();
  }));
}

// --- Failures.

// A world's state of its own, so that a test can say how long its patience lasts.
class State final : public WorldState {
 public:
  struct Shared {
    std::mutex mutex;
    absl::Status failure;
    std::map<int, absl::Status> returned;
  };
  State(std::shared_ptr<Shared> shared, double timeout) : shared_(shared), timeout_(timeout) {}

  absl::Status Fail(int rank, const absl::Status& reason) override {
    std::lock_guard lock(shared_->mutex);
    if (shared_->failure.ok()) {
      shared_->failure =
          absl::Status(reason.code(), absl::StrCat("rank ", rank, ": ", reason.message()));
    }
    return shared_->failure;
  }
  absl::Status failure() const override {
    std::lock_guard lock(shared_->mutex);
    return shared_->failure;
  }
  bool failed() const override { return !failure().ok(); }
  void TellOfFailure(std::function<void()>) override {}  // nobody asks
  std::optional<absl::Status> returned(int rank) const override {
    std::lock_guard lock(shared_->mutex);
    const auto found = shared_->returned.find(rank);
    return found == shared_->returned.end() ? std::nullopt : std::optional(found->second);
  }
  double timeout_seconds() const override { return timeout_; }

 private:
  const std::shared_ptr<Shared> shared_;
  const double timeout_;
};

// What `fn` returns on each rank.
std::vector<absl::Status> RunAll(int n, double timeout,
                                 const std::function<absl::Status(SharedRank&)>& fn) {
  SharedRanks ranks(n);
  const auto shared = std::make_shared<State::Shared>();
  std::vector<absl::Status> results(n);
  std::atomic<int> left = n;
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      SharedRank rank = ranks.Make(r, std::make_unique<State>(shared, timeout));
      results[r] = fn(rank);
      {
        std::lock_guard lock(shared->mutex);
        shared->returned[r] = results[r];
      }
      --left;
      while (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::Status Meet(SharedRank& rank, const std::vector<int>& group, absl::string_view op,
                  uint64_t digest = 0) {
  return rank.communicator().Exchange({.op = op, .group = group, .digest = digest}, {});
}

void ExpectAll(const std::vector<absl::Status>& results, absl::StatusCode code,
               const testing::Matcher<std::string>& text) {
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), text);
  }
}

TEST(SharedFailuresTest, RanksThatDisagree) {
  ExpectAll(RunAll(3, 60,
                   [](SharedRank& rank) {
                     const bool last = rank.communicator().rank() == 2;
                     return Meet(rank, {0, 1, 2}, last ? "Other" : "One", last ? 7 : 8);
                   }),
            absl::StatusCode::kFailedPrecondition,
            AllOf(HasSubstr("ranks disagree about call 1 of ranks [0, 1, 2]"),
                  HasSubstr("op \"Other\" (exchange, 0 tensors, digest 7)"),
                  HasSubstr("op \"One\" (exchange, 0 tensors, digest 8)")));
}

// Whoever hears of it before it has compared calls says nothing of its own: nobody waits for that.
TEST(SharedFailuresTest, RanksThatDisagreeSaySoAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  for (int world = 0; world < 50; ++world) {
    RunAll(4, 60, [](SharedRank& rank) {
      const int me = rank.communicator().rank();
      return Meet(rank, {0, 1, 2, 3}, "One", me == 1 ? 7 : 8);
    });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(SharedFailuresTest, RanksThatWaitForEachOtherInACycle) {
  const auto start = std::chrono::steady_clock::now();
  ExpectAll(RunAll(3, 60,
                   [](SharedRank& rank) {
                     const int me = rank.communicator().rank(), next = (me + 1) % 3;
                     return Meet(rank, {std::min(me, next), std::max(me, next)},
                                 absl::StrCat("with ", next));
                   }),
            absl::StatusCode::kFailedPrecondition,
            AllOf(HasSubstr("ranks wait for each other in a cycle"), HasSubstr("op \"with 0\""),
                  HasSubstr("op \"with 1\""), HasSubstr("op \"with 2\""),
                  HasSubstr("in one common order")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Rank 0 waits for 1, which waits for 2, which sleeps.
TEST(SharedFailuresTest, ASilentRank) {
  const std::vector<absl::Status> results = RunAll(3, 1.5, [](SharedRank& rank) -> absl::Status {
    const int me = rank.communicator().rank();
    if (me == 2) {
      while (rank.communicator().failure().ok()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return rank.communicator().failure();
    }
    if (me == 1) DT_RETURN_IF_ERROR(Meet(rank, {1, 2}, "late"));
    return Meet(rank, {0, 1}, "early");
  });
  ExpectAll(
      results, absl::StatusCode::kDeadlineExceeded,
      AllOf(HasSubstr("rank 2: silent for 1.5 s"), HasSubstr("op \"late\" (call 1 of ranks")));
}

TEST(SharedFailuresTest, ARankThatReturns) {
  for (const absl::Status& status : {absl::OkStatus(), absl::DataLossError("the dog ate it")}) {
    const std::vector<absl::Status> results = RunAll(2, 60, [&](SharedRank& rank) {
      return rank.communicator().rank() == 1 ? status : Meet(rank, {0, 1}, "wait");
    });
    EXPECT_EQ(results[0].code(), status.ok() ? absl::StatusCode::kAborted : status.code());
    EXPECT_THAT(std::string(results[0].message()),
                AllOf(HasSubstr("rank 1: "), HasSubstr("rank 0 waits for it in op \"wait\"")));
  }
}

// Rank 1 posts, withdraws because the world fails, and writes over what it posted, while rank 0,
// which was slow, still reads there.
TEST(SharedFailuresTest, WhatAPeerWithdrewIsNoResult) {
  SharedRanks ranks(2);
  const auto shared = std::make_shared<State::Shared>();
  SharedRank slow = ranks.Make(0, std::make_unique<State>(shared, 60));
  SharedRank hasty = ranks.Make(1, std::make_unique<State>(shared, 60));
  const std::vector<int> group = {0, 1};
  const std::vector<ReceiveBox> receives = {{{1}, {{.length = 1}}}};
  const Collective collective = {.op = "Take", .group = group};
  DT_ASSERT_OK_AND_ASSIGN(const Tensor source, FromHost<float>(hasty.device(), {4}, {1}));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor result, FromHost<float>(slow.device(), {0}, {1}));
  const Tensor none;
  const ExchangePart give = {source, none, {}}, take = {none, result, receives};
  DT_ASSERT_OK(hasty.communicator().Begin(collective, {&give, 1}));
  DT_ASSERT_OK(slow.communicator().Begin(collective, {&take, 1}));
  // It heard that it withdrew before it heard of the failure.
  reinterpret_cast<Board*>(hasty.arena().data())->withdrawn.store(true);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    State(shared, 60).Fail(1, absl::DataLossError("broken")).IgnoreError();
  });
  EXPECT_THAT(slow.communicator().Finish(collective),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: broken")));
  later.join();
  EXPECT_FALSE(hasty.communicator().Finish(collective).ok());
}

// A rank that is let go of its world after a failure says that it withdrew what it posted, though
// it was another one that failed.
TEST(SharedFailuresTest, WhoeverLeavesAFailedWorldWithdraws) {
  SharedRanks ranks(2);
  const auto shared = std::make_shared<State::Shared>();
  SharedRank rank = ranks.Make(0, std::make_unique<State>(shared, 60));
  const std::vector<int> group = {0, 1};
  const auto collective = std::make_shared<Collective>(Collective{.op = "Give", .group = group});
  DT_ASSERT_OK(rank.communicator().Begin(*collective, {}));
  rank.communicator().Drop(*collective, collective);
  State(shared, 60).Fail(1, absl::DataLossError("broken")).IgnoreError();
  dynamic_cast<SharedCommunicator&>(rank.communicator()).End();
  EXPECT_TRUE(reinterpret_cast<Board*>(rank.arena().data())->withdrawn.load());
  EXPECT_EQ(collective.use_count(), 1);
}

// Whatever a broken peer writes where it describes its sources, its readers live on: they take what
// lies in its arena, or refuse it.
TEST(SharedFailuresTest, WhatABrokenPeerDescribes) {
  std::mt19937_64 random(20261123);
  const std::vector<int> group = {0, 1};
  const std::vector<ReceiveBox> receives = {{{1}, {{.length = 1}}}};
  const Collective collective = {.op = "Take", .group = group};
  int refused = 0;
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    SharedRanks ranks(2);
    const auto shared = std::make_shared<State::Shared>();
    SharedRank reader = ranks.Make(0, std::make_unique<State>(shared, 60));
    SharedRank broken = ranks.Make(1, std::make_unique<State>(shared, 60));
    DT_ASSERT_OK_AND_ASSIGN(const Tensor source, FromHost<float>(broken.device(), {4}, {1}));
    DT_ASSERT_OK_AND_ASSIGN(const Tensor result, FromHost<float>(reader.device(), {0}, {1}));
    const Tensor none;
    const ExchangePart give = {source, none, {}}, take = {none, result, receives};
    DT_ASSERT_OK(broken.communicator().Begin(collective, {&give, 1}));
    Board& board = *reinterpret_cast<Board*>(broken.arena().data());
    BoardGroup* const place = FindOrMakeGroup(board, FingerprintOf(group));
    BoardGroup::Post& post = place->posts[1];
    const uint64_t wrong = random() >> random() % 64;
    switch (random() % 6) {
      case 0:
        post.at = wrong;
        break;
      case 1:
        post.words[0] = wrong | 1;
        break;
      default:
        post.words[random() % 4] = random() % 2 == 0 ? wrong : ~wrong;
    }
    DT_ASSERT_OK(reader.communicator().Begin(collective, {&take, 1}));
    std::thread other([&] { broken.communicator().Finish(collective).IgnoreError(); });
    const absl::Status status = reader.communicator().Finish(collective);
    other.join();
    refused += status.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, kTrials / 3);
}

// Another process, which writes to the arena of that name until it is killed: the stride of each
// description, of one dimension, which is sound and far too large in turn.
pid_t StartScribbler(const ArenaName& name, uint64_t at, int parts) {
  const std::string path = absl::StrCat("/proc/", name.process, "/fd/", name.descriptor);
  const pid_t child = fork();
  if (child != 0) return child;
  void* const mapped = mmap(nullptr, name.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            open(path.c_str(), O_RDWR), 0);
  if (mapped == MAP_FAILED) _exit(1);
  auto* const words = reinterpret_cast<volatile uint64_t*>(static_cast<char*>(mapped) + at);
  for (uint64_t turn = 0;; ++turn) {
    for (int part = 0; part < parts; ++part) words[4 * part + 3] = turn % 2 == 0 ? 1 << 30 : 1;
  }
}

// A stride is looked at and used: it is the same both times.
TEST(SharedFailuresTest, ADescriptionThatChangesWhileItIsRead) {
  constexpr int kParts = 5000;
  const std::vector<int> group = {0, 1};
  const std::vector<ReceiveBox> receives = {{{1}, {{.length = 1}}}};
  const Collective collective = {.op = "Take", .group = group};
  for (int trial = 0; trial < 2; ++trial) {
    SharedRanks ranks(2);
    const auto shared = std::make_shared<State::Shared>();
    SharedRank reader = ranks.Make(0, std::make_unique<State>(shared, 60));
    SharedRank broken = ranks.Make(1, std::make_unique<State>(shared, 60));
    DT_ASSERT_OK_AND_ASSIGN(const Tensor source, FromHost<float>(broken.device(), {4, 5}, {2}));
    DT_ASSERT_OK_AND_ASSIGN(const Tensor result, FromHost<float>(reader.device(), {0}, {1}));
    const Tensor none;
    const std::vector<ExchangePart> give(kParts, {source, none, {}});
    const std::vector<ExchangePart> take(kParts, {none, result, receives});
    DT_ASSERT_OK(broken.communicator().Begin(collective, give));
    const Board& board = *reinterpret_cast<Board*>(broken.arena().data());
    const uint64_t at = FindGroup(board, FingerprintOf(group))->posts[1].at;
    const pid_t scribbler = StartScribbler(broken.arena().name(), at, kParts);
    ASSERT_GT(scribbler, 0);
    DT_ASSERT_OK(reader.communicator().Begin(collective, take));
    std::thread other([&] { broken.communicator().Finish(collective).IgnoreError(); });
    reader.communicator().Finish(collective).IgnoreError();
    other.join();
    kill(scribbler, SIGKILL);
    int status = 0;
    waitpid(scribbler, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it could not write";
  }
}

// --- Boards.

TEST(BoardTest, KnowsAsManyGroupsAsItHasRoomFor) {
  const std::unique_ptr<SharedArena> arena =
      SharedArena::Create(int64_t{1} << 32, sizeof(Board)).value();
  Board& board = *reinterpret_cast<Board*>(arena->data());
  EXPECT_EQ(FindGroup(board, 5), nullptr);
  std::vector<BoardGroup*> places;
  for (uint64_t i = 0; i < Board::kGroups; ++i) {
    const uint64_t key = 1 + i * 3 * Board::kGroups / 7;
    places.push_back(FindOrMakeGroup(board, key));
    ASSERT_NE(places.back(), nullptr);
    EXPECT_EQ(FindOrMakeGroup(board, key), places.back());
    EXPECT_EQ(FindGroup(board, key), places.back());
  }
  EXPECT_EQ(FindOrMakeGroup(board, 2), nullptr);
  EXPECT_EQ(FindGroup(board, 2), nullptr);
  EXPECT_EQ(FindGroup(board, 1), places[0]);
}

TEST(BoardTest, AWaitIsReadWhole) {
  const auto board = std::make_unique<Board>();
  EXPECT_EQ(ReadWait(*board), std::nullopt);
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i) {  // the last one stays
      WriteWait({i, static_cast<uint64_t>(i), ExchangeStage::kDone, static_cast<uint64_t>(i),
                 std::string(i % 900, static_cast<char>('a' + i % 26))},
                *board);
      if (i % 5 == 0) ClearWait(*board);
    }
    over = true;
  });
  int seen = 0;
  while (!over || seen == 0) {
    const std::optional<BoardWait> note = ReadWait(*board);
    if (!note) continue;
    ++seen;
    EXPECT_EQ(note->key, static_cast<uint64_t>(note->peer));
    EXPECT_EQ(note->number, note->key);
    EXPECT_EQ(note->stage, ExchangeStage::kDone);
    EXPECT_EQ(note->call, std::string(std::min<size_t>(note->peer % 900, note->call.size()),
                                      static_cast<char>('a' + note->peer % 26)));
  }
  writer.join();
  WriteWait({7, 8, ExchangeStage::kPosted, 9, "op \"x\""}, *board);
  EXPECT_EQ(ReadWait(*board)->call, "op \"x\"");
}

}  // namespace
}  // namespace dtensor
