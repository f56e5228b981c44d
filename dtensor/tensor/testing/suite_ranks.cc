#include "dtensor/tensor/testing/suite_ranks.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <typeinfo>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tensor/local_world.h"
#include "gtest/gtest.h"

// Null in programs that do not link MPI.
extern "C" __attribute__((weak)) int MPI_Initialized(int* flag);

namespace dtensor {
namespace {

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// What one rank hands in: an error, or bytes.
struct Outcome {
  int code = 0;
  std::string text;  // the error's message, or the bytes

  Outcome() = default;
  explicit Outcome(const absl::StatusOr<std::string>& from)
      : code(static_cast<int>(from.status().code())),
        text(from.ok() ? *from : std::string(from.status().message())) {}
};
auto ValueFields(Outcome& o) { return std::tie(o.code, o.text); }

absl::StatusOr<std::string> RunOnRank(const BytesFunction& fn, Communicator& communicator,
                                      Device& device) {
  communicator.ResetTraffic();
  absl::StatusOr<std::string> bytes;
  const absl::Status status = NoThrow([&] {
    Context context(communicator, device);
    bytes = fn(context);
    context.ForgetReads();
    return absl::OkStatus();
  });
  DT_RETURN_IF_ERROR(status);
  DT_RETURN_IF_ERROR(bytes.status());
  DT_RETURN_IF_ERROR(communicator.FinishDropped());
  return bytes;
}

// --- Threads.

absl::StatusOr<std::vector<std::string>> OnThreads(LocalWorld& world, const BytesFunction& fn) {
  std::vector<std::string> bytes(world.size());
  DT_RETURN_IF_ERROR(world.Run([&](Context& kept) -> absl::Status {
    DT_ASSIGN_OR_RETURN(bytes[kept.rank()], RunOnRank(fn, kept.communicator(), kept.device()));
    return absl::OkStatus();
  }));
  return bytes;
}

// --- Processes.

// Collective: every rank gets the outcomes of all.
absl::StatusOr<std::vector<Outcome>> Gather(Context& context, Outcome mine) {
  ValueWriter writer;
  writer(mine);
  DT_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      GatherBytes(context, std::move(writer).bytes(), "what the ranks of a suite return"));
  std::vector<Outcome> outcomes(all.size());
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    ValueReader reader(all[rank]);
    reader(outcomes[rank]);
    if (!reader.ok()) return absl::InternalError("what a rank returned was cut off on its way");
  }
  return outcomes;
}

absl::StatusOr<std::vector<std::string>> OnProcesses(Context& kept, const BytesFunction& fn) {
  const absl::StatusOr<std::string> mine = RunOnRank(fn, kept.communicator(), kept.device());
  // The others may be elsewhere, and then say this only that ranks disagree.
  if (!mine.ok()) std::cerr << "rank " << kept.rank() << ": " << mine.status() << std::endl;
  DT_ASSIGN_OR_RETURN(const std::vector<Outcome> outcomes, Gather(kept, Outcome(mine)));
  std::vector<std::string> bytes;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Outcome& outcome = outcomes[rank];
    if (outcome.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(outcome.code),
                          absl::StrCat("rank ", rank, ": ", outcome.text));
    }
    bytes.push_back(outcome.text);
  }
  return bytes;
}

// Whether somebody has started this process as a rank; alone it makes no world, on no GPU.
bool IsRank() {
  const auto rank = ReadLaunch();
  return rank.ok() && rank->size > 1;
}

// What their exchanges go by: "memory", "TCP", "MPI", "memory and TCP", "NCCL". MPI is on where it
// has been asked to carry messages, in programs that link it.
std::string WayOf(const Communicator& communicator, const Device& device) {
  if (device.kind() == Device::Kind::kCuda) return "NCCL";
  int by_mpi = 0;
  if (MPI_Initialized != nullptr) MPI_Initialized(&by_mpi);
  const std::string messages = by_mpi != 0 ? "MPI" : "TCP";
  const std::string type = typeid(communicator).name();
  if (absl::StrContains(type, "HostCommunicator")) return "memory and " + messages;
  if (absl::StrContains(type, "MessageCommunicator")) return messages;
  return absl::StrContains(type, "PullCommunicator") ? "memory" : type;
}

// --- Both.

std::string TestCase() {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? "" : absl::StrCat(test->test_suite_name(), ".", test->name());
}

class SuiteWorlds final : public testing::Environment {
 public:
  void SetUp() override {
    const std::string device = FromEnvironment("DTENSOR_SUITE_DEVICE");
    ASSERT_TRUE(device.empty() || device == "cuda") << device;
    if (device == "cuda") device_ = Device::Kind::kCuda;
    JoinOptions options;
    if (IsRank()) options.device = device_;
    auto joined = JoinWorld(options);
    DT_ASSERT_OK(joined.status());
    if ((*joined)->context().world_size() > 1) processes_ = *std::move(joined);
    const std::string ranks = FromEnvironment("DTENSOR_SUITE_RANKS");
    int only = 0;
    ASSERT_TRUE(ranks.empty() || absl::SimpleAtoi(ranks, &only)) << ranks;
    if (only > 0) only_ranks_ = only;
  }

  void TearDown() override {
    threads_.clear();
    WriteDigests();
    if (processes_ != nullptr) {
      DT_EXPECT_OK(processes_->Leave(absl::OkStatus()));
    }
    processes_ = nullptr;
  }

  bool HasRanks(int n, const RunOptions& options) const {
    if (processes_ == nullptr) return n == 1 || !only_ranks_ || n == *only_ranks_;
    return options.device == Device::Kind::kCpu && (n == 1 || n == world_size());
  }

  absl::StatusOr<std::vector<std::string>> Run(int n, const BytesFunction& fn,
                                               const RunOptions& options) {
    if (!HasRanks(n, options)) {
      return absl::UnimplementedError(
          absl::StrCat("this run of the suite has no world of ", n, " ranks"));
    }
    const bool by_processes = processes_ != nullptr && n > 1;
    DT_ASSIGN_OR_RETURN(std::vector<std::string> bytes, by_processes
                                                            ? OnProcesses(processes_->context(), fn)
                                                            : RunOnThreads(n, fn, options));
    // Threads may have made more than processes can: only what both have counts.
    if (n > 1 && options.device == Device::Kind::kCpu) Record(bytes);
    return bytes;
  }

 private:
  struct Recorded {
    Digest digest;
    int functions = 0;
    size_t bytes = 0;
  };

  int world_size() const { return processes_->context().world_size(); }

  absl::StatusOr<std::vector<std::string>> RunOnThreads(int n, const BytesFunction& fn,
                                                        RunOptions options) {
    const bool usual = options.device == Device::Kind::kCpu && options.max_delay_us == 0 &&
                       options.timeout_seconds == RunOptions().timeout_seconds;
    if (options.device == Device::Kind::kCpu) options.device = device_;
    if (!usual) {
      DT_ASSIGN_OR_RETURN(LocalWorld world, LocalWorld::Create(n, options));
      return OnThreads(world, fn);
    }
    const auto kept = threads_.find(n);
    if (kept != threads_.end() && !kept->second.failure().ok()) threads_.erase(kept);
    if (!threads_.contains(n)) {
      DT_ASSIGN_OR_RETURN(LocalWorld world, LocalWorld::Create(n, options));
      threads_.emplace(n, std::move(world));
    }
    return OnThreads(threads_.at(n), fn);
  }

  void Record(const std::vector<std::string>& bytes) {
    Recorded& recorded = recorded_[TestCase()];
    ++recorded.functions;
    for (const std::string& of_rank : bytes) {
      recorded.digest.Add(of_rank);
      recorded.bytes += of_rank.size();
    }
  }

  void WriteDigests() const {
    const std::string folder = FromEnvironment("DTENSOR_SUITE_DIGESTS");
    if (folder.empty()) return;
    const int rank = processes_ == nullptr ? 0 : processes_->context().rank();
    std::ofstream(absl::StrCat(folder, "/", rank, ".way"))
        << (processes_ == nullptr
                ? "threads"
                : WayOf(processes_->context().communicator(), processes_->context().device()))
        << "\n";
    std::ofstream file(absl::StrCat(folder, "/", rank));
    for (const auto& [name, recorded] : recorded_) {
      file << absl::StrCat(name, ": ", absl::Hex(recorded.digest.value(), absl::kZeroPad16), " of ",
                           recorded.bytes, " bytes from ", recorded.functions, " functions\n");
    }
    file.flush();
    EXPECT_TRUE(file.good()) << folder;
  }

  std::unique_ptr<JoinedWorld> processes_;  // null: threads
  std::optional<int> only_ranks_;
  Device::Kind device_ = Device::Kind::kCpu;  // of threads, where a suite does not ask for another
  std::map<int, LocalWorld> threads_;         // by size
  std::map<std::string, Recorded> recorded_;
};

// GoogleTest owns it, and calls its SetUp before the first test.
SuiteWorlds* const worlds = [] {
  auto* const made = new SuiteWorlds;
  testing::AddGlobalTestEnvironment(made);
  return made;
}();

}  // namespace

bool SuiteHasRanks(int n, const RunOptions& options) { return worlds->HasRanks(n, options); }

absl::StatusOr<std::vector<std::string>> SuiteBytes(int n, const BytesFunction& fn,
                                                    const RunOptions& options) {
  return worlds->Run(n, fn, options);
}

absl::Status AddElements(const Tensor& tensor, Digest& digest) {
  return VisitDType(tensor.dtype(), [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToHost<T>(tensor));
    digest.Add(static_cast<int64_t>(values.size()));
    for (const T value : values) {
      digest.Add(absl::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
    }
    return absl::OkStatus();
  });
}

}  // namespace dtensor
