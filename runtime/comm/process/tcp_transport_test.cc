#include "dtensor/runtime/comm/process/tcp_transport.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/runtime/net/wire.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::microseconds kSlice(10000);

// Ranks of one thread: each moves when it is its turn.
class Ranks {
 public:
  explicit Ranks(int size) {
    std::vector<std::vector<Socket>> ends;
    for (int rank = 0; rank < size; ++rank) {
      ends.emplace_back(size);
      for (int peer = 0; peer < rank; ++peer) {
        std::tie(ends[rank][peer], ends[peer][rank]) = SocketPair();
      }
    }
    for (auto& sockets : ends) ranks_.push_back(std::make_unique<TcpTransport>(std::move(sockets)));
  }

  TcpTransport& operator[](int rank) { return *ranks_[rank]; }
  void Kill(int rank) { ranks_[rank] = nullptr; }

  // Until `over`; false after 20 s.
  bool Move(const std::function<bool()>& over) {
    const auto deadline = In(20);
    while (!over()) {
      if (NetClock::now() > deadline) return false;
      MoveOnce();
    }
    return true;
  }
  void MoveOnce() {
    for (auto& rank : ranks_) {
      if (rank != nullptr) rank->Progress(std::chrono::microseconds(100));
    }
  }
  std::string AwaitNote(int rank, int peer, uint64_t channel) {
    std::optional<std::string> note;
    Move([&] { return (note = ranks_[rank]->TakeNote(peer, channel)).has_value(); });
    return note.value_or("no note came");
  }

 private:
  std::vector<std::unique_ptr<TcpTransport>> ranks_;
};

TEST(TcpTransport, NotesComeInOrder) {
  Ranks ranks(3);
  for (int i = 0; i < 100; ++i) {
    ranks[0].SendNote(1, 7, "to 1: " + std::to_string(i));
    ranks[0].SendNote(2, 7, "to 2: " + std::to_string(i));
    ranks[2].SendNote(1, 7, "from 2: " + std::to_string(i));
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(ranks.AwaitNote(1, 2, 7), "from 2: " + std::to_string(i));
    EXPECT_EQ(ranks.AwaitNote(1, 0, 7), "to 1: " + std::to_string(i));
    EXPECT_EQ(ranks.AwaitNote(2, 0, 7), "to 2: " + std::to_string(i));
  }
  EXPECT_EQ(ranks[1].TakeNote(0, 7), std::nullopt);
  EXPECT_EQ(ranks[1].TakeNote(0, 8), std::nullopt);
}

TEST(TcpTransport, NotesOfAnySize) {
  Ranks ranks(2);
  for (const size_t size : {size_t{0}, size_t{1}, MessageTransport::kMostNoteBytes}) {
    ranks[0].SendNote(1, 1, Pattern(size, 3));
    EXPECT_TRUE(ranks.AwaitNote(1, 0, 1) == Pattern(size, 3)) << size;
  }
}

TEST(TcpTransport, NotesAndMessagesOnSeveralChannels) {
  Ranks ranks(2);
  const std::string a = Pattern(1000, 1), b = Pattern(3000000, 2), c = Pattern(1, 3);
  std::string got_a(a.size(), '\0'), got_b(b.size(), '\0'), got_c(c.size(), '\0');
  int sending = 0, receiving = 0;
  ranks[1].Receive(0, 5, BytesOf(got_b), receiving);
  ranks[1].Receive(0, 4, BytesOf(got_a), receiving);
  ranks[1].Receive(0, 4, BytesOf(got_c), receiving);
  ranks[0].SendNote(1, 5, "first");
  ranks[0].Send(1, 4, BytesOf(absl::string_view(a)), sending);
  ranks[0].SendNote(1, 4, "second");
  ranks[0].Send(1, 5, BytesOf(absl::string_view(b)), sending);
  ranks[0].SendNote(1, 5, "third");
  ranks[0].Send(1, 4, BytesOf(absl::string_view(c)), sending);
  EXPECT_EQ(receiving, 3);
  EXPECT_EQ(ranks.AwaitNote(1, 0, 5), "first");
  EXPECT_EQ(ranks.AwaitNote(1, 0, 4), "second");
  EXPECT_EQ(ranks.AwaitNote(1, 0, 5), "third");
  EXPECT_TRUE(ranks.Move([&] { return sending == 0 && receiving == 0; }));
  EXPECT_TRUE(got_a == a && got_b == b && got_c == c);
  EXPECT_FALSE(ranks[0].is_sending());
}

TEST(TcpTransport, MessagesFillMemoryInItsOrder) {
  Ranks ranks(2);
  constexpr int kMessages = 50;
  std::vector<std::string> sent, got;
  for (int i = 0; i < kMessages; ++i) {
    sent.push_back(Pattern(i * 100, i));
    got.emplace_back(i * 100, '\0');
  }
  int sending = 0, receiving = 0;
  for (int i = 0; i < kMessages; ++i) {
    ranks[0].Send(1, 1, BytesOf(absl::string_view(sent[i])), sending);
    if (i % 3 == 0) ranks.MoveOnce();
    ranks[1].Receive(0, 1, BytesOf(got[i]), receiving);
  }
  EXPECT_TRUE(ranks.Move([&] { return sending == 0 && receiving == 0; }));
  EXPECT_EQ(got, sent);
}

TEST(TcpTransport, NothingAtAllIsAMessageToo) {
  Ranks ranks(2);
  int sending = 0, receiving = 0;
  ranks[0].Send(1, 1, {}, sending);
  ranks.MoveOnce();
  ranks.MoveOnce();
  ranks[1].Receive(0, 1, {}, receiving);
  EXPECT_TRUE(ranks.Move([&] { return sending == 0 && receiving == 0; }));
}

// Neither rank reads before the other has sent: much more than sockets take.
TEST(TcpTransport, MuchBothWaysAtOnce) {
  Ranks ranks(2);
  const auto talk = [&](int rank) {
    const std::string said = Pattern(16 << 20, rank);
    std::string heard(said.size(), '\0');
    int pending = 0;
    ranks[rank].Send(1 - rank, 1, BytesOf(absl::string_view(said)), pending);
    ranks[rank].Receive(1 - rank, 1, BytesOf(heard), pending);
    const auto deadline = In(50);
    while (pending > 0 && NetClock::now() < deadline) ranks[rank].Progress(kSlice);
    EXPECT_EQ(pending, 0);
    EXPECT_TRUE(heard == Pattern(said.size(), 1 - rank));
  };
  std::thread other([&] { talk(1); });
  talk(0);
  other.join();
}

// What others send is read meanwhile, and nothing of it is lost.
TEST(TcpTransport, AMessageWhoseMemoryComesLate) {
  Ranks ranks(3);
  const std::string sent = Pattern(1 << 20, 5);
  int sending = 0, receiving = 0;
  ranks[0].Send(1, 1, BytesOf(absl::string_view(sent)), sending);
  ranks[0].SendNote(1, 2, "behind it");
  for (int i = 0; i < 20; ++i) {
    ranks[2].SendNote(1, 1, std::to_string(i));
    EXPECT_EQ(ranks.AwaitNote(1, 2, 1), std::to_string(i));
  }
  EXPECT_EQ(sending, 1);
  EXPECT_EQ(ranks[1].TakeNote(0, 2), std::nullopt);
  std::string got(sent.size(), '\0');
  ranks[1].Receive(0, 1, BytesOf(got), receiving);
  EXPECT_EQ(ranks.AwaitNote(1, 0, 2), "behind it");
  EXPECT_EQ(sending + receiving, 0);
  EXPECT_TRUE(got == sent);
}

TEST(TcpTransport, SizesThatDisagree) {
  for (const bool memory_first : {false, true}) {
    Ranks ranks(2);
    const std::string sent = Pattern(100, 5);
    std::string got(99, 'x');
    int sending = 0, receiving = 0;
    if (memory_first) ranks[1].Receive(0, 1, BytesOf(got), receiving);
    ranks[0].Send(1, 1, BytesOf(absl::string_view(sent)), sending);
    for (int i = 0; i < 5; ++i) ranks.MoveOnce();
    if (!memory_first) ranks[1].Receive(0, 1, BytesOf(got), receiving);
    EXPECT_TRUE(ranks.Move([&] { return !ranks[1].lost(0).ok(); }));
    EXPECT_THAT(ranks[1].lost(0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("100 bytes"), HasSubstr("99 are expected"))));
    EXPECT_EQ(got, std::string(99, 'x'));
    EXPECT_EQ(receiving, 1);
  }
}

// Waits without work while nothing comes, and no longer than it was told to.
TEST(TcpTransport, WaitsAsLongAsItIsTold) {
  Ranks ranks(2);
  const auto start = NetClock::now();
  ranks[0].Progress(std::chrono::milliseconds(50));
  EXPECT_GE(SecondsSince(start), 0.049);
  EXPECT_LT(SecondsSince(start), 5);
}

TEST(TcpTransport, LeavesAfterTheLastMessage) {
  Ranks ranks(2);
  const std::string sent = Pattern(2 << 20, 5);
  std::string got(sent.size(), '\0');
  int sending = 0, receiving = 0;
  ranks[0].Send(1, 1, BytesOf(absl::string_view(sent)), sending);
  ranks[0].SendNote(1, 1, "last words");
  ranks[0].Leave();
  EXPECT_TRUE(ranks[0].is_sending());
  for (int i = 0; i < 5; ++i) ranks.MoveOnce();
  EXPECT_FALSE(ranks[1].has_left(0));
  ranks[1].Receive(0, 1, BytesOf(got), receiving);
  EXPECT_TRUE(ranks.Move([&] { return ranks[1].has_left(0); }));
  EXPECT_EQ(sending + receiving, 0);
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(ranks[1].TakeNote(0, 1), "last words");
  EXPECT_FALSE(ranks[0].has_left(1));
  DT_EXPECT_OK(ranks[1].lost(0));
}

TEST(TcpTransport, APeerThatDies) {
  Ranks ranks(3);
  const std::string sent = Pattern(8 << 20, 5);
  std::string got(sent.size(), '\0');
  int sending = 0, receiving = 0;
  ranks[1].Receive(0, 1, BytesOf(got), receiving);
  ranks[0].SendNote(1, 1, "last words");
  ranks[0].Send(1, 1, BytesOf(absl::string_view(sent)), sending);
  ranks[1].Progress(kSlice);
  ranks.Kill(0);
  EXPECT_TRUE(ranks.Move([&] { return !ranks[1].lost(0).ok() && !ranks[2].lost(0).ok(); }));
  EXPECT_THAT(ranks[1].lost(0), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(receiving, 1);
  EXPECT_EQ(ranks[1].TakeNote(0, 1), "last words");
  EXPECT_FALSE(ranks[1].has_left(0));
  // The others talk on, and what is said to the dead goes nowhere.
  ranks[1].SendNote(0, 1, "are you there?");
  ranks[1].SendNote(2, 1, "we are two");
  EXPECT_EQ(ranks.AwaitNote(2, 1, 1), "we are two");
  DT_EXPECT_OK(ranks[1].lost(2));
}

// Who finds by sending that a peer is gone has all the same what it had sent.
TEST(TcpTransport, WhatThePeerSaidBeforeItDied) {
  Ranks ranks(2);
  ranks[0].SendNote(1, 1, "last words");
  ranks[0].Leave();
  ranks.Kill(0);
  ranks[1].SendNote(0, 1, "are you there?");
  EXPECT_TRUE(ranks.Move([&] { return !ranks[1].lost(0).ok(); }));
  EXPECT_EQ(ranks[1].TakeNote(0, 1), "last words");
  EXPECT_TRUE(ranks[1].has_left(0));
}

// A cancelled transport has forgotten memory that is freed here, whatever still comes.
TEST(TcpTransport, CancelLeavesMemoryAlone) {
  Ranks ranks(2);
  auto sent = std::make_unique<std::string>(Pattern(8 << 20, 5));
  auto got = std::make_unique<std::string>(8 << 20, '\0');
  const absl::string_view view = *sent;
  auto sending = std::make_unique<int>(0), receiving = std::make_unique<int>(0);
  ranks[1].Receive(0, 1, BytesOf(*got), *receiving);
  ranks[0].Send(1, 1, BytesOf(view), *sending);
  ranks.MoveOnce();
  ASSERT_EQ(*sending, 1);
  ranks[1].Cancel();
  got = nullptr;
  receiving = nullptr;
  for (int i = 0; i < 20; ++i) ranks.MoveOnce();
  ranks[0].Cancel();
  sent = nullptr;
  sending = nullptr;
  for (int i = 0; i < 20; ++i) ranks.MoveOnce();
  EXPECT_FALSE(ranks[0].is_sending());
  // Nothing more is begun either.
  int pending = 0;
  std::string some(10, '\0');
  ranks[0].Send(1, 1, BytesOf(absl::string_view(some)), pending);
  ranks[0].Receive(1, 1, BytesOf(some), pending);
  ranks[0].SendNote(1, 1, "note");
  ranks[0].Leave();
  EXPECT_EQ(pending, 0);
}

// A peer that says what no rank says.
class StrangePeer : public testing::Test {
 protected:
  StrangePeer() { Connect(); }
  void Connect() {
    std::vector<Socket> sockets(2);
    std::tie(sockets[1], far_) = SocketPair();
    rank_ = std::make_unique<TcpTransport>(std::move(sockets));
  }
  void Says(const std::string& bytes) { DT_ASSERT_OK(SendAll(far_, BytesOf(bytes), In(10))); }
  absl::Status AwaitLost() {
    const auto deadline = In(10);
    while (rank_->lost(1).ok() && NetClock::now() < deadline) rank_->Progress(kSlice);
    return rank_->lost(1);
  }
  static std::string Header(uint64_t size, uint8_t kind, uint64_t channel) {
    WireWriter header;
    header.U64(size);
    header.U8(kind);
    header.U64(channel);
    return header.bytes();
  }

  Socket far_;
  std::unique_ptr<TcpTransport> rank_;
};

TEST_F(StrangePeer, SaysGarbage) {
  Says("this is no header at all");
  EXPECT_THAT(AwaitLost(), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("it sent what no rank sends")));
}

TEST_F(StrangePeer, SaysANoteThatIsTooLong) {
  Says(Header(MessageTransport::kMostNoteBytes + 1, 1, 0));
  EXPECT_THAT(AwaitLost(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(StrangePeer, AnnouncesMoreThanThereIsMemory) {
  std::string memory(10, 'x');
  int pending = 0;
  rank_->Receive(1, 3, BytesOf(memory), pending);
  Says(Header(~uint64_t{0}, 2, 3));
  EXPECT_THAT(AwaitLost(), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("18446744073709551615 bytes, where 10 are")));
  EXPECT_EQ(memory, std::string(10, 'x'));
}

TEST_F(StrangePeer, ClosesWithinAHeaderOrANote) {
  for (const std::string& said : {Header(5, 1, 0).substr(0, 9), Header(5, 1, 0) + "hal"}) {
    Connect();
    Says(said);
    far_.Close();
    EXPECT_THAT(AwaitLost(), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(rank_->TakeNote(1, 0), std::nullopt);
  }
}

}  // namespace
}  // namespace dtensor
