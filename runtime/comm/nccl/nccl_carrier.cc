#include "dtensor/runtime/comm/nccl/nccl_carrier.h"

// It has never run on several GPUs; docs/status.md lists what has.

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/nccl/carry_schedule.h"
#include "dtensor/runtime/comm/nccl/native_launch.h"
#include "dtensor/runtime/comm/nccl/nccl_group.h"
#include "dtensor/runtime/comm/nccl/nccl_watch.h"
#include "dtensor/runtime/comm/nccl/round_launch.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kStagingBytes = int64_t{64} << 20;
constexpr double kEnds = 10;  // seconds, for communicators to end

int64_t RoundBytes(int size, int64_t wanted) {
  const int64_t bytes = wanted > 0 ? wanted : std::max<int64_t>(kStagingBytes / size, 64 << 10);
  return std::max<int64_t>(bytes, 8 * size);  // an element of the widest type from each rank
}

// Ends a wait for NCCL after that long, without time in which this process was stopped.
class NcclPatience {
 public:
  NcclPatience(const WorldState& world, double seconds, const char* doing)
      : world_(world), seconds_(seconds), doing_(doing) {}
  absl::Status operator()() {
    constexpr std::chrono::duration<double> kLongest(0.1);  // between two checks
    DT_RETURN_IF_ERROR(world_.failure());
    const Clock::time_point now = Clock::now();
    waited_ += std::min<std::chrono::duration<double>>(now - looked_, kLongest).count();
    looked_ = now;
    if (waited_ < seconds_) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "NCCL is not done with ", doing_,
        " a communicator whose ranks are all there; NCCL_DEBUG=INFO makes it say why"));
  }

 private:
  const WorldState& world_;
  const double seconds_;
  const char* const doing_;
  double waited_ = 0;
  Clock::time_point looked_ = Clock::now();
};

class NcclCarrier final : public ExchangeCarrier {
 public:
  NcclCarrier(int rank, int size, Device& device, WorldState& world, const NcclOptions& options)
      : rank_(rank),
        size_(size),
        device_(device),
        world_(world),
        round_bytes_(RoundBytes(size, options.round_bytes)),
        schedules_(rank, round_bytes_) {}

  absl::Status Start(const NcclOptions& options) {
    DT_ASSIGN_OR_RETURN(stream_, MakeUrgentStream(device_.ordinal()));
    DT_ASSIGN_OR_RETURN(queue_, MakeCudaDevice(device_.ordinal(), stream_));
    queue_->set_failure_handler([this](const absl::Status& failure) { device_.Fail(failure); });
    DT_RETURN_IF_ERROR(NoThrow([&] {
      watch_ = std::make_unique<NcclWatch>(rank_, device_, *queue_, world_);
      return absl::OkStatus();
    }));
    for (Device* const device : {&device_, queue_.get()}) {
      SetCudaWaitLimit(*device, [gave_up = watch_->gave_up()] { return gave_up->load(); });
    }
    if (options.comm == nullptr) return absl::OkStatus();
    std::vector<int> everyone(size_);
    std::iota(everyone.begin(), everyone.end(), 0);
    DT_ASSIGN_OR_RETURN(
        groups_[everyone],
        NcclGroup::Adopt(options.comm, size_, rank_, device_.ordinal(),
                         Until(world_.timeout_seconds(), "making"), options.comm_is_gone));
    watch_->Add(*groups_[everyone]);
    return absl::OkStatus();
  }

  ~NcclCarrier() override {
    if (watch_ != nullptr) End();
    queue_.reset();
    const bool is_stuck = watch_ != nullptr && watch_->gave_up()->load();
    if (stream_ != nullptr && !is_stuck) DestroyStream(stream_);
  }

  // In each round, one message to each rank contains everything that the rank receives in it, and
  // begins at a multiple of 16.
  int64_t staging_bytes() const override { return size_ * (round_bytes_ + 32); }

  absl::StatusOr<std::string> WordFor(absl::Span<const int> group) override {
    const std::vector<int> ranks(group.begin(), group.end());
    if (ranks[0] != rank_ || groups_.contains(ranks)) return std::string();
    DT_ASSIGN_OR_RETURN(new_id_, NewNcclId());
    return new_id_;
  }

  absl::StatusOr<Carried> Carry(const Agreed& exchange) override {
    DT_RETURN_IF_ERROR(device_.failure());
    DT_ASSIGN_OR_RETURN(NcclGroup* const group, GroupOf(exchange));
    DT_RETURN_IF_ERROR(queue_->Wait(exchange.begun));
    watch_->Begin(absl::StrCat("op \"", exchange.collective.op, "\" of ranks [",
                               absl::StrJoin(exchange.collective.group, ", "), "]"),
                  queue_->Record());
    Carried carried;
    const absl::Status launched = Launch(exchange, *group, carried);
    if (!launched.ok()) watch_->Abort();  // no part of it may begin later
    const DeviceEvent done = queue_->Record();
    watch_->Launched(done);
    const absl::Status behind = device_.Wait(done);
    DT_RETURN_IF_ERROR(launched);
    DT_RETURN_IF_ERROR(behind);
    return carried;
  }

  void End() override {
    queue_->Synchronize().IgnoreError();  // while the watch still notices peers that die
    watch_->Stop();
    for (auto& [ranks, group] : groups_) group->End(Until(kEnds, "ending")).IgnoreError();
  }

 private:
  // For a wait that begins now.
  NcclStop Until(double seconds, const char* doing) const {
    return NcclPatience(world_, seconds, doing);
  }

  absl::StatusOr<NcclGroup*> GroupOf(const Agreed& exchange) {
    const absl::Span<const int> group = exchange.collective.group;
    const std::vector<int> ranks(group.begin(), group.end());
    if (const auto known = groups_.find(ranks); known != groups_.end()) return known->second.get();
    const std::string id = ranks[0] == rank_ ? new_id_ : exchange.words.at(ranks[0]);
    const auto me = static_cast<int>(absl::c_find(ranks, rank_) - ranks.begin());
    DT_RETURN_IF_ERROR(BeginCudaLaunch(*queue_).status());
    DT_ASSIGN_OR_RETURN(std::unique_ptr<NcclGroup> made,
                        NcclGroup::Connect(id, static_cast<int>(ranks.size()), me,
                                           Until(world_.timeout_seconds(), "connecting")));
    watch_->Add(*made);
    return (groups_[ranks] = std::move(made)).get();
  }

  absl::Status Launch(const Agreed& exchange, NcclGroup& group, Carried& carried) {
    std::vector<int64_t> sizes;
    for (const ExchangePart& part : exchange.parts) sizes.push_back(SizeOf(SentType(part)));
    const CarrySchedule& schedule = schedules_.Of(exchange.collective, sizes);
    DT_RETURN_IF_ERROR(MoveOwn(exchange, schedule));
    const CarriedCall call = {rank_,
                              exchange.collective.group,
                              exchange.parts,
                              *queue_,
                              stream_,
                              group,
                              Until(world_.timeout_seconds(), "launching on"),
                              staging_bytes()};
    DT_RETURN_IF_ERROR(LaunchNative(call, schedule.collectives, carried.bytes));
    for (const CarriedRound& round : schedule.rounds) {
      DT_RETURN_IF_ERROR(LaunchRound(call, round, carried.bytes));
    }
    carried.messages = schedule.messages;
    return absl::OkStatus();
  }

  absl::Status MoveOwn(const Agreed& exchange, const CarrySchedule& schedule) {
    std::vector<kernels::BoxMove> moves;
    for (const auto& [number, box] : schedule.own) {
      const ExchangePart& part = exchange.parts[number];
      const std::vector<const Tensor*> sources(box.peers.size(), &part.src);
      moves.emplace_back(box, part.dst, sources, part.op, part.scale);
    }
    return kernels::MoveBoxes(*queue_, "Exchange", moves);
  }

  const int rank_, size_;
  Device& device_;
  WorldState& world_;
  const int64_t round_bytes_;
  CarrySchedules schedules_;
  CUstream_st* stream_ = nullptr;
  std::unique_ptr<Device> queue_;  // the stream, and staging
  std::map<std::vector<int>, std::unique_ptr<NcclGroup>> groups_;
  std::string new_id_;  // for the group that is about to be made
  std::unique_ptr<NcclWatch> watch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExchangeCarrier>> MakeNcclCarrier(int rank, int size, Device& device,
                                                                 WorldState& world,
                                                                 const NcclOptions& options) {
  DT_RETURN_IF_ERROR(CheckNcclEnvironment());
  auto carrier = std::make_unique<NcclCarrier>(rank, size, device, world, options);
  DT_RETURN_IF_ERROR(carrier->Start(options));
  return carrier;
}

}  // namespace dtensor
