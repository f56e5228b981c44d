#include "dtensor/runtime/net/framed_link.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr size_t kMost = 1 << 20;

// Frames of all kinds of sizes; what is said in each tells it from others.
std::vector<Frame> SomeFrames() {
  std::vector<Frame> frames;
  for (const int size : {0, 1, 5, 4090, 4091, 4092, 4096, 0, 70000, 3, 200000, 0}) {
    const auto type = static_cast<uint8_t>(frames.size());
    frames.push_back({type, std::string(size, static_cast<char>('a' + type))});
  }
  return frames;
}

std::string Encode(const std::vector<Frame>& frames) {
  std::string bytes;
  for (const Frame& frame : frames) bytes += EncodeFrame(frame.type, frame.body);
  return bytes;
}

std::vector<Frame> Drain(FrameReader& reader) {
  std::vector<Frame> frames;
  while (true) {
    const auto next = reader.Next();
    EXPECT_THAT(next, IsOk());
    if (!next.ok() || !*next) return frames;
    frames.push_back(**next);
  }
}

void ExpectSame(const std::vector<Frame>& a, const std::vector<Frame>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].type, b[i].type);
    EXPECT_TRUE(a[i].body == b[i].body) << i;
  }
}

TEST(FrameReader, HoweverTheStreamIsCut) {
  const std::vector<Frame> sent = SomeFrames();
  const std::string bytes = Encode(sent);
  std::mt19937 random(1);
  for (const size_t longest : {size_t{1}, size_t{7}, size_t{5000}, bytes.size()}) {
    FrameReader reader(kMost);
    std::vector<Frame> got;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = std::min(bytes.size() - at, 1 + random() % longest);
      reader.Add(absl::string_view(bytes).substr(at, length));
      at += length;
      for (Frame& frame : Drain(reader)) got.push_back(std::move(frame));
    }
    ExpectSame(got, sent);
  }
}

TEST(FrameReader, ManyInOneRead) {
  std::vector<Frame> sent;
  for (int i = 0; i < 50000; ++i) sent.push_back({static_cast<uint8_t>(i), std::to_string(i)});
  FrameReader reader(kMost);
  reader.Add(Encode(sent));
  ExpectSame(Drain(reader), sent);
}

TEST(FrameReader, HasNoneWhileAByteIsMissing) {
  const std::string bytes = EncodeFrame(7, "body");
  EXPECT_EQ(bytes.size(), 9);
  for (size_t length = 0; length < bytes.size(); ++length) {
    FrameReader reader(kMost);
    reader.Add(absl::string_view(bytes).substr(0, length));
    EXPECT_TRUE(Drain(reader).empty()) << length;
  }
}

// Before any of its bytes have come: nothing is kept for it.
TEST(FrameReader, RefusesWhatIsTooLong) {
  FrameReader reader(10);
  reader.Add(EncodeFrame(1, "0123456789"));
  reader.Add(EncodeFrame(2, "0123456789a").substr(0, 5));
  EXPECT_EQ((*reader.Next())->body, "0123456789");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(reader.Next(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("11 bytes"), HasSubstr("10 are the most"))));
  }
  FrameReader other(kMost);
  other.Add("\xff\xff\xff\xff\x01");
  EXPECT_THAT(other.Next(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4294967295")));
}

class FramedLinkTest : public testing::Test {
 protected:
  FramedLinkTest() : FramedLinkTest(SocketPair()) {}
  explicit FramedLinkTest(std::pair<Socket, Socket> ends)
      : near_(std::move(ends.first), kMost), far_(std::move(ends.second)) {}

  void FarSends(const std::string& bytes) { DT_ASSERT_OK(SendAll(far_, BytesOf(bytes), In(10))); }

  FramedLink near_;
  Socket far_;
};

TEST_F(FramedLinkTest, MoreThanTheSocketTakes) {
  const std::vector<Frame> sent = SomeFrames();
  std::vector<Frame> got;
  std::thread reads([&] {
    FramedLink link(std::move(far_), kMost);
    for (size_t i = 0; i < 20 * sent.size(); ++i) {
      const auto frame = link.Await(In(20));
      ASSERT_THAT(frame, IsOk());
      EXPECT_TRUE(frame->type == sent[i % sent.size()].type &&
                  frame->body == sent[i % sent.size()].body)
          << i;
    }
  });
  for (int i = 0; i < 20; ++i) {
    for (const Frame& frame : sent) near_.Queue(frame.type, frame.body);
  }
  EXPECT_TRUE(near_.has_queued());
  while (near_.has_queued()) {
    DT_ASSERT_OK(near_.Flush());
    if (near_.has_queued()) AwaitWritable(near_.socket(), In(1));
  }
  reads.join();
}

TEST_F(FramedLinkTest, SendsNothingBeforeFlush) {
  near_.Queue(1, "");
  EXPECT_TRUE(near_.has_queued());
  std::byte byte;
  EXPECT_THAT(far_.ReceiveSome({&byte, 1}), IsOkAndHolds(0u));
  DT_EXPECT_OK(near_.Flush());
  EXPECT_FALSE(near_.has_queued());
  EXPECT_THAT(far_.ReceiveSome({&byte, 1}), IsOkAndHolds(1u));
}

TEST_F(FramedLinkTest, WaitsForTheRest) {
  const std::string bytes = EncodeFrame(3, "in two parts");
  FarSends(bytes.substr(0, 8));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    FarSends(bytes.substr(8));
  });
  EXPECT_THAT(near_.Await(In(20)), IsOkAndHolds(Field(&Frame::body, "in two parts")));
  later.join();
}

TEST_F(FramedLinkTest, SaysWhoIsSilent) {
  FarSends(EncodeFrame(3, "truncated").substr(0, 8));
  const auto start = NetClock::now();
  EXPECT_THAT(near_.Await(In(0.1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(SecondsSince(start), 5);
}

TEST_F(FramedLinkTest, APeerThatClosesInTheMiddle) {
  FarSends(EncodeFrame(3, "truncated").substr(0, 8));
  far_.Close();
  EXPECT_THAT(near_.Await(In(10)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was closed")));
}

TEST_F(FramedLinkTest, APeerThatSendsTooMuch) {
  FarSends("\xff\xff\xff\xff\x01 and more");
  EXPECT_THAT(near_.Await(In(10)), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Whatever the sizes: a link reads as much as there is, and then meets the end.
TEST(FramedLink, WhatCameBeforeTheEndIsRead) {
  for (const size_t body : {size_t{0}, size_t{100}, size_t{4096 - 5}, size_t{2 * 4096 - 5}}) {
    auto [near, far] = SocketPair();
    FramedLink link(std::move(near), kMost);
    DT_ASSERT_OK(SendAll(far, BytesOf(EncodeFrame(3, std::string(body, 'x'))), In(10)));
    far.Close();
    const auto last = link.Await(In(10));
    ASSERT_THAT(last, IsOk()) << body;
    EXPECT_EQ(last->body.size(), body);
    EXPECT_THAT(link.Await(In(10)), StatusIs(absl::StatusCode::kUnavailable));
  }
}

// However much a peer sends: what is not needed yet stays in the socket.
TEST(FramedLink, ReceiveTakesNoMoreThanAFrame) {
  constexpr size_t kSmall = 10000;
  auto [near, far] = SocketPair();
  const std::string frame = EncodeFrame(3, std::string(kSmall, 'x'));
  std::string sent;
  while (sent.size() < 10 * frame.size()) sent += frame;
  const size_t fits = far.SendSome(BytesOf(sent)).value();
  ASSERT_GT(fits, 3 * frame.size());
  FramedLink link(std::move(near), kSmall);
  for (int i = 0; i < 10; ++i) DT_ASSERT_OK(link.Receive());
  int waits = 0;  // bytes
  ASSERT_EQ(ioctl(link.socket().fd(), FIONREAD, &waits), 0);
  EXPECT_GT(waits, static_cast<int>(fits - 2 * frame.size()));
  for (size_t got = 0; got < fits / frame.size(); ++got) {
    DT_ASSERT_OK_AND_ASSIGN(const Frame next, link.Await(In(10)));
    EXPECT_EQ(next.body.size(), kSmall);
  }
}

}  // namespace
}  // namespace dtensor
