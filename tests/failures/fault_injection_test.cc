// Faults at random places of random programs: every rank ends within a bounded time, with an error
// that names the rank at fault, and the process survives.
#include <atomic>
#include <chrono>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBound(30);  // generous: sanitizers, busy machines

enum class Fault {
  kError,      // returns one
  kException,  // throws
  kFailure,    // tells the world that it failed
  kDevice,     // launches a kernel that fails
  kAbsence,    // returns without an error
  kSilence,    // is busy until all others have ended
  kDrop,       // drops its asynchronous results, where the others keep theirs
};

// What all ranks know of one run.
struct Scenario {
  Scenario(Fault fault, Device::Kind device, uint64_t seed) : fault(fault), device(device) {
    std::mt19937_64 random(seed);
    const int meshes = static_cast<int>(random() % 4);
    mesh = *DeviceMesh::Parse(meshes == 3 ? "dp=2,tp=2" : absl::StrCat("dp=", meshes + 2, ",tp=1"));
    culprit = static_cast<int>(random() % mesh.size());
    for (int i = 0; i < 6; ++i) actions.push_back(static_cast<int>(random() % 6));
    at = static_cast<size_t>(random() % actions.size());
  }

  std::string ToString() const {
    return absl::StrCat("fault ", static_cast<int>(fault), " of rank ", culprit, " at ", at, " on ",
                        mesh.ToString(), " with ", dtensor::ToString(device));
  }

  Fault fault;
  Device::Kind device;
  DeviceMesh mesh;
  int culprit = 0;
  std::vector<int> actions;
  size_t at = 0;              // before which action the fault happens
  std::atomic<int> ended{0};  // ranks
};

// One rank's part of a scenario.
class Program {
 public:
  Program(Context& context, Scenario& scenario) : context_(context), scenario_(scenario) {}

  absl::Status Run() {
    const absl::Status status = Act();
    if (!context_.communicator().failure().ok()) ExpectAllFail();
    pending_.clear();
    ++scenario_.ended;
    return status;
  }

 private:
  absl::Status Act() {
    for (size_t i = 0; i < scenario_.actions.size(); ++i) {
      if (i == scenario_.at && context_.rank() == scenario_.culprit) {
        DT_RETURN_IF_ERROR(Misbehave());
        if (scenario_.fault == Fault::kAbsence || scenario_.fault == Fault::kSilence) {
          return absl::OkStatus();
        }
      }
      DT_RETURN_IF_ERROR(Take(scenario_.actions[i]));
    }
    for (const DistributedTensor& result : pending_) DT_RETURN_IF_ERROR(Use(result));
    return context_.communicator().Barrier("the end");
  }

  absl::Status Misbehave() {
    switch (scenario_.fault) {
      case Fault::kError:
        return absl::NotFoundError("on purpose");
      case Fault::kException:
        ++scenario_.ended;
        throw std::runtime_error("on purpose");
      case Fault::kFailure:
        return context_.communicator().Fail(absl::DataLossError("on purpose"));
      case Fault::kDevice:
        context_.device()
            .Launch("Kernel", [] { return absl::OutOfRangeError("on purpose"); })
            .IgnoreError();
        return absl::OkStatus();
      case Fault::kAbsence:
        return absl::OkStatus();
      case Fault::kSilence:
        AwaitOthers();
        return absl::OkStatus();
      case Fault::kDrop:
        dropped_ = pending_.size();
        pending_.clear();
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  void AwaitOthers() {
    const Clock::time_point start = Clock::now();
    while (scenario_.ended < scenario_.mesh.size() - 1 && Clock::now() - start < kBound) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(scenario_.ended, scenario_.mesh.size() - 1) << "others wait for a silent rank";
  }

  absl::Status Take(int action) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Full(context_, scenario_.mesh, {Shard(0), Shard(1)}, {7, 6}, DType::kF32,
                             static_cast<double>(action)));
    switch (action) {
      case 0:
        return x.Redistribute({Replicate(), Shard(1)}).status();
      case 1:
        return x.Redistribute({Shard(1), Replicate()}).status();
      case 2:
        return ToGlobal<float>(x).status();
      case 3:
        return context_.communicator().Barrier("between");
      case 4: {
        DT_ASSIGN_OR_RETURN(DistributedTensor moved,
                            x.Redistribute({Replicate(), Shard(1)}, {.async = true}));
        pending_.push_back(std::move(moved));
        return absl::OkStatus();
      }
      default:
        return UseFirst();
    }
  }

  absl::Status UseFirst() {
    if (dropped_ > 0) {
      --dropped_;
      return context_.communicator().failure();
    }
    if (pending_.empty()) return absl::OkStatus();
    const DistributedTensor first = pending_.front();
    pending_.pop_front();
    return Use(first);
  }

  // Waits, and exchanges nothing else: a rank that dropped its own does not take part.
  absl::Status Use(const DistributedTensor& result) {
    EXPECT_EQ(result.local().shape(), result.spec().local_shape);
    return context_.communicator().failure();
  }

  // Of what a survivor still holds nothing aborts, and all that waits says why.
  void ExpectAllFail() {
    const absl::Status failure = context_.communicator().failure();
    for (const DistributedTensor& result : pending_) {
      // What came in time may be read, if nothing has to move for that.
      const auto values = ToGlobal<float>(result);
      EXPECT_THAT(values, AnyOf(IsOk(), StatusIs(failure.code(), std::string(failure.message()))));
      EXPECT_EQ(result.local().shape(), result.spec().local_shape);
    }
    EXPECT_EQ(context_.communicator().Barrier("after"), failure);
  }

  Context& context_;
  Scenario& scenario_;
  std::deque<DistributedTensor> pending_;
  size_t dropped_ = 0;  // of those that the others use
};

testing::Matcher<absl::Status> NamesTheCulprit(const Scenario& scenario) {
  const auto cycle = HasSubstr("wait for each other in a cycle");
  const auto names = [&](absl::string_view what) {
    return HasSubstr(absl::StrCat("rank ", scenario.culprit, ": ", what));
  };
  switch (scenario.fault) {
    case Fault::kError:
      return StatusIs(Code::kNotFound, names("on purpose"));
    case Fault::kException:
      return StatusIs(Code::kInternal, names("threw an exception: on purpose"));
    case Fault::kFailure:
      return StatusIs(Code::kDataLoss, names("on purpose"));
    case Fault::kDevice:
      return StatusIs(Code::kOutOfRange, names("Kernel: on purpose"));
    case Fault::kAbsence:  // which finishes what it asked for, and may close a cycle with that
      return AnyOf(StatusIs(Code::kAborted, names("returned while rank ")),
                   StatusIs(Code::kFailedPrecondition, cycle));
    case Fault::kSilence:
      return StatusIs(Code::kDeadlineExceeded, names("silent for "));
    case Fault::kDrop:  // harmless, or ranks wait for each other
      return AnyOf(IsOk(), StatusIs(Code::kFailedPrecondition, cycle));
  }
  return IsOk();
}

void Inject(Fault fault, Device::Kind device, uint64_t seed) {
  Scenario scenario(fault, device, seed);
  SCOPED_TRACE(scenario.ToString());
  const Clock::time_point start = Clock::now();
  std::vector<absl::Status> ranks(scenario.mesh.size());
  const absl::Status world = RunRanks(scenario.mesh.size(),
                                      [&](Context& context) {
                                        ranks[context.rank()] = Program(context, scenario).Run();
                                        return ranks[context.rank()];
                                      },
                                      {.device = device,
                                       .timeout_seconds = fault == Fault::kSilence ? 2.0 : 60,
                                       .seed = seed,
                                       .max_delay_us = seed % 2 == 0 ? 0 : 200,
                                       .report = nullptr});
  EXPECT_LT(Clock::now() - start, kBound);
  EXPECT_THAT(world, NamesTheCulprit(scenario));
  for (int rank = 0; rank < scenario.mesh.size() && fault != Fault::kDrop; ++rank) {
    if (rank == scenario.culprit) continue;
    // A kernel may run, and fail, after the last call of all ranks.
    if (fault == Fault::kDevice && ranks[rank].ok()) continue;
    EXPECT_EQ(ranks[rank], world) << "rank " << rank;
  }
}

struct Case {
  Fault fault;
  const char* name;
};
class FaultInjection : public ::testing::TestWithParam<std::tuple<Case, Device::Kind>> {};
INSTANTIATE_TEST_SUITE_P(Faults, FaultInjection,
                         ::testing::Combine(::testing::Values(Case{Fault::kError, "Error"},
                                                              Case{Fault::kException, "Exception"},
                                                              Case{Fault::kFailure, "Failure"},
                                                              Case{Fault::kDevice, "Device"},
                                                              Case{Fault::kAbsence, "Absence"}),
                                            ::testing::Values(Device::Kind::kCpu,
                                                              Device::Kind::kDeferred)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name, "_",
                                               std::string(ToString(std::get<1>(info.param))));
                         });

TEST_P(FaultInjection, EndsEveryRankAndNamesTheCulprit) {
  const auto& [fault, device] = GetParam();
  for (uint64_t seed = 0; seed < 60; ++seed) Inject(fault.fault, device, seed);
}

// Silences take two seconds each, of which they sleep most: side by side, as worlds of one process.
class SlowFaultInjection : public ::testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, SlowFaultInjection,
                         ::testing::Values(Fault::kSilence, Fault::kDrop), [](const auto& info) {
                           return info.param == Fault::kSilence ? "Silence" : "Drop";
                         });

TEST_P(SlowFaultInjection, EndsEveryRankAndNamesTheCulprit) {
  constexpr int kSideBySide = 4;
  std::vector<std::thread> worlds;
  for (int first = 0; first < kSideBySide; ++first) {
    worlds.emplace_back([&, first] {
      for (uint64_t seed = first; seed < 40; seed += kSideBySide) {
        Inject(GetParam(), seed % 8 < 4 ? Device::Kind::kCpu : Device::Kind::kDeferred, seed);
      }
    });
  }
  for (std::thread& world : worlds) world.join();
}

}  // namespace
}  // namespace dtensor
