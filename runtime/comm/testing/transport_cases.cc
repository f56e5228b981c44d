#include "dtensor/runtime/comm/testing/transport_cases.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/messages/byte_rows.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::microseconds kSlice(1000);
constexpr uint64_t kMeeting = ~uint64_t{0};  // the channel on which ranks meet

absl::Span<const std::byte> Const(const std::string& text) {
  return BytesOf(absl::string_view(text));
}

void NotesComeInOrder(const TransportRank& me) {
  for (int i = 0; i < 100; ++i) {
    if (me.rank == 0) me.transport.SendNote(1, 7, "to 1: " + std::to_string(i));
    if (me.rank == 0) me.transport.SendNote(2, 7, "to 2: " + std::to_string(i));
    if (me.rank == 2) me.transport.SendNote(1, 7, "from 2: " + std::to_string(i));
  }
  for (int i = 0; i < 100; ++i) {
    if (me.rank == 1) {
      EXPECT_EQ(me.AwaitNote(2, 7), "from 2: " + std::to_string(i));
    }
    if (me.rank == 1) {
      EXPECT_EQ(me.AwaitNote(0, 7), "to 1: " + std::to_string(i));
    }
    if (me.rank == 2) {
      EXPECT_EQ(me.AwaitNote(0, 7), "to 2: " + std::to_string(i));
    }
  }
  if (me.rank == 1) {
    EXPECT_EQ(me.transport.TakeNote(0, 7), std::nullopt);
  }
  if (me.rank == 1) {
    EXPECT_EQ(me.transport.TakeNote(0, 8), std::nullopt);
  }
  me.Meet();
}

void NotesOfAnySize(const TransportRank& me) {
  const size_t sizes[] = {0, 1, 5000, 100000, MessageTransport::kMostNoteBytes, 3};
  for (const size_t size : sizes) {
    if (me.rank == 0) me.transport.SendNote(1, 1, Pattern(size, 3));
  }
  for (const size_t size : sizes) {
    if (me.rank == 1) {
      EXPECT_TRUE(me.AwaitNote(0, 1) == Pattern(size, 3)) << size;
    }
  }
  me.Meet();
}

void NotesAndMessagesOnSeveralChannels(const TransportRank& me) {
  const std::string a = Pattern(1000, 1), b = Pattern(3000000, 2), c = Pattern(1, 3);
  std::string got_a(a.size(), '\0'), got_b(b.size(), '\0'), got_c(c.size(), '\0');
  int pending = 0;
  if (me.rank == 0) {
    me.transport.SendNote(1, 5, "first");
    me.transport.Send(1, 4, Const(a), pending);
    me.transport.SendNote(1, 4, "second");
    me.transport.Send(1, 5, Const(b), pending);
    me.transport.SendNote(1, 5, "third");
    me.transport.Send(1, 4, Const(c), pending);
  } else if (me.rank == 1) {
    me.transport.Receive(0, 5, BytesOf(got_b), pending);
    me.transport.Receive(0, 4, BytesOf(got_a), pending);
    me.transport.Receive(0, 4, BytesOf(got_c), pending);
    EXPECT_EQ(me.AwaitNote(0, 5), "first");
    EXPECT_EQ(me.AwaitNote(0, 4), "second");
    EXPECT_EQ(me.AwaitNote(0, 5), "third");
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_TRUE(got_a == a && got_b == b && got_c == c);
  }
  me.Meet();
}

// Two of each size: those of channels that could be mistaken for each other.
void MessagesFillMemoryInItsOrder(const TransportRank& me) {
  constexpr int kMessages = 50;
  std::vector<std::string> sent, got;
  for (int i = 0; i < kMessages; ++i) {
    sent.push_back(Pattern(i / 2 * 700, i));
    got.emplace_back(sent.back().size(), '\0');
  }
  int pending = 0;
  for (int i = 0; i < kMessages; ++i) {
    const uint64_t channel = i % 2;
    if (me.rank == 0) me.transport.Send(1, channel, Const(sent[i]), pending);
    if (i % 3 == me.rank) me.transport.Progress(std::chrono::microseconds(100));
  }
  for (const int odd : {1, 0}) {
    for (int i = odd; i < kMessages; i += 2) {
      if (me.rank == 1) me.transport.Receive(0, odd, BytesOf(got[i]), pending);
    }
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_EQ(got, sent);
  }
  me.Meet();
}

void NothingAtAllIsAMessageToo(const TransportRank& me) {
  int pending = 0;
  if (me.rank == 2) me.transport.Receive(0, 1, {}, pending);
  if (me.rank == 0) me.transport.Send(1, 1, {}, pending);
  if (me.rank == 0) me.transport.Send(2, 1, {}, pending);
  if (me.rank == 1) me.MoveFor(0.01);
  if (me.rank == 1) me.transport.Receive(0, 1, {}, pending);
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  me.Meet();
}

// `text` cut into `count` rows or fewer, each of `least` bytes or more; one, where that is not so
// many.
template <typename Byte>
ByteRows<Byte> CutInto(absl::Span<Byte> text, size_t count, size_t least) {
  typename ByteRows<Byte>::Rows rows;
  for (size_t row = 0; !text.empty(); ++row) {
    const size_t left = text.size(), more = least + row % 3;
    const bool is_last = row + 1 == count || left < least || left - least < more + least;
    rows.push_back(text.subspan(0, is_last ? left : more));
    text.remove_prefix(rows.back().size());
  }
  return ByteRows<Byte>(std::move(rows));
}

// Rows of the sender's are others than the receiver's, and more than one call of a system takes.
void MessagesOfManyRows(const TransportRank& me) {
  const size_t least = me.transport.least_row_bytes();
  std::vector<std::string> sent, got;
  for (const size_t size : {1000000, 3000000, 5000, 2500000, 700000}) {
    sent.push_back(Pattern(size, sent.size()));
    got.emplace_back(size, '\0');
  }
  int pending = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const SentRows from = CutInto(Const(sent[i]), i % 2 == 0 ? 3 : 100000, least);
    if (me.rank == 0 && i % 3 == 0) me.transport.SendNote(1, 1, "between");
    if (me.rank == 0 && sent[i].size() <= MessageTransport::kMostUnaskedBytes) {
      me.transport.SendUnasked(1, 1, from, pending);
    } else if (me.rank == 0) {
      me.transport.Send(1, 1, from, pending);
    }
    const TakenRows into = CutInto(BytesOf(got[i]), i % 2 == 0 ? 100000 : 4, least);
    if (me.rank == 1) me.transport.Receive(0, 1, into, pending);
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_TRUE(got == sent);
    EXPECT_EQ(me.AwaitNote(0, 1), "between");
    EXPECT_EQ(me.AwaitNote(0, 1), "between");
  }
  me.Meet();
}

// Which are read aside, and come into rows.
void UnaskedMessagesFillRows(const TransportRank& me) {
  const size_t least = me.transport.least_row_bytes();
  const std::string sent = Pattern(300000, 4);
  std::string got(sent.size(), '\0');
  int pending = 0;
  if (me.rank == 0) {
    me.transport.SendUnasked(1, 1, CutInto(Const(sent), 100000, least), pending);
    me.transport.SendNote(1, 2, "behind it");
  } else if (me.rank == 1) {
    EXPECT_EQ(me.AwaitNote(0, 2), "behind it");
    me.transport.Receive(0, 1, CutInto(BytesOf(got), 50, least), pending);
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_TRUE(got == sent);
  }
  me.Meet();
}

// A note that may wait for a message comes before it, and without one, by progress alone.
void NotesAhead(const TransportRank& me) {
  const std::string sent = Pattern(1000, 6);
  std::string got(sent.size(), '\0');
  int pending = 0;
  if (me.rank == 0) {
    me.transport.SendNoteAhead(1, 1, "first");
    me.transport.SendUnasked(1, 1, Const(sent), pending);
    me.transport.SendNoteAhead(2, 1, "alone");
    me.transport.SendNote(2, 1, "second");
    me.transport.SendNoteAhead(1, 1, "second");
    EXPECT_TRUE(me.Move([&] { return !me.transport.is_sending(); }));
  } else {
    EXPECT_EQ(me.AwaitNote(0, 1), me.rank == 1 ? "first" : "alone");
    if (me.rank == 1) me.transport.Receive(0, 1, BytesOf(got), pending);
    EXPECT_EQ(me.AwaitNote(0, 1), "second");
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_TRUE(got == sent);
  }
  me.Meet();
}

// Nobody reads before having sent: much more than sockets take.
void MuchBothWaysAtOnce(const TransportRank& me) {
  const std::string said = Pattern(16 << 20, me.rank);
  std::vector<std::string> heard(kTransportCaseRanks, std::string(said.size(), '\0'));
  int pending = 0;
  for (int peer = 0; peer < kTransportCaseRanks; ++peer) {
    if (peer == me.rank) continue;
    me.transport.Send(peer, 1, Const(said), pending);
    me.transport.Receive(peer, 1, BytesOf(heard[peer]), pending);
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  for (int peer = 0; peer < kTransportCaseRanks; ++peer) {
    if (peer != me.rank) {
      EXPECT_TRUE(heard[peer] == Pattern(said.size(), peer));
    }
  }
  me.Meet();
}

// Each send by itself, in whatever order: long ones and short ones in turn, which MPI ends in
// another order than their own.
void WhatIsDoneMayBeWrittenOver(const TransportRank& me) {
  constexpr int kMessages = 8;
  std::vector<std::string> texts, got;
  for (int i = 0; i < kMessages; ++i) {
    texts.push_back(Pattern(i % 2 == 0 ? 1 << 20 : 100, i));
    got.emplace_back(texts.back().size(), '\0');
  }
  const std::vector<std::string> sent = texts;
  std::vector<int> pending(kMessages, 0);
  if (me.rank == 0) {
    for (int i = 0; i < kMessages; ++i) me.transport.Send(1, 1, Const(texts[i]), pending[i]);
  } else if (me.rank == 1) {
    me.MoveFor(0.01);
    for (int i = 0; i < kMessages; ++i) me.transport.Receive(0, 1, BytesOf(got[i]), pending[i]);
  }
  EXPECT_TRUE(me.Move([&] {
    bool all = true;
    for (int i = 0; i < kMessages; ++i) {
      all &= pending[i] == 0;
      if (me.rank == 0 && pending[i] == 0) texts[i].assign(texts[i].size(), 'x');
    }
    return all;
  }));
  if (me.rank == 1) {
    EXPECT_TRUE(got == sent);
  }
  me.Meet();
}

// What others send is read meanwhile, and nothing of it is lost.
void AMessageWhoseMemoryComesLate(const TransportRank& me) {
  const std::string sent = Pattern(1 << 20, 5);
  std::string got(sent.size(), '\0');
  int pending = 0;
  if (me.rank == 0) {
    me.transport.Send(1, 1, Const(sent), pending);
    me.transport.SendNote(1, 2, "behind it");
  }
  for (int i = 0; i < 20; ++i) {
    if (me.rank == 2) me.transport.SendNote(1, 1, std::to_string(i));
    if (me.rank == 1) {
      EXPECT_EQ(me.AwaitNote(2, 1), std::to_string(i));
    }
  }
  if (me.rank == 1) me.transport.Receive(0, 1, BytesOf(got), pending);
  if (me.rank == 1) {
    EXPECT_EQ(me.AwaitNote(0, 2), "behind it");
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_TRUE(got == sent);
  }
  me.Meet();
}

// Are kept, and what comes behind them comes all the same.
void MessagesThatNobodyAskedFor(const TransportRank& me) {
  constexpr uint64_t kChannels = 2;
  std::vector<std::string> sent, got;
  for (const size_t size : {size_t{1}, MessageTransport::kMostUnaskedBytes, size_t{0},
                            size_t{70000}, size_t{0}, size_t{9}}) {
    sent.push_back(Pattern(size, sent.size()));
    got.emplace_back(size, '\0');
  }
  int pending = 0;
  if (me.rank == 0) {
    for (size_t i = 0; i < sent.size(); ++i) {
      me.transport.SendUnasked(1, i % kChannels, Const(sent[i]), pending);
    }
    me.transport.SendNote(1, 0, "behind them");
  }
  if (me.rank == 1) {
    EXPECT_EQ(me.AwaitNote(0, 0), "behind them");
    for (uint64_t channel = kChannels; channel-- > 0;) {
      for (size_t i = channel; i < sent.size(); i += kChannels) {
        me.transport.Receive(0, channel, BytesOf(got[i]), pending);
      }
    }
  }
  EXPECT_TRUE(me.Move([&] { return pending == 0; }));
  if (me.rank == 1) {
    EXPECT_EQ(got, sent);
  }
  me.Meet();
}

void SizesThatDisagree(const TransportRank& me) {
  int pending = 0;
  const std::string sent = Pattern(100, 5);
  std::string got(99, 'x');
  if (me.rank == 0) {
    me.transport.Send(1, 1, Const(sent), pending);
    me.transport.Send(2, 1, Const(sent), pending);
    me.MoveFor(0.2);
    return;
  }
  if (me.rank == 2) me.MoveFor(0.01);
  me.transport.Receive(0, 1, BytesOf(got), pending);
  EXPECT_TRUE(me.Move([&] { return !me.transport.lost(0).ok(); }));
  EXPECT_THAT(me.transport.lost(0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("100 bytes"), HasSubstr("99 are expected"))));
  EXPECT_EQ(got, std::string(99, 'x'));
  EXPECT_EQ(pending, 1);
}

// Waits without work while nothing comes, and no longer than it was told to.
void WaitsAsLongAsItIsTold(const TransportRank& me) {
  me.Meet();
  if (me.rank == 0) {
    const auto start = NetClock::now();
    me.transport.Progress(std::chrono::milliseconds(50));
    EXPECT_GE(SecondsSince(start), 0.049);
    EXPECT_LT(SecondsSince(start), 30);
    for (const int peer : {1, 2}) me.transport.SendNote(peer, 1, "waited");
    me.MoveFor(0.01);
  } else {
    EXPECT_EQ(me.AwaitNote(0, 1), "waited");
  }
}

void LeavesAfterTheLastMessage(const TransportRank& me) {
  const std::string sent = Pattern(20 << 20, 5);
  std::string got(sent.size(), '\0');
  int pending = 0;
  if (me.rank == 0) {
    me.transport.Send(1, 1, Const(sent), pending);
    me.transport.SendNote(1, 1, "last words");
    me.transport.Leave();
    EXPECT_TRUE(me.transport.is_sending());
  } else if (me.rank == 1) {
    me.MoveFor(0.02);
    EXPECT_FALSE(me.transport.has_left(0));
    EXPECT_FALSE(me.transport.has_left(2));
    me.transport.Receive(0, 1, BytesOf(got), pending);
    EXPECT_TRUE(me.Move([&] { return me.transport.has_left(0); }));
    EXPECT_EQ(pending, 0);
    EXPECT_TRUE(got == sent);
    EXPECT_EQ(me.transport.TakeNote(0, 1), "last words");
    me.transport.SendNote(2, 1, "you too");
    me.transport.Leave();
  } else {
    EXPECT_EQ(me.AwaitNote(1, 1), "you too");
    me.transport.Leave();
  }
  EXPECT_TRUE(me.Move([&] { return !me.transport.is_sending(); }));
  if (me.rank == 0) {
    EXPECT_EQ(pending, 0);
  }
  for (int peer = 0; peer < kTransportCaseRanks; ++peer) {
    if (peer == me.rank) continue;
    EXPECT_TRUE(me.Move([&] { return me.transport.has_left(peer); }));
    DT_EXPECT_OK(me.transport.lost(peer));
  }
}

// A cancelled transport has forgotten memory that is freed here, whatever still comes.
void CancelLeavesMemoryAlone(const TransportRank& me) {
  me.Meet();
  auto bytes = std::make_unique<std::string>(Pattern(32 << 20, 5));
  auto pending = std::make_unique<int>(0);
  if (me.rank == 0) {
    for (const int peer : {1, 2}) me.transport.Send(peer, 1, Const(*bytes), *pending);
    EXPECT_EQ(*pending, 2);
  } else {
    me.transport.Receive(0, 1, BytesOf(*bytes), *pending);
  }
  for (int i = 0; i <= me.rank; ++i) me.transport.Progress(kSlice);
  me.transport.Cancel();
  bytes = nullptr;
  pending = nullptr;
  me.MoveFor(0.05);
  EXPECT_FALSE(me.transport.is_sending());
  // Nothing more is begun either.
  int more = 0;
  std::string some(10, '\0');
  const int peer = (me.rank + 1) % kTransportCaseRanks;
  me.transport.Send(peer, 1, Const(some), more);
  me.transport.Receive(peer, 1, BytesOf(some), more);
  me.transport.SendNote(peer, 1, "note");
  me.transport.Leave();
  EXPECT_EQ(more, 0);
}

}  // namespace

bool TransportRank::Move(const std::function<bool()>& over) const {
  const auto deadline = In(60);
  while (!over()) {
    if (NetClock::now() > deadline) return false;
    transport.Progress(kSlice);
  }
  return true;
}

void TransportRank::MoveFor(double seconds) const {
  const auto end = In(seconds);
  while (NetClock::now() < end) transport.Progress(kSlice);
}

std::string TransportRank::AwaitNote(int peer, uint64_t channel) const {
  std::optional<std::string> note;
  Move([&] { return (note = transport.TakeNote(peer, channel)).has_value(); });
  return note.value_or("no note came");
}

void TransportRank::Meet() const {
  for (const char* word : {"here", "gone"}) {
    for (int peer = 0; peer < kTransportCaseRanks; ++peer) {
      if (peer != rank) transport.SendNote(peer, kMeeting, word);
    }
    for (int peer = 0; peer < kTransportCaseRanks; ++peer) {
      if (peer != rank) {
        EXPECT_EQ(AwaitNote(peer, kMeeting), word);
      }
    }
  }
  // What this rank sent last is on its way before it does something else.
  MoveFor(0.002);
}

std::vector<TransportCase> TransportCases() {
  return {
      {"NotesComeInOrder", NotesComeInOrder},
      {"NotesOfAnySize", NotesOfAnySize},
      {"NotesAndMessagesOnSeveralChannels", NotesAndMessagesOnSeveralChannels},
      {"MessagesFillMemoryInItsOrder", MessagesFillMemoryInItsOrder},
      {"NothingAtAllIsAMessageToo", NothingAtAllIsAMessageToo},
      {"MessagesOfManyRows", MessagesOfManyRows},
      {"UnaskedMessagesFillRows", UnaskedMessagesFillRows},
      {"NotesAhead", NotesAhead},
      {"MuchBothWaysAtOnce", MuchBothWaysAtOnce},
      {"WhatIsDoneMayBeWrittenOver", WhatIsDoneMayBeWrittenOver},
      {"AMessageWhoseMemoryComesLate", AMessageWhoseMemoryComesLate},
      {"MessagesThatNobodyAskedFor", MessagesThatNobodyAskedFor},
      {"SizesThatDisagree", SizesThatDisagree},
      {"WaitsAsLongAsItIsTold", WaitsAsLongAsItIsTold},
      {"LeavesAfterTheLastMessage", LeavesAfterTheLastMessage},
      {"CancelLeavesMemoryAlone", CancelLeavesMemoryAlone, true},
  };
}

}  // namespace dtensor
