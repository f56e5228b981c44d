#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/comm/run_ranks.h"
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
    Count(collective, parts);
    return absl::OkStatus();
  }

  absl::Status Finish(const Collective&) override { return failure_; }

  absl::Status Barrier(absl::string_view) override { return failure_; }

  absl::Status Fail(const absl::Status& reason) override {
    DT_CHECK(!reason.ok());
    if (failure_.ok()) {
      failure_ = absl::Status(reason.code(), absl::StrCat("rank ", rank_, ": ", reason.message()));
    }
    return failure_;
  }
  absl::Status failure() const override { return failure_; }

 private:
  const int rank_, size_;
  absl::Status failure_;
};

}  // namespace

std::unique_ptr<Communicator> MakeSimulatedCommunicator(int rank, int size) {
  DT_CHECK(0 <= rank && rank < size);
  return std::make_unique<SimulatedCommunicator>(rank, size);
}

}  // namespace dtensor
