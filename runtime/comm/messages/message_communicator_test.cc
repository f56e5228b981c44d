// Exchanges over sockets whose messages do not fit into the sockets' buffers, so that one is still
// on its way when the next is packed. What plans and rings exchange: plan_executor_pairs_test.cc,
// ring_executor_test.cc.
#include "dtensor/runtime/comm/messages/message_communicator.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kRows = 2000, kColumns = 100;

// The other rank's left half of each matrix: rows with gaps.
class LeftHalves final : public ExchangeBoxes {
 public:
  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    return {{.peers = {1 - rank},
             .dims = {{.length = kRows}, {.src = 0, .dst = 0, .length = kColumns / 2}}}};
  }
  uint64_t digest() const override { return 7; }
};

double ValueOf(int rank, size_t part, int64_t i) {
  return rank + 10.0 * static_cast<double>(part) + 1e-3 * static_cast<double>(i);
}

absl::Status Nothing() { return absl::OkStatus(); }

// Of ranks 0 and 1, each of which does `between` while it is on its way.
absl::Status ExchangeHalves(size_t parts, Communicator& communicator, Device& device,
                            const std::function<absl::Status()>& between = Nothing) {
  const int rank = communicator.rank();
  const LeftHalves boxes;
  std::vector<Tensor> sources, results;
  std::vector<std::vector<ReceiveBox>> receives(parts);
  std::vector<ExchangePart> exchange;
  for (size_t part = 0; part < parts; ++part) {
    DT_ASSIGN_OR_RETURN(Tensor source, Tensor::Empty(device, DType::kF64, {kRows, kColumns}));
    DT_ASSIGN_OR_RETURN(Tensor result, Tensor::Empty(device, DType::kF64, {kRows, kColumns / 2}));
    for (int64_t i = 0; i < source.numel(); ++i) source.data<double>()[i] = ValueOf(rank, part, i);
    receives[part] = boxes.Receives(part, rank);
    sources.push_back(source);
    results.push_back(result);
  }
  for (size_t part = 0; part < parts; ++part) {
    exchange.push_back({sources[part], results[part], receives[part]});
  }
  const int group[] = {0, 1};
  const Collective collective = {
      .axes = "tp", .op = "Test", .group = group, .digest = 1, .boxes = &boxes};
  DT_RETURN_IF_ERROR(communicator.Begin(collective, exchange));
  DT_RETURN_IF_ERROR(between());
  DT_RETURN_IF_ERROR(communicator.Finish(collective));
  for (size_t part = 0; part < parts; ++part) {
    const double* const got = results[part].data<double>();
    for (int64_t i = 0; i < kRows * kColumns / 2; ++i) {
      const int64_t at = i / (kColumns / 2) * kColumns + i % (kColumns / 2);
      if (got[i] != ValueOf(1 - rank, part, at)) {
        return absl::InternalError("part " + std::to_string(part) + " differs");
      }
    }
  }
  return absl::OkStatus();
}

// 800 KB each, of which two are on their way at a time.
void ExchangeManyHalves(size_t least_row_bytes, SendsEnd sends_end = SendsEnd::kInOrder) {
  SocketRanks sockets(2);
  DT_EXPECT_OK(RunLocalRanks(2, [&](Communicator& threads, Device& device) -> absl::Status {
    SocketRank rank = sockets.Make(threads, device, MessageOptions(), least_row_bytes, sends_end);
    for (const size_t parts : {1, 2, 9}) {
      DT_RETURN_IF_ERROR(ExchangeHalves(parts, rank.communicator(), device));
    }
    return absl::OkStatus();
  }));
}
constexpr size_t kRowBytes = kColumns / 2 * sizeof(double);

TEST(MessageCommunicator, WhatIsOnItsWayIsNotPackedOver) { ExchangeManyHalves(kRowBytes + 1); }

// A transport may be done with the younger of two before the older one: 4 pieces and more for the
// peer, of which each is packed where an earlier one was.
TEST(MessageCommunicator, WhatIsOnItsWayIsNotPackedOverWhicheverIsDoneFirst) {
  ExchangeManyHalves(kRowBytes + 1, SendsEnd::kReordered);
}

// More rows than one call of the system takes.
TEST(MessageCommunicator, RowsAreSentFromWhereTheyLie) { ExchangeManyHalves(kRowBytes); }

// 800 KB, which nobody has given memory for yet, and behind them what the barrier needs.
TEST(MessageCommunicator, WhatCameUnaskedIsInNobodysWay) {
  SocketRanks sockets(3);
  DT_EXPECT_OK(RunLocalRanks(3, [&](Communicator& threads, Device& device) -> absl::Status {
    SocketRank rank = sockets.Make(threads, device, MessageOptions());
    const auto barrier = [&] { return rank.communicator().Barrier("Test"); };
    if (threads.rank() == 2) return barrier();
    return ExchangeHalves(1, rank.communicator(), device, barrier);
  }));
}

// Less than an element in a piece, and more than a note at once: what can be is done.
TEST(MessageCommunicator, SizesOutOfRange) {
  for (const MessageOptions& options :
       {MessageOptions{.piece_bytes = 1, .note_bytes = -1},
        MessageOptions{.note_bytes = int64_t{1} << 40, .eager_bytes = int64_t{1} << 40}}) {
    SocketRanks sockets(2);
    DT_EXPECT_OK(RunLocalRanks(2, [&](Communicator& threads, Device& device) -> absl::Status {
      SocketRank rank = sockets.Make(threads, device, options);
      // 2.4 MB go from one to the other: in words, or in pieces that follow.
      return ExchangeHalves(3, rank.communicator(), device);
    }));
  }
}

}  // namespace
}  // namespace dtensor
