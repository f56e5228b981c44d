// Exchanges of several groups that are on their way at once, begun and finished in orders that
// differ from rank to rank: as a pipeline's stages do, or a host program. Whatever ranks that read
// each other's memory could end is ended by ranks that send messages.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/messages/message_communicator.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Each member but some receives `elements` from another.
struct Transfer {
  int from, to;
  int64_t elements;
};

class TransferBoxes final : public ExchangeBoxes {
 public:
  explicit TransferBoxes(std::vector<Transfer> transfers) : transfers_(std::move(transfers)) {}
  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    std::vector<ReceiveBox> boxes;
    for (const Transfer& transfer : transfers_) {
      if (transfer.to != rank) continue;
      boxes.push_back({.peers = {transfer.from}, .dims = {{.length = transfer.elements}}});
    }
    return boxes;
  }
  uint64_t digest() const override {
    uint64_t digest = transfers_.size();
    for (const Transfer& transfer : transfers_) {
      digest = (digest * 8 + transfer.from) * 8 + transfer.to;
      digest = digest * 4096 + transfer.elements;
    }
    return digest;
  }
  const std::vector<Transfer>& transfers() const { return transfers_; }

 private:
  std::vector<Transfer> transfers_;
};

struct PlannedExchange {
  std::vector<int> group;
  TransferBoxes boxes;
};

// Of one rank: begins an exchange, or finishes it, after it has computed for a while, perhaps.
struct Step {
  size_t exchange;
  bool is_finish;
  int compute_ms = 0;
};

struct Program {
  std::vector<PlannedExchange> exchanges;
  std::vector<std::vector<Step>> steps;  // [rank]

  std::string ToString() const {
    std::string text;
    for (size_t rank = 0; rank < steps.size(); ++rank) {
      absl::StrAppend(&text, "rank ", rank, ":");
      for (const Step& step : steps[rank]) {
        if (step.compute_ms > 0) absl::StrAppend(&text, " compute ", step.compute_ms, " ms,");
        absl::StrAppend(&text, step.is_finish ? " finish " : " begin ", step.exchange);
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }
};

// Whether ranks that read each other's memory come to the end: an exchange is finished when all
// have begun it, and those who read from here have come to finish it.
bool CanEnd(const Program& program) {
  const size_t ranks = program.steps.size();
  std::vector<size_t> at(ranks, 0);
  const auto position = [&](int rank, const Step& step) {
    const auto& steps = program.steps[rank];
    return absl::c_find_if(steps,
                           [&](const Step& other) {
                             return other.exchange == step.exchange &&
                                    other.is_finish == step.is_finish;
                           }) -
           steps.begin();
  };
  const auto may_pass = [&](int rank, const Step& step) {
    if (!step.is_finish) return true;
    const PlannedExchange& exchange = program.exchanges[step.exchange];
    const bool all_begun = absl::c_all_of(exchange.group, [&](int member) {
      return position(member, {step.exchange, false}) < static_cast<int64_t>(at[member]);
    });
    return all_begun && absl::c_all_of(exchange.boxes.transfers(), [&](const Transfer& transfer) {
             return transfer.from != rank ||
                    position(transfer.to, step) <= static_cast<int64_t>(at[transfer.to]);
           });
  };
  bool any = true;
  while (any) {
    any = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      while (at[rank] < program.steps[rank].size() &&
             may_pass(static_cast<int>(rank), program.steps[rank][at[rank]])) {
        ++at[rank];
        any = true;
      }
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (at[rank] < program.steps[rank].size()) return false;
  }
  return true;
}

// In words, right behind the call, or when asked for.
constexpr MessageOptions kThreeWays = {.piece_bytes = 1024, .note_bytes = 64, .eager_bytes = 1024};
constexpr int64_t kElements[] = {2, 100, 3000, 3000};  // of 8 bytes

class RandomPrograms {
 public:
  explicit RandomPrograms(uint64_t seed) : random_(seed) {}

  Program Next() {
    while (true) {
      Program program = Make();
      if (CanEnd(program)) return program;
    }
  }

 private:
  int Below(int end) { return static_cast<int>(random_() % end); }

  Program Make() {
    const int ranks = 3 + Below(3);
    Program program = {.exchanges = {}, .steps = std::vector<std::vector<Step>>(ranks)};
    const int exchanges = 3 + Below(6);
    for (int i = 0; i < exchanges; ++i) AddExchange(ranks, program);
    for (std::vector<Step>& steps : program.steps) Disturb(steps);
    return program;
  }

  // Of a group that no other has, so that none waits for another to be finished.
  void AddExchange(int ranks, Program& program) {
    std::vector<int> group;
    while (group.size() < 2) {
      group.clear();
      for (int rank = 0; rank < ranks; ++rank) {
        if (Below(2) == 0) group.push_back(rank);
      }
    }
    if (absl::c_any_of(program.exchanges, [&](const auto& e) { return e.group == group; })) return;
    std::vector<Transfer> transfers;
    for (const int to : group) {
      const int from = group[Below(static_cast<int>(group.size()))];
      if (from != to) transfers.push_back({from, to, kElements[Below(4)]});
    }
    const size_t number = program.exchanges.size();
    for (const int rank : group) {
      program.steps[rank].push_back({number, false, std::max(0, Below(6) - 3)});
      program.steps[rank].push_back({number, true, std::max(0, Below(6) - 3)});
    }
    program.exchanges.push_back({std::move(group), TransferBoxes(std::move(transfers))});
  }

  // Neighbours change places, but for an exchange's begin and its finish.
  void Disturb(std::vector<Step>& steps) {
    if (steps.size() < 2) return;
    const int times = Below(3 * static_cast<int>(steps.size()) + 1);
    for (int i = 0; i < times; ++i) {
      const size_t at = Below(static_cast<int>(steps.size()) - 1);
      if (steps[at].exchange != steps[at + 1].exchange) std::swap(steps[at], steps[at + 1]);
    }
  }

  std::mt19937_64 random_;
};

// What a rank has of an exchange that is on its way.
struct Running {
  Tensor source, result;
  std::vector<ReceiveBox> receives;
  std::vector<ExchangePart> parts;
  Collective collective;
};

absl::Status Begin(const PlannedExchange& planned, Communicator& communicator, Device& device,
                   Running& running) {
  const int rank = communicator.rank();
  int64_t most = 1;
  for (const Transfer& transfer : planned.boxes.transfers()) {
    most = std::max(most, transfer.elements);
  }
  DT_ASSIGN_OR_RETURN(running.source, Tensor::Empty(device, DType::kF64, {most}));
  DT_ASSIGN_OR_RETURN(running.result, Tensor::Empty(device, DType::kF64, {most}));
  std::fill_n(running.source.data<double>(), most, rank + 1);
  std::fill_n(running.result.data<double>(), most, 0);
  running.receives = planned.boxes.Receives(0, rank);
  running.parts.push_back({running.source, running.result, running.receives});
  running.collective = {.axes = "t",
                        .op = "Test",
                        .group = planned.group,
                        .digest = planned.boxes.digest(),
                        .boxes = &planned.boxes};
  return communicator.Begin(running.collective, running.parts);
}

absl::Status Finish(Communicator& communicator, Running& running) {
  DT_RETURN_IF_ERROR(communicator.Finish(running.collective));
  for (const ReceiveBox& box : running.receives) {
    for (int64_t i = 0; i < box.elements(); ++i) {
      if (running.result.data<double>()[i] == box.peers[0] + 1) continue;
      return absl::InternalError(absl::StrCat("element ", i, " is another"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunOverSockets(const Program& program) {
  const int ranks = static_cast<int>(program.steps.size());
  SocketRanks sockets(ranks);
  return RunLocalRanks(ranks, [&](Communicator& threads, Device& device) -> absl::Status {
    SocketRank rank = sockets.Make(threads, device, kThreeWays);
    std::vector<Running> running(program.exchanges.size());
    for (const Step& step : program.steps[threads.rank()]) {
      if (step.compute_ms > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(step.compute_ms));
        static_cast<MessageCommunicator&>(rank.communicator()).Progress();
      }
      Running& exchange = running[step.exchange];
      DT_RETURN_IF_ERROR(step.is_finish ? Finish(rank.communicator(), exchange)
                                        : Begin(program.exchanges[step.exchange],
                                                rank.communicator(), device, exchange));
    }
    return absl::OkStatus();
  });
}

// What is little goes at once, so a rank that only sends can drop the exchange and call nothing any
// more; what is asked for moves only while it calls. On threads nobody needs the sender.
TEST(OverlappingExchanges, SaysWhetherPeersNeedTheSender) {
  for (const bool over_sockets : {true, false}) {
    for (const int64_t elements : {2, 3000}) {  // doubles
      std::promise<void> received;
      SocketRanks sockets(2);
      DT_EXPECT_OK(RunLocalRanks(2, [&](Communicator& threads, Device& device) -> absl::Status {
        SocketRank rank = sockets.Make(threads, device);
        Communicator& communicator = over_sockets ? rank.communicator() : threads;
        const PlannedExchange planned = {{0, 1}, TransferBoxes({{0, 1, elements}})};
        const auto running = std::make_shared<Running>();
        DT_RETURN_IF_ERROR(Begin(planned, communicator, device, *running));
        if (threads.rank() == 1) {
          DT_RETURN_IF_ERROR(Finish(communicator, *running));
          received.set_value();
          return absl::OkStatus();
        }
        const Delivery delivery = communicator.delivery(running->collective);
        const bool is_asked_for = over_sockets && elements > 2;
        EXPECT_EQ(delivery, is_asked_for ? Delivery::kInLaterCalls : Delivery::kDone);
        EXPECT_EQ(communicator.traffic().size(), 1);  // is counted when it begins
        if (is_asked_for) return Finish(communicator, *running);
        communicator.Drop(running->collective, running);
        EXPECT_EQ(received.get_future().wait_for(std::chrono::seconds(30)),
                  std::future_status::ready);
        DT_RETURN_IF_ERROR(communicator.FinishDropped());
        EXPECT_EQ(communicator.traffic().begin()->second.calls, 1);
        return absl::OkStatus();
      }));
    }
  }
}

// Rank 1's data for rank 0, which has asked for them, lie before what it has to hear from rank 1
// before rank 2 takes part.
TEST(OverlappingExchanges, WhatWasAskedForIsInNobodysWay) {
  const Program program = {
      .exchanges = {{{0, 1, 2}, TransferBoxes({{1, 0, 3000}})},
                    {{0, 1}, TransferBoxes({{0, 1, 3000}})},
                    {{1, 2}, TransferBoxes({{1, 2, 2}})}},
      .steps = {{{1, false}, {0, false}, {0, true}, {1, true}},
                {{1, false}, {0, false}, {1, true, 20}, {2, false}, {2, true}, {0, true}},
                {{2, false}, {2, true}, {0, false}, {0, true}}}};
  ASSERT_TRUE(CanEnd(program));
  for (int i = 0; i < 5; ++i) DT_ASSERT_OK(RunOverSockets(program));
}

TEST(OverlappingExchanges, ThatCanEndDo) {
  RandomPrograms programs(TestSeed());
  for (int i = 0; i < 300; ++i) {
    const Program program = programs.Next();
    DT_ASSERT_OK(RunOverSockets(program)) << "program " << i << "\n" << program.ToString();
  }
}

}  // namespace
}  // namespace dtensor
