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

#include "dtensor/runtime/comm/testing/reordered_sends.h"
#include "dtensor/runtime/comm/testing/transport_cases.h"
#include "dtensor/runtime/core/wire.h"
#include "dtensor/runtime/net/admission.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::microseconds kSlice(10000);

std::vector<std::unique_ptr<TcpTransport>> Connected(int size) {
  std::vector<std::vector<Socket>> ends;
  for (int rank = 0; rank < size; ++rank) {
    ends.emplace_back(size);
    for (int peer = 0; peer < rank; ++peer) {
      std::tie(ends[rank][peer], ends[peer][rank]) = SocketPair();
    }
  }
  std::vector<std::unique_ptr<TcpTransport>> ranks;
  for (auto& sockets : ends) ranks.push_back(std::make_unique<TcpTransport>(std::move(sockets)));
  return ranks;
}

// Ranks of one thread: each moves when it is its turn.
class Ranks {
 public:
  explicit Ranks(int size) : ranks_(Connected(size)) {}

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

class TransportOf : public testing::TestWithParam<TransportCase> {};

TEST_P(TransportOf, Threads) {
  std::vector<std::unique_ptr<TcpTransport>> transports = Connected(kTransportCaseRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kTransportCaseRanks; ++rank) {
    threads.emplace_back([&, rank] { GetParam().run({rank, *transports[rank]}); });
  }
  for (std::thread& thread : threads) thread.join();
}
INSTANTIATE_TEST_SUITE_P(TcpTransport, TransportOf, testing::ValuesIn(TransportCases()),
                         [](const auto& info) { return std::string(info.param.name); });

// The order in which sends are done is nobody's law: a transport with another one does as all do.
TEST_P(TransportOf, ThreadsThatEndSendsInAnotherOrder) {
  std::vector<std::unique_ptr<TcpTransport>> transports = Connected(kTransportCaseRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kTransportCaseRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ReorderedSends reordered(*transports[rank]);
      GetParam().run({rank, reordered});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Notes say nothing of whether messages come: ranks that wait send them too.
// Rank 1 of 3 finds rank 0 and waits for rank 2 in vain: whoever hears of it may take a while to
// tell the others, who see a broken connection afterwards.
TEST(TcpTransport, ConnectionsStandWhileAFailureIsTold) {
  const JobKey key = {"job", "secret", 3};
  Socket far = ListenAt({"127.0.0.1", 0}).value(), near = ListenAt({"127.0.0.1", 0}).value();
  const std::vector<HostPort> addresses = {
      {"127.0.0.1", PortOf(far).value()}, {"127.0.0.1", PortOf(near).value()}, {"127.0.0.1", 1}};
  std::optional<Admitted> guest;
  std::thread rank0([&] {
    Admission door(std::move(far), LinkKind::kData, key, [](int) { return true; });
    guest = door.Next(In(20)).value();
  });
  bool told = false;
  const auto connected = TcpTransport::Connect(
      1, key, std::move(near), addresses, In(0.5), nullptr, [&](const absl::Status& status) {
        rank0.join();
        told = true;
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 2 ")));
        ASSERT_TRUE(guest.has_value());
        EXPECT_FALSE(AwaitReadable(guest->socket, In(0.05)));
      });
  EXPECT_FALSE(connected.ok());
  ASSERT_TRUE(told);
  EXPECT_TRUE(AwaitReadable(guest->socket, In(20)));  // its end
}

TEST(TcpTransport, CountsWhatMovedOfMessages) {
  Ranks ranks(2);
  const std::string message = Pattern(100000, 1);
  std::string got(message.size(), '\0');
  int sending = 0, receiving = 0;
  ranks[0].SendNote(1, 4, "a note");
  EXPECT_EQ(ranks.AwaitNote(1, 0, 4), "a note");
  EXPECT_EQ(ranks[0].moved(1) + ranks[1].moved(0), 0);
  ranks[1].Receive(0, 4, BytesOf(got), receiving);
  ranks[0].Send(1, 4, BytesOf(absl::string_view(message)), sending);
  EXPECT_TRUE(ranks.Move([&] { return sending == 0 && receiving == 0; }));
  EXPECT_EQ(ranks[0].moved(1), message.size());
  EXPECT_EQ(ranks[1].moved(0), message.size());
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

// More of them than are kept at once, and behind them a note, which whoever would take them waits
// for first.
TEST(TcpTransport, NoNumberOfUnaskedMessagesHoldsUpANote) {
  constexpr int kMessages = 70;
  Ranks ranks(2);
  const std::string sent(MessageTransport::kMostUnaskedBytes, 'x');
  int pending = 0;
  for (int i = 0; i < kMessages; ++i)
    ranks[0].SendUnasked(1, i, BytesOf(absl::string_view(sent)), pending);
  ranks[0].SendNote(1, kMessages, "behind");
  EXPECT_EQ(ranks.AwaitNote(1, 0, kMessages), "behind");
  std::string got(sent.size(), '\0');
  for (int i = 0; i < kMessages; ++i) {
    ranks[1].Receive(0, i, BytesOf(got), pending);
    ASSERT_TRUE(ranks.Move([&] { return pending == 0; }));
    ASSERT_TRUE(got == sent);
  }
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

// Half of a message has been read aside when memory is given for it.
TEST_F(StrangePeer, SendsUnaskedWhatMemoryComesForMeanwhile) {
  std::string memory(10, 'x');
  int pending = 0;
  Says(Header(memory.size(), 4, 3) + "01234");
  for (int i = 0; i < 5; ++i) rank_->Progress(kSlice);
  rank_->Receive(1, 3, BytesOf(memory), pending);
  Says("56789");
  for (int i = 0; i < 1000 && pending > 0; ++i) rank_->Progress(kSlice);
  EXPECT_EQ(memory, "0123456789");
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
