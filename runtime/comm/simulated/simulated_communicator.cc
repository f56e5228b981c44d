#include "dtensor/runtime/comm/simulated/simulated_communicator.h"

#include <cstdint>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// One rank of a world on paper: refuses what LocalCommunicator refuses, and counts the rest.
class SimulatedCommunicator final : public Communicator {
 public:
  SimulatedCommunicator(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status Begin(const Collective& collective, absl::Span<const ExchangePart> parts) override {
    DT_RETURN_IF_ERROR(failure_);
    DT_RETURN_IF_ERROR(CheckExchange(collective, parts, rank_, size_, /*device=*/nullptr));
    CountBoxes(collective, parts);
    return absl::OkStatus();
  }

  absl::Status Finish(const Collective&) override { return failure_; }
  void Drop(const Collective&, std::shared_ptr<const void>) override {}
  absl::Status FinishDropped() override { return failure_; }

  absl::Status Barrier(absl::string_view) override { return failure_; }

  absl::Status Fail(const absl::Status& reason) override {
    DT_REQUIRE(!reason.ok(), "Communicator::Fail: the reason must be an error");
    if (failure_.ok()) {
      failure_ = absl::Status(reason.code(), absl::StrCat("rank ", rank_, ": ", reason.message()));
    }
    return failure_;
  }
  absl::Status failure() const override { return failure_; }

 private:
  // What a transport would carry.
  void CountBoxes(const Collective& collective, absl::Span<const ExchangePart> parts) {
    int64_t messages = 0, bytes = 0;
    for (const ExchangePart& part : parts) {
      const int64_t size = SizeOf((part.src.defined() ? part.src : part.dst).dtype());
      for (const ReceiveBox& box : part.receives) {
        const int64_t others = box.peers.size() - absl::c_count(box.peers, rank_);
        if (box.elements() == 0) continue;
        messages += others;
        bytes += others * box.elements() * size;
      }
    }
    Count(collective, messages, bytes);
  }

  const int rank_, size_;
  absl::Status failure_;
};

}  // namespace

std::unique_ptr<Communicator> MakeSimulatedCommunicator(int rank, int size) {
  DT_REQUIRE(0 <= rank && rank < size,
             "MakeSimulatedCommunicator: the rank must be one of the world's");
  return std::make_unique<SimulatedCommunicator>(rank, size);
}

}  // namespace dtensor
