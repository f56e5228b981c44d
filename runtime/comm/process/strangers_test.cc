// Strangers at every port that a world opens, while it forms and while it runs: they neither join
// nor disturb it. One listener's own answers: admission_test.cc.
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/testing/process_ranks.h"
#include "dtensor/runtime/net/handshake.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr int kCalls = 10000;

// Of all sockets of this process that listen.
std::vector<int> OpenPorts() {
  std::vector<int> ports;
  for (int fd = 3; fd < 2048; ++fd) {
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    Socket borrowed(fd);
    const auto port = PortOf(borrowed);
    borrowed.Release();
    if (port.ok() && *port > 0) ports.push_back(*port);
  }
  return ports;
}

// Once, unlike ConnectTo; closed if nobody answers.
Socket TryToConnect(int port) {
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int error = 0;
  if (connect(made.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    socklen_t length = sizeof(error);
    if (errno != EINPROGRESS || !AwaitWritable(made, In(0.02)) ||
        getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
      return Socket();
    }
  }
  return made;
}

// Calls ports, and says nothing, nonsense, half of what a rank says, or what one said before.
class Stranger {
 public:
  Stranger(const LaunchedRank& world, unsigned seed) : world_(world), random_(seed) {}

  // Whether it was answered.
  bool Call(int port) {
    Socket socket = TryToConnect(port);
    if (!socket.is_open()) return false;
    const std::string words = Words();
    socket.SendSome(BytesOf(absl::string_view(words))).IgnoreError();
    if (random_() % 3 != 0) held_.push_back(std::move(socket));  // stays, and is silent
    if (held_.size() > 150) held_.pop_front();
    return true;
  }

 private:
  std::string Words() {
    const JobKey key = {world_.job, "not the secret", static_cast<uint32_t>(world_.size)};
    const JobKey true_key = {world_.job, world_.secret, static_cast<uint32_t>(world_.size)};
    const auto kind = random_() % 2 == 0 ? LinkKind::kControl : LinkKind::kData;
    const Hello hello = {kind, static_cast<uint32_t>(random_() % 4), RandomNonce()};
    switch (random_() % 5) {
      case 0:
        return "";
      case 1:
        return std::string(random_() % 300, static_cast<char>(random_()));
      case 2:
        return hello.Encode(key, RandomNonce());
      // What was overheard when a rank introduced itself, to a listener's other nonce.
      case 3:
        return hello.Encode(true_key, RandomNonce());
      default:
        return hello.Encode(true_key, RandomNonce()).substr(0, random_() % Hello::kBytes);
    }
  }

  const LaunchedRank world_;
  std::mt19937 random_;
  std::deque<Socket> held_;
};

LaunchedRank SecretWorld() {
  LaunchedRank launched = Launched(4, 60);
  launched.secret = "a secret";
  return launched;
}

absl::Status GatherSome(ProcessWorld& world) {
  for (int i = 0; i < 20; ++i) DT_RETURN_IF_ERROR(Gather(world, {0, 1, 2, 3}, 5000));
  return absl::OkStatus();
}

// Ranks come when strangers have called so and so often: rank 0 first, which opens the port.
TEST(Strangers, WhileTheWorldForms) {
  const LaunchedRank launched = SecretWorld();
  std::atomic<int> calls = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> strangers;
  for (const unsigned seed : {1, 2}) {
    strangers.emplace_back([&, seed] {
      Stranger stranger(launched, seed);
      while (!over) {
        for (const int port : OpenPorts()) calls += stranger.Call(port) ? 1 : 0;
      }
    });
  }
  std::vector<absl::Status> results(4);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      while (calls < kCalls * rank / 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      results[rank] = RunProcess(As(launched, rank), GatherSome);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  over = true;
  for (std::thread& stranger : strangers) stranger.join();
  EXPECT_THAT(results, Each(IsOk()));
  EXPECT_GE(calls, kCalls);
}

TEST(Strangers, AWorldThatRunsListensNowhere) {
  const LaunchedRank launched = SecretWorld();
  std::mutex mutex;
  std::vector<int> ports;
  std::atomic<bool> over = false;
  std::thread watcher([&] {
    while (!over) {
      const std::lock_guard lock(mutex);
      for (const int port : OpenPorts()) ports.push_back(port);
    }
  });
  const auto results = RunProcesses(launched, [&](ProcessWorld& world) {
    DT_RETURN_IF_ERROR(world.communicator().Barrier("all are there"));
    if (world.rank() == 0) {
      over = true;
      EXPECT_THAT(OpenPorts(), IsEmpty());
      const std::lock_guard lock(mutex);
      ports.push_back(launched.address.port);
      Stranger stranger(launched, 3);
      for (int call = 0; call < kCalls; ++call) {
        if (!stranger.Call(ports[static_cast<size_t>(call) % ports.size()])) continue;
        EXPECT_THAT(OpenPorts(), IsEmpty()) << "only another program's may be what was ours";
      }
    }
    return GatherSome(world);
  });
  watcher.join();
  EXPECT_THAT(results, Each(IsOk()));
}

}  // namespace
}  // namespace dtensor
