// Three processes of one mpirun, each of which runs every case as its rank.
#include "dtensor/runtime/comm/mpi/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/mpi/mpi_session.h"
#include "dtensor/runtime/comm/testing/transport_cases.h"
#include "dtensor/runtime/core/wire.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Of a world that fails when it is told to.
class World final : public WorldState {
 public:
  absl::Status Fail(int, const absl::Status& reason) override {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
    if (told_) told_();
    return failure_;
  }
  absl::Status failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  bool failed() const override { return !failure().ok(); }
  void TellOfFailure(std::function<void()> told) override {
    const std::lock_guard lock(mutex_);
    told_ = std::move(told);
  }
  std::optional<absl::Status> returned(int) const override { return std::nullopt; }
  double timeout_seconds() const override { return 60; }

 private:
  mutable std::mutex mutex_;
  absl::Status failure_;
  std::function<void()> told_;
};

MPI_Comm NewComm() {
  const auto comm = DuplicateComm(MPI_COMM_WORLD, [] { return absl::OkStatus(); });
  EXPECT_THAT(comm.status(), IsOk());
  return *comm;
}

int Rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

class MpiTransportCases : public testing::TestWithParam<std::tuple<TransportCase, MpiOptions>> {};

TEST_P(MpiTransportCases, Processes) {
  const auto& [what, options] = GetParam();
  if (what.frees_memory && !options.keeps_bytes) return;  // MPI goes on being called here
  World world;
  MpiTransport transport(NewComm(), world, options);
  what.run({Rank(), transport});
}
INSTANTIATE_TEST_SUITE_P(
    MpiTransport, MpiTransportCases,
    testing::Combine(testing::ValuesIn(TransportCases()),
                     // In place; in parts; through memory of its own.
                     testing::Values(MpiOptions{}, MpiOptions{.most_bytes = 50000},
                                     MpiOptions{.keeps_bytes = true, .most_bytes = 300000})),
    [](const auto& info) {
      const MpiOptions& options = std::get<1>(info.param);
      return std::string(std::get<0>(info.param).name) + (options.keeps_bytes           ? "Kept"
                                                          : options.most_bytes == 50000 ? "InParts"
                                                                                        : "");
    });

// What no peer of this communicator sent is in no other, however many there are.
TEST(MpiTransport, WorldsDoNotMix) {
  World world;
  MpiTransport one(NewComm(), world), two(NewComm(), world);
  const TransportRank first = {Rank(), one}, second = {Rank(), two};
  for (int i = 0; i < 100; ++i) {
    if (Rank() == 0) one.SendNote(1, 1, "one " + std::to_string(i));
    if (Rank() == 0) two.SendNote(1, 1, "two " + std::to_string(i));
    if (Rank() == 1) {
      EXPECT_EQ(second.AwaitNote(0, 1), "two " + std::to_string(i));
    }
  }
  for (int i = 0; i < 100; ++i) {
    if (Rank() == 1) {
      EXPECT_EQ(first.AwaitNote(0, 1), "one " + std::to_string(i));
    }
  }
  first.Meet();
  second.Meet();
}

// One after the other, on communicators that MPI may number alike.
TEST(MpiTransport, WorldsInTurn) {
  for (int i = 0; i < 30; ++i) {
    World world;
    MpiTransport transport(NewComm(), world);
    const TransportRank me = {Rank(), transport};
    const int next = (me.rank + 1) % 3, last = (me.rank + 2) % 3;
    transport.SendNote(next, 1, std::to_string(i));
    EXPECT_EQ(me.AwaitNote(last, 1), std::to_string(i));
    transport.Leave();
    EXPECT_TRUE(me.Move([&] { return !transport.is_sending(); }));
    EXPECT_TRUE(transport.has_left(next) && transport.has_left(last));
  }
}

// Tags come round, and the order of messages keeps them apart.
TEST(MpiTransport, MoreMessagesThanTags) {
  constexpr int kMessages = 300;
  World world;
  MpiTransport transport(NewComm(), world, {.most_tag = 3});
  const TransportRank me = {Rank(), transport};
  for (int round = 0; round < 10; ++round) {
    std::vector<int> sent(kMessages), got(kMessages, -1);
    int pending = 0;
    const auto channel = [](int i) { return static_cast<uint64_t>(i * 7 % 5); };
    const auto bytes = [](int& value) {
      return absl::MakeSpan(reinterpret_cast<std::byte*>(&value), sizeof(int));
    };
    for (int i = 0; i < kMessages && me.rank == 1; ++i) {
      transport.Receive(0, channel(i), bytes(got[i]), pending);
    }
    me.Meet();
    for (int i = 0; i < kMessages && me.rank == 0; ++i) {
      sent[i] = round * kMessages + i;
      transport.Send(1, channel(i), bytes(sent[i]), pending);
    }
    ASSERT_TRUE(me.Move([&] { return pending == 0; }));
    for (int i = 0; i < kMessages && me.rank == 1; ++i) {
      ASSERT_EQ(got[i], round * kMessages + i);
    }
  }
  me.Meet();
}

TEST(MpiTransport, MoreMessagesWithoutMemoryThanTags) {
  World world;
  MpiTransport transport(NewComm(), world, {.most_tag = 3});
  const TransportRank me = {Rank(), transport};
  const std::byte bytes[4] = {};
  int pending = 0;
  for (uint64_t channel = 0; channel < 4; ++channel) {
    if (me.rank == 0) transport.Send(1, channel, bytes, pending);
  }
  if (me.rank == 0) me.MoveFor(0.1);
  if (me.rank != 1) return;
  EXPECT_TRUE(me.Move([&] { return !transport.lost(0).ok(); }));
  EXPECT_THAT(transport.lost(0), StatusIs(absl::StatusCode::kResourceExhausted));
}

// Notes that no rank sends: a kind that is none, tags that are no message's, one that is cut off.
TEST(MpiTransport, RefusesWhatNoRankSends) {
  const auto note = [](uint8_t kind, std::optional<uint32_t> tag) {
    WireWriter text;
    text.U8(kind);
    text.U64(1);  // a channel
    if (tag) text.U64(4);
    if (tag) text.U32(*tag);
    return text.bytes();
  };
  const std::vector<std::string> notes = {
      note(9, std::nullopt), note(0, std::nullopt), note(2, 0), note(2, 0xffffffff),
      note(2, 1000),         note(2, std::nullopt), note(3, 1), ""};
  for (const std::string& text : notes) {
    const MPI_Comm seen = NewComm();
    World world;
    MpiTransport transport(seen, world, {.most_tag = 999});
    const TransportRank me = {Rank(), transport};
    if (me.rank == 0) MPI_Send(text.data(), static_cast<int>(text.size()), MPI_BYTE, 1, 0, seen);
    if (me.rank == 1) {
      EXPECT_TRUE(me.Move([&] { return !transport.lost(0).ok(); }));
      EXPECT_THAT(transport.lost(0), StatusIs(absl::StatusCode::kInvalidArgument));
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

// Nothing of MPI is called once the world has failed: what was sent then never comes.
TEST(MpiTransport, IsStillWhenTheWorldHasFailed) {
  const MPI_Comm seen = NewComm();
  World world;
  MpiTransport transport(seen, world, {.keeps_bytes = true});
  const TransportRank me = {Rank(), transport};
  me.Meet();
  world.Fail(2, absl::AbortedError("over")).IgnoreError();
  int pending = 0;
  std::string some(100, 'x');
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(some.data()), some.size());
  const int next = (me.rank + 1) % 3;
  transport.SendNote(next, 1, "note");
  transport.Send(next, 1, bytes, pending);
  transport.Receive(next, 1, bytes, pending);
  transport.Leave();
  transport.Progress(std::chrono::milliseconds(10));
  EXPECT_EQ(pending, 2);
  MPI_Barrier(MPI_COMM_WORLD);
  int found = 1;
  for (int i = 0; i < 100; ++i) {
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, seen, &found, MPI_STATUS_IGNORE);
    EXPECT_EQ(found, 0);
  }
}

// The caller finalizes MPI too early: an error, and no abort. Last of all, as MPI is over then.
class AtTheEnd : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(MpiTransport, AtTheEnd, testing::Values(0));

TEST_P(AtTheEnd, MpiIsFinalized) {
  World world;
  MpiTransport transport(NewComm(), world);
  const TransportRank me = {Rank(), transport};
  me.Meet();
  MPI_Finalize();
  int pending = 0;
  const int next = (me.rank + 1) % 3;
  transport.SendNote(next, 1, "note");
  transport.Receive(next, 1, {}, pending);
  transport.Progress(std::chrono::milliseconds(10));
  EXPECT_THAT(transport.lost(next), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             testing::HasSubstr("MPI_Finalize was called")));
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  return RUN_ALL_TESTS();
}
