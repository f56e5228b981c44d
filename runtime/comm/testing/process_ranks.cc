#include "dtensor/runtime/comm/testing/process_ranks.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/socket_pair.h"

namespace dtensor {
namespace {

constexpr char kPairs[] = "its pair's";

constexpr int kEveryone = -1;

// The ranks of `group`, or one of them, receive `length` elements of every one, their own too.
class GatherBoxes final : public ExchangeBoxes {
 public:
  GatherBoxes(std::vector<int> group, int64_t length, int receiver)
      : group_(std::move(group)), length_(length), receiver_(receiver) {}
  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    std::vector<ReceiveBox> boxes;
    if (receiver_ != kEveryone && receiver_ != rank) return boxes;
    for (size_t i = 0; i < group_.size(); ++i) {
      const auto begin = static_cast<int64_t>(i) * length_;
      boxes.push_back({.peers = {group_[i]}, .dims = {{.dst = begin, .length = length_}}});
    }
    return boxes;
  }
  uint64_t digest() const override {
    auto digest = static_cast<uint64_t>(length_ * 64 + receiver_);
    for (const int rank : group_) digest = digest * 64 + static_cast<uint64_t>(rank + 1);
    return digest;
  }

 private:
  const std::vector<int> group_;
  const int64_t length_;
  const int receiver_;
};

float ValueOf(int rank, int64_t i) { return static_cast<float>(rank * 1000 + i % 997); }

absl::Status GatherTo(ProcessWorld& world, const std::vector<int>& group, int64_t length,
                      int receiver, const std::function<absl::Status()>& between) {
  std::vector<float> values(length);
  for (int64_t i = 0; i < length; ++i) values[i] = ValueOf(world.rank(), i);
  DT_ASSIGN_OR_RETURN(const Tensor source, FromHost<float>(world.device(), values, {length}));
  DT_ASSIGN_OR_RETURN(
      const Tensor result,
      Tensor::Empty(world.device(), DType::kF32, {static_cast<int64_t>(group.size()) * length}));
  const GatherBoxes boxes(group, length, receiver);
  const std::vector<ReceiveBox> receives = boxes.Receives(0, world.rank());
  const ExchangePart part{source, result, receives};
  const Collective collective = {.axes = "dp", .op = "Gather", .group = group, .boxes = &boxes};
  DT_RETURN_IF_ERROR(world.communicator().Begin(collective, {&part, 1}));
  if (between) DT_RETURN_IF_ERROR(between());
  DT_RETURN_IF_ERROR(world.communicator().Finish(collective));
  DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToHost<float>(result));
  for (size_t peer = 0; peer < group.size() && !receives.empty(); ++peer) {
    for (int64_t i = 0; i < length; ++i) {
      if (got[peer * length + i] != ValueOf(group[peer], i)) {
        return absl::DataLossError(absl::StrCat("element ", i, " of rank ", group[peer]));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

LaunchedRank Launched(int size, double timeout_seconds, RankWay way) {
  LaunchedRank rank;
  rank.size = size;
  rank.address = {"127.0.0.1", FreePort()};
  rank.job = "job";
  rank.timeout_seconds = timeout_seconds;
  if (way == RankWay::kTcp) rank.transport = "tcp";
  if (way == RankWay::kPairs) rank.host = kPairs;
  if (way == RankWay::kNccl) rank.gpu = RankGpu();
  return rank;
}

LaunchedRank As(LaunchedRank launched, int rank) {
  launched.rank = launched.local_rank = rank;
  if (launched.host == kPairs) launched.host = absl::StrCat(rank / 2);
  return launched;
}

absl::Status RunProcess(const LaunchedRank& rank, const ProcessFunction& fn) {
  const auto world = ProcessWorld::Join(rank);
  return world.ok() ? (*world)->Leave(fn(**world)) : world.status();
}

std::vector<absl::Status> RunProcesses(const LaunchedRank& launched, const ProcessFunction& fn) {
  std::vector<absl::Status> results(launched.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < launched.size; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = RunProcess(As(launched, rank), fn); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::Status Gather(ProcessWorld& world, const std::vector<int>& group, int64_t length,
                    const std::function<absl::Status()>& between) {
  return GatherTo(world, group, length, kEveryone, between);
}

absl::Status Send(ProcessWorld& world, int from, int to, int64_t length,
                  const std::function<absl::Status()>& between) {
  return GatherTo(world, {std::min(from, to), std::max(from, to)}, length, to, between);
}

}  // namespace dtensor
