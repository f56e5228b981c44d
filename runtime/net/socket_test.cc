#include "dtensor/runtime/net/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Ends {
  Socket near, far;
};

absl::StatusOr<Socket> AcceptSoon(const Socket& listener) {
  AwaitReadable(listener, In(10));
  return AcceptFrom(listener);
}

// A TCP connection of this machine with itself.
Ends Connected(const char* host = "127.0.0.1") {
  const Socket listener = ListenAt({host, 0}).value();
  Socket near = ConnectTo({host, PortOf(listener).value()}, In(10)).value();
  return {std::move(near), AcceptSoon(listener).value()};
}

TEST(HostPort, ReadsWhatItPrints) {
  for (const char* text :
       {"a:1", "127.0.0.1:65535", "[::1]:5", "[fe80::1%eth0]:29500", "n-1.x:80"}) {
    const auto read = ParseHostPort(text);
    ASSERT_THAT(read, IsOk()) << text;
    EXPECT_EQ(read->ToString(), text);
  }
  EXPECT_EQ(ParseHostPort("[::1]:5")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:5")->port, 5);
}

TEST(HostPort, RefusesWhatIsNone) {
  for (const char* text :
       {"", ":", "a", "a:", ":5", "a:0", "a:65536", "a:-1", "a:5x", "a:x", "[::1]",
        "a:99999999999999999999", "a: 5", "a:+5", "[]:5", "[[a]]:5", "[a:5", "a]:5"}) {
    EXPECT_THAT(ParseHostPort(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("write host:port, with a port from 1")))
        << text;
  }
  const std::string with_zero("a\0b:5", 5);
  EXPECT_THAT(ParseHostPort(with_zero), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Socket, OwnsItsDescriptor) {
  auto [near, far] = SocketPair();
  const int fd = near.fd();
  Socket moved = std::move(near);
  EXPECT_FALSE(near.is_open());
  EXPECT_EQ(moved.fd(), fd);
  moved = Socket();
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  std::byte byte;
  EXPECT_THAT(far.ReceiveSome({&byte, 1}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was closed")));
}

TEST(Socket, ProgramsThatAreStartedDoNotInheritIt) {
  const Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const Ends ends = Connected();
  for (const int fd : {listener.fd(), ends.near.fd(), ends.far.fd()}) {
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  }
}

// Of a process that was started without them.
TEST(Socket, IsNoStandardStream) {
  const Socket input(dup(0));
  close(0);
  const Ends ends = Connected();
  EXPECT_GT(ends.near.fd(), 2);
  EXPECT_GT(ends.far.fd(), 2);
  dup2(input.fd(), 0);
}

TEST(Listening, AFreePortIsTakenOnce) {
  const Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const int port = PortOf(listener).value();
  EXPECT_GT(port, 0);
  EXPECT_THAT(
      ListenAt({"127.0.0.1", port}),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)),
                                                     HasSubstr("another program has that port"))));
}

TEST(Listening, APortThatWasLeftIsFreeAtOnce) {
  Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const int port = PortOf(listener).value();
  Socket caller = ConnectTo({"127.0.0.1", port}, In(10)).value();
  AcceptSoon(listener)->Close();  // its end lingers
  listener.Close();
  DT_EXPECT_OK(ListenAt({"127.0.0.1", port}));
}

TEST(Listening, RefusesAnAddressOfAnotherMachine) {
  EXPECT_THAT(ListenAt({"192.0.2.1", 0}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("192.0.2.1:0"), HasSubstr("an address of this machine"))));
}

TEST(Listening, NoHostMeansAllAddresses) {
  const Socket listener = ListenAt({"", 0}).value();
  const int port = PortOf(listener).value();
  const Socket v4 = ConnectTo({"127.0.0.1", port}, In(10)).value();
  EXPECT_THAT(PeerHostOf(AcceptFrom(listener).value()), IsOkAndHolds("127.0.0.1"));
  if (!ListenAt({"::1", 0}).ok()) GTEST_SKIP() << "this machine has no ::1";
  const Socket v6 = ConnectTo({"::1", port}, In(10)).value();
  EXPECT_THAT(PeerHostOf(AcceptFrom(listener).value()), IsOkAndHolds("::1"));
}

TEST(Listening, LoopbackIsOfThisMachineAlone) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host :
       {"", "0.0.0.0", "::", "127.evil.org", "node0", "128.0.0.1", "1127.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(Deadlines, OfAnyLength) {
  EXPECT_GT(DeadlineIn(1e300), NetClock::now() + std::chrono::hours(24 * 365));
  EXPECT_LT(DeadlineIn(0), In(1));
}

TEST(Listening, NobodyWaits) {
  const Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const auto nobody = AcceptFrom(listener);
  ASSERT_THAT(nobody, IsOk());
  EXPECT_FALSE(nobody->is_open());
}

TEST(Listening, SaysWhoCame) {
  EXPECT_THAT(PeerHostOf(Connected().far), IsOkAndHolds("127.0.0.1"));
  const auto v6 = ListenAt({"::1", 0});
  if (!v6.ok()) GTEST_SKIP() << "this machine has no ::1";
  EXPECT_THAT(PeerHostOf(Connected("::1").far), IsOkAndHolds("::1"));
}

// One that no server of names is asked for; of others: names_test.cc.
TEST(Connecting, RefusesAHostThatDoesNotExist) {
  EXPECT_THAT(ConnectTo({"a b", 80}, In(0.2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a b")));
}

TEST(Connecting, WaitsForWhoListensLater) {
  const int port = FreePort();
  Socket listener;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    listener = ListenAt({"127.0.0.1", port}).value();
  });
  DT_EXPECT_OK(ConnectTo({"127.0.0.1", port}, In(20)));
  late.join();
}

TEST(Connecting, SaysWhereNobodyAnswers) {
  const int port = FreePort();
  const auto start = NetClock::now();
  EXPECT_THAT(ConnectTo({"127.0.0.1", port}, In(0.2)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("nobody answers at 127.0.0.1:" + std::to_string(port)),
                             HasSubstr("refused"))));
  EXPECT_GE(SecondsSince(start), 0.19);
  EXPECT_LT(SecondsSince(start), 5);
}

// Connects from this port alone: errno, or ENOTSUP where the system cannot be told so.
int ConnectFrom(int port, int to) {
  constexpr int kLocalPortRange = 51;  // IP_LOCAL_PORT_RANGE, of Linux 6.3
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const uint32_t range = static_cast<uint32_t>(port) << 16 | static_cast<uint32_t>(port);
  if (setsockopt(socket.fd(), IPPROTO_IP, kLocalPortRange, &range, sizeof(range)) != 0) {
    return ENOTSUP;
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(to));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                           : errno;
}

TEST(Reserving, LetsNobodyConnectFromThere) {
  const Socket other = ListenAt({"127.0.0.1", 0}).value();
  Socket reserved = ReservePort().value();
  const int port = PortOf(reserved).value(), to = PortOf(other).value();
  const int error = ConnectFrom(port, to);
  if (error == ENOTSUP) GTEST_SKIP() << "before Linux 6.3 a socket has no range of ports";
  EXPECT_EQ(error, EADDRNOTAVAIL);
  reserved.Close();
  EXPECT_EQ(ConnectFrom(port, to), 0) << "what is not reserved is had";
}

TEST(Reserving, LetsListenWhoKnows) {
  const Socket reserved = ReservePort().value();
  const int port = PortOf(reserved).value();
  EXPECT_THAT(ConnectTo({"127.0.0.1", port}, In(0.1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("refused")));
  for (int again = 0; again < 2; ++again) {
    const Socket listener = ListenAt({"127.0.0.1", port}).value();
    DT_EXPECT_OK(ConnectTo({"127.0.0.1", port}, In(20)));
  }
}

// A port of the range that connecting sockets get theirs from, at which nobody listens.
TEST(Connecting, DoesNotMeetItself) {
  Socket bound = ListenAt({"127.0.0.1", 0}).value();
  const int port = PortOf(bound).value();
  bound.Close();
  const auto socket = ConnectTo({"127.0.0.1", port}, In(0.5));
  if (socket.ok()) {  // another program's listener, which has been given that port
    EXPECT_NE(PortOf(*socket).value(), port);
    return;
  }
  EXPECT_THAT(socket, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(Waiting, EndsAtTheDeadline) {
  auto [near, far] = SocketPair();
  const auto start = NetClock::now();
  EXPECT_FALSE(AwaitReadable(near, In(0.1)));
  EXPECT_GE(SecondsSince(start), 0.099);
  EXPECT_FALSE(AwaitReadable(near, NetClock::now() - std::chrono::hours(1)));
  EXPECT_TRUE(AwaitWritable(near, In(0)));
  far.Close();
  EXPECT_TRUE(AwaitReadable(near, In(10)));
}

TEST(Transfer, SaysWhoIsSilent) {
  auto [near, far] = SocketPair();
  std::string some(10, '\0');
  DT_ASSERT_OK(SendAll(far, BytesOf("half"), In(1)));
  EXPECT_THAT(ReceiveAll(near, BytesOf(some), In(0.1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("says nothing")));
  const std::string much(64 << 20, 'x');
  EXPECT_THAT(SendAll(near, BytesOf(much), In(0.1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("takes nothing")));
}

TEST(Transfer, NothingIsSentAndReceivedAtOnce) {
  auto [near, far] = SocketPair();
  std::string none;
  DT_EXPECT_OK(SendAll(near, BytesOf(absl::string_view()), NetClock::now()));
  DT_EXPECT_OK(ReceiveAll(near, BytesOf(none), NetClock::now()));
  EXPECT_THAT(near.ReceiveSome(absl::Span<std::byte>()), IsOkAndHolds(0u));
}

TEST(Transfer, APeerThatClosesInTheMiddle) {
  Ends ends = Connected();
  DT_ASSERT_OK(SendAll(ends.far, BytesOf("half"), In(1)));
  ends.far.Close();
  std::string some(10, '\0');
  EXPECT_THAT(ReceiveAll(ends.near, BytesOf(some), In(10)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was closed")));
  EXPECT_EQ(some.substr(0, 4), "half");
}

// Nor does SIGPIPE end the program.
TEST(Transfer, APeerThatIsGone) {
  Ends ends = Connected();
  ends.far.Close();
  const std::string much(64 << 20, 'x');
  EXPECT_THAT(SendAll(ends.near, BytesOf(much), In(10)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(Transfer, MuchBothWaysAtOnce) {
  Ends ends = Connected();
  const auto talk = [](Socket& socket, int mine, int theirs) {
    const std::string said = Pattern(8 << 20, mine);
    std::string heard(said.size(), '\0');
    std::thread sender([&] { DT_EXPECT_OK(SendAll(socket, BytesOf(said), In(50))); });
    DT_EXPECT_OK(ReceiveAll(socket, BytesOf(heard), In(50)));
    sender.join();
    EXPECT_TRUE(heard == Pattern(said.size(), theirs));
  };
  std::thread other([&] { talk(ends.far, 2, 1); });
  talk(ends.near, 1, 2);
  other.join();
}

}  // namespace
}  // namespace dtensor
