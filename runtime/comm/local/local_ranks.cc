#include "dtensor/runtime/comm/local/local_ranks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "dtensor/runtime/comm/local/local_communicator.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/cpu/resource_pages.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"

namespace dtensor {
namespace {

constexpr int kMaxRanks = 1 << 20;

absl::Status CheckOptions(int n, const RunOptions& options) {
  if (n < 1 || n > kMaxRanks) {
    return InvalidArgument({"ranks as threads: there must be 1 to ", absl::StrCat(kMaxRanks),
                            " ranks, not ", absl::StrCat(n)});
  }
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument({"ranks as threads: timeout_seconds must be above 0, not ",
                            absl::StrCat(options.timeout_seconds), "; infinity waits for ever"});
  }
  if (options.max_delay_us < 0) {
    return InvalidArgument({"ranks as threads: max_delay_us must be 0 or more, not ",
                            absl::StrCat(options.max_delay_us)});
  }
  if (options.device == Device::Kind::kMeta) {
    return InvalidArgument(
        {"ranks as threads need the cpu, the deferred or the cuda device, not meta; "
         "RunSimulatedRank has that"});
  }
  if (!options.gpus.empty() && options.device != Device::Kind::kCuda) {
    return InvalidArgument(
        {"ranks as threads: RunOptions::gpus is for the cuda device; leave it "
         "empty on ",
         ToString(options.device)});
  }
  if (options.cuda_device && options.device != Device::Kind::kCuda) {
    return InvalidArgument(
        {"ranks as threads: RunOptions::cuda_device is for the cuda device; leave it null on ",
         ToString(options.device)});
  }
  if (options.memory != nullptr && options.device != Device::Kind::kCpu) {
    return InvalidArgument(
        {"ranks as threads: RunOptions::memory is for the cpu device; leave it null on ",
         ToString(options.device)});
  }
  if (options.executor && options.pin_threads) {
    return InvalidArgument(
        {"ranks as threads: the threads of RunOptions::executor are the program's to pin; leave "
         "pin_threads off"});
  }
  return absl::OkStatus();
}

// Errors: kResourceExhausted, naming the first rank for which the system has no thread or memory;
// make's.
absl::Status ForEachRank(int n, const std::function<absl::Status(int)>& make) {
  for (int rank = 0; rank < n; ++rank) {
    try {
      DT_RETURN_IF_ERROR(make(rank));
    } catch (const std::exception& exception) {
      return absl::ResourceExhaustedError(
          absl::StrCat("ranks as threads: the system has no thread or memory for rank ", rank,
                       " of ", n, " (", exception.what(),
                       "); run fewer, or raise the limits of the process (ulimit -u, ulimit -v)"));
    }
  }
  return absl::OkStatus();
}

// The GPUs for n ranks, in turn, after each was enabled to read the others' memory. A GPU of no
// rank is left alone: it may belong to another process, or reach none of the others.
absl::StatusOr<std::vector<int>> GpusOfRanks(std::vector<int> gpus, int n) {
  if (gpus.empty()) {
    DT_ASSIGN_OR_RETURN(const int count, CountGpus());
    gpus.resize(count);
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  if (static_cast<int>(gpus.size()) > n) gpus.resize(n);
  DT_RETURN_IF_ERROR(AllowPeerReads(gpus));
  return gpus;
}

// Whether a text begins with "rank N: ".
bool NamesRank(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "rank ")) return false;
  const size_t digits = text.find_first_not_of("0123456789");
  return digits != 0 && absl::StartsWith(text.substr(std::min(digits, text.size())), ": ");
}

absl::Status OfRank(int rank, const absl::Status& status) {
  if (NamesRank(status.message())) return status;
  return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
}

// Watches the ranks while they run, and calls RunOptions::report.
class Watch {
 public:
  Watch(World& world, const RunOptions& options) : world_(world), options_(options) {}

  void UntilAllLeft() {
    constexpr auto kNever = Clock::duration(std::chrono::hours(24 * 365));
    auto deadline = Clock::now() + kNever;
    bool counting = false, warned = false;
    while (true) {
      const uint64_t seen = world_.alarm();
      const bool news = TellFailure();
      if (world_.all_left()) return;
      if (news || (!counting && !Trouble().ok())) {
        counting = true;
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(world_.timeout());
      }
      if (counting && !warned && Clock::now() >= deadline) {
        warned = true;
        Tell(StillWaits());
      }
      world_.AwaitAlarm(seen, warned ? Clock::now() + kNever : deadline);
    }
  }

  // Whether it failed since the last call.
  bool TellFailure() {
    if (told_ || !world_.failed()) return false;
    told_ = true;
    Tell(world_.failure());
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  absl::Status Trouble() const {
    return world_.failed() ? world_.failure() : world_.returned_error();
  }
  absl::Status StillWaits() const {
    const std::vector<int> running = world_.running();
    return absl::DeadlineExceededError(absl::StrCat(
        running.size() == 1 ? "rank " : "ranks ", absl::StrJoin(running, ", "),
        running.size() == 1 ? " has" : " have", " not returned ", world_.timeout().count(),
        " s after this, and the run waits for that: ", Trouble().message()));
  }
  void Tell(const absl::Status& trouble) const {
    if (!options_.report) return;
    NoThrow([&] {
      options_.report(trouble);
      return absl::OkStatus();
    }).IgnoreError();
  }

  World& world_;
  const RunOptions& options_;
  bool told_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalRanks>> LocalRanks::Create(int n, const RunOptions& options) {
  DT_RETURN_IF_ERROR(CheckOptions(n, options));
  std::unique_ptr<LocalRanks> ranks;
  DT_RETURN_IF_ERROR(NoThrow([&] {
    ranks.reset(new LocalRanks(n, options));
    return absl::OkStatus();
  }));
  if (options.device == Device::Kind::kCuda) {
    DT_ASSIGN_OR_RETURN(ranks->gpus_, GpusOfRanks(options.gpus, n));
  }
  DT_RETURN_IF_ERROR(ForEachRank(n, [&](int rank) { return ranks->MakeDevice(rank); }));
  if (options.pin_threads) {
    DT_ASSIGN_OR_RETURN(ranks->cores_, CoreClaim::Make(n));
  }
  return ranks;
}

LocalRanks::LocalRanks(int n, const RunOptions& options)
    : options_(options), parts_(std::make_unique<WorldParts>()), taken_(n), results_(n) {
  parts_->world = std::make_unique<World>(n, options.timeout_seconds);
  parts_->communicators.resize(n);
}

absl::StatusOr<std::unique_ptr<Device>> LocalRanks::NewDevice(int rank) const {
  switch (options_.device) {
    case Device::Kind::kCuda:
      return MakeRankDevice(options_.cuda_device, rank, gpus_[rank % gpus_.size()]);
    case Device::Kind::kDeferred:
      return MakeDeferredDevice(
          {.seed = options_.seed + rank, .max_delay_us = options_.max_delay_us});
    default:
      if (options_.memory == nullptr) return MakeCpuDevice();
      return MakeCpuDevice(std::make_shared<ResourcePages>(options_.memory));
  }
}

absl::Status LocalRanks::MakeDevice(int rank) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, NewDevice(rank));
  device->set_failure_handler([&world = *parts_->world, rank](const absl::Status& status) {
    world.Fail(rank, status).IgnoreError();
  });
  parts_->devices.push_back(std::move(device));
  return absl::OkStatus();
}

LocalRanks::~LocalRanks() {
  DT_REQUIRE(!runs(), "LocalRanks: they go while Run is on its way; let it return first");
  threads_.Stop();
  // Before any device goes: a queue may still read the memory of another.
  for (const auto& device : parts_->devices) device->Synchronize().IgnoreError();
  for (const auto& communicator : parts_->communicators) {
    if (communicator != nullptr) communicator->End();
  }
  LetGo(std::move(parts_));
}

bool LocalRanks::runs() const {
  std::lock_guard lock(mutex_);
  return runs_;
}

Communicator& LocalRanks::CommunicatorOf(int rank) {
  std::unique_ptr<LocalCommunicator>& communicator = parts_->communicators[rank];
  if (communicator == nullptr) {
    communicator = std::make_unique<LocalCommunicator>(*parts_->world, rank, device(rank),
                                                       options_.seed, options_.max_delay_us);
  }
  return *communicator;
}

// --- On threads of its own.

absl::Status LocalRanks::Run(const RankFunction& fn) {
  DT_RETURN_IF_ERROR(BeginRun(fn));
  const absl::Status status = NoThrow([&]() -> absl::Status {
    if (options_.executor) return RunOnLentThreads(fn);
    if (threads_.size() == 0) DT_RETURN_IF_ERROR(StartThreads());
    return RunOnThreads(fn, [this](auto run) { threads_.Start(run); });
  });
  std::lock_guard lock(mutex_);
  runs_ = false;
  return status;
}

absl::Status LocalRanks::BeginRun(const RankFunction& fn) {
  if (!fn) return InvalidArgument({"ranks as threads: the function that they run is null"});
  std::lock_guard lock(mutex_);
  if (runs_) {
    return absl::FailedPreconditionError(
        "LocalWorld::Run: another run of this world is on its way; one comes after the other");
  }
  for (size_t rank = 0; rank < taken_.size(); ++rank) {
    if (!taken_[rank]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("LocalWorld::Run: rank ", rank,
                     " was taken by a thread of the caller's; a "
                     "world runs functions on its own threads or has its ranks taken"));
  }
  DT_RETURN_IF_ERROR(failure());
  has_threads_ = runs_ = true;
  return absl::OkStatus();
}

absl::Status LocalRanks::StartThreads() {
  const absl::Status status = ForEachRank(size(), [&](int rank) {
    threads_.Add([this, rank] {
      if (cores_.size() > 0) cores_.PinThisThread(rank);
    });
    return absl::OkStatus();
  });
  if (!status.ok()) threads_.Stop();
  return status;
}

absl::Status LocalRanks::RunOnLentThreads(const RankFunction& fn) {
  const auto timeout =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(parts_->world->timeout());
  DT_ASSIGN_OR_RETURN(LentThreads threads, LentThreads::Borrow(size(), options_.executor, timeout));
  return RunOnThreads(fn, [&threads](auto run) { threads.Start(run); });
}

absl::Status LocalRanks::RunOnThreads(
    const RankFunction& fn, absl::FunctionRef<void(const std::function<void(int)>&)> start) {
  parts_->world->Return();
  Watch watch(*parts_->world, options_);
  start([this, &fn](int rank) { RunRank(fn, rank); });
  watch.UntilAllLeft();
  // What fails in a queue now fails the world as well.
  for (const auto& device : parts_->devices) device->Synchronize().IgnoreError();
  watch.TellFailure();
  return Result();
}

void LocalRanks::RunRank(const RankFunction& fn, int rank) {
  results_[rank] = NoThrow([&] {
    Communicator& communicator = CommunicatorOf(rank);
    DT_RETURN_IF_ERROR(fn(communicator, device(rank)));
    return communicator.FinishDropped();
  });
  parts_->world->Leave(rank, results_[rank]);
}

absl::Status LocalRanks::Result() {
  if (!failure().ok()) return failure();
  const auto failed = [](const absl::Status& status) { return !status.ok(); };
  const auto first = std::find_if(results_.begin(), results_.end(), failed);
  if (first == results_.end()) return absl::OkStatus();
  const int rank = static_cast<int>(first - results_.begin());
  if (!std::all_of(results_.begin(), results_.end(), failed)) {
    return parts_->world->Fail(rank, *first);
  }
  return OfRank(rank, *first);
}

// --- On threads of the caller's.

absl::StatusOr<Communicator*> LocalRanks::Take(int rank) {
  if (rank < 0 || rank >= size()) {
    return InvalidArgument(
        {"LocalWorld::Take: there is no rank ", absl::StrCat(rank), " of ", absl::StrCat(size())});
  }
  if (options_.pin_threads) {
    return InvalidArgument(
        {"LocalWorld::Take, or SingleRank: pin_threads is for the threads of Run; those of the "
         "caller are the caller's to pin"});
  }
  if (options_.executor) {
    return InvalidArgument(
        {"LocalWorld::Take, or SingleRank: RunOptions::executor brings the threads of Run; a rank "
         "that is taken runs on the caller's"});
  }
  std::lock_guard lock(mutex_);
  if (has_threads_) {
    return absl::FailedPreconditionError(
        "LocalWorld::Take: the ranks of this world are threads of its own, since Run; make another "
        "world for threads of the caller's");
  }
  if (taken_[rank]) {
    return absl::FailedPreconditionError(
        absl::StrCat("LocalWorld::Take: rank ", rank, " of ", size(),
                     " was taken before; a rank is taken once, and its Context kept"));
  }
  DT_RETURN_IF_ERROR(failure());
  Communicator& communicator = CommunicatorOf(rank);
  taken_[rank] = true;
  return &communicator;
}

absl::Status LocalRanks::Leave(int rank, absl::Status status) {
  if (status.ok()) status = CommunicatorOf(rank).FinishDropped();
  parts_->world->Leave(rank, status);
  device(rank).Synchronize().IgnoreError();
  if (!failure().ok()) return failure();
  return status.ok() ? status : OfRank(rank, status);
}

}  // namespace dtensor
