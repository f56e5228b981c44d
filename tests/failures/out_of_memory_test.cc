// The host's memory runs out at any allocation of a rank: its error is kResourceExhausted, its
// peers get an error, and the process neither ends nor hangs.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "dtensor/attention/attention.h"
#include "dtensor/ops/ops.h"
#include "dtensor/redistribution/chunk_schedule.h"
#include "dtensor/redistribution/chunked_move.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gtest/gtest.h"

namespace {

// Of the calling thread: how many allocations are left before one throws, once; below 0: none does.
thread_local int64_t left = -1;
thread_local bool thrown = false;

void* Allocate(size_t bytes, size_t alignment) {
  if (left >= 0 && left-- == 0) {
    thrown = true;
    throw std::bad_alloc();
  }
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment) & ~(alignment - 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace dtensor {
namespace {

// The n-th allocation of this thread throws, while this is there.
class OutOfMemory {
 public:
  explicit OutOfMemory(int64_t n) {
    left = n;
    thrown = false;
  }
  ~OutOfMemory() { left = -1; }
  OutOfMemory(const OutOfMemory&) = delete;
  OutOfMemory& operator=(const OutOfMemory&) = delete;
};

TEST(OutOfMemoryTest, NoThrowNeedsNoMemoryToSayThatThereIsNone) {
  const std::function<absl::Status()> throws[] = {
      []() -> absl::Status { throw std::bad_alloc(); },
      []() -> absl::Status { throw std::runtime_error("its text has no memory"); }};
  for (const auto& fn : throws) {
    absl::Status status;
    {
      const OutOfMemory none(-1);  // from when the exception is made on
      status = NoThrow([&] {
        struct Later {
          ~Later() { left = 0; }
        } later;
        return fn();
      });
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

TEST(OutOfMemoryTest, AMapThatCannotGrowIsAsItWas) {
  for (int64_t n = 0; n < 8; ++n) {
    HashMap<int, std::string> map;
    const std::string text(100, 'x');
    int inserted = 0;
    try {
      const OutOfMemory none(n);
      for (; inserted < 100; ++inserted) map.try_emplace(inserted, text);
    } catch (const std::bad_alloc&) {
    }
    EXPECT_LT(inserted, 100);
    EXPECT_EQ(map.size(), inserted);
    for (int i = 0; i < inserted; ++i) EXPECT_EQ(map.at(i), text);
    map.try_emplace(inserted, text);
    EXPECT_EQ(map.at(inserted), text);
  }
}

using Program = std::function<absl::Status(Context&)>;

// In f64, whose products are our own: oneDNN dies of an allocation that throws.
absl::Status Train(Context& context, const BackwardOptions& options) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2"));
  DT_ASSIGN_OR_RETURN(DistributedTensor x, RandomNormal(context, mesh, {Shard(0)}, {6, 8},
                                                        {.seed = 1, .dtype = DType::kF64}));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  DT_ASSIGN_OR_RETURN(DistributedTensor w, RandomNormal(context, mesh, {Shard(0)}, {8, 4},
                                                        {.seed = 2, .dtype = DType::kF64}));
  DT_RETURN_IF_ERROR(w.set_requires_grad(true));
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, x.Redistribute({Shard(1)}, {.async = true}));
  TensorOr z = MatMul(Silu(y), w);
  DT_RETURN_IF_ERROR(z.status());
  DT_ASSIGN_OR_RETURN(const DistributedTensor gathered,
                      z->Redistribute({Replicate()}, {.async = true}));
  DT_ASSIGN_OR_RETURN(
      const DistributedTensor columns,
      RandomNormal(context, mesh, {Shard(1)}, {8, 4}, {.seed = 3, .dtype = DType::kF64}));
  const TensorOr product = MatMul(x.Redistribute({Replicate()}, {.on_use = true}), columns);
  const TensorOr loss =
      Add(Sum(Mul(Softmax(Add(gathered, gathered)), gathered), {0, 1}), Sum(product, {0, 1}));
  DT_RETURN_IF_ERROR(loss.status());
  DT_RETURN_IF_ERROR(Backward(loss, options));
  const std::vector<DistributedTensor> leaves = {x, w};
  DT_RETURN_IF_ERROR(ReduceGradients(leaves));
  return ToGlobal<double>(x.grad()).status();
}

// Keys and values go round while the rank works on others; all of it is traced.
absl::Status RunRing(Context& context) {
  context.StartTrace();
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2"));
  std::vector<DistributedTensor> qkv;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    DT_ASSIGN_OR_RETURN(DistributedTensor x, RandomNormal(context, mesh, {Shard(1)}, {1, 8, 2, 4},
                                                          {.seed = seed, .dtype = DType::kF64}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    qkv.push_back(std::move(x));
  }
  const auto attend = [&] {
    return Attention(qkv[0], qkv[1], qkv[2],
                     {.mask = AttentionMask::Full(), .plan = AttentionPlanKind::kRing});
  };
  // The ring's schedule is made, and kept, while there is memory: it is printed by absl::StrFormat,
  // which ends the process where a string cannot grow.
  const int64_t n = std::exchange(left, -1);
  DT_RETURN_IF_ERROR(attend().status());
  left = n;
  const TensorOr o = attend();
  const TensorOr loss = Sum(Mul(o, o), {0, 1, 2, 3});
  DT_RETURN_IF_ERROR(loss.status());
  DT_RETURN_IF_ERROR(Backward(loss));
  return ToGlobal<double>(qkv[1].grad()).status();
}

// What is made beside the chunks of a move allocates.
absl::Status MoveBesideWork(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2"));
  DT_ASSIGN_OR_RETURN(const DistributedTensor from,
                      RandomNormal(context, mesh, {Shard(0)}, {8, 8}, {.seed = 1}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor to,
                      RandomNormal(context, mesh, {Replicate()}, {8, 8}, {.seed = 2}));
  DT_ASSIGN_OR_RETURN(RedistributionPlan plan,
                      RedistributionPlan::Create(from.layout(), to.layout(), {8, 8}, DType::kF32));
  auto schedule = ChunkSchedule::Create(plan, 2);
  if (schedule == nullptr) return absl::InternalError("this is not made in chunks");
  const int rank = context.rank();
  const RankChunks chunks(std::move(schedule),
                          std::make_shared<const RankRedistributionPlan>(std::move(plan), rank),
                          rank);
  return MoveInChunks(chunks, from.local(), to.local(), context.communicator(), "Test",
                      [](absl::Span<const RowRange> rows) {
                        const std::vector<RowRange> copied(rows.begin(), rows.end());
                        const std::string more(100, 'x');
                        return copied.size() > more.size() ? absl::InternalError(more)
                                                           : absl::OkStatus();
                      });
}

bool IsExpected(const absl::Status& status) {
  return status.ok() || absl::IsResourceExhausted(status);
}

// What comes of a run in which the n-th allocation of one rank throws.
enum Outcome { kFailed, kNothingThrown, kWrong };

Outcome RunWithout(const Program& program, const ContextOptions& contexts, int64_t n) {
  std::vector<absl::Status> ended(2);
  bool was_thrown = false;
  const auto run = [&](Context& context) {
    const int rank = context.rank();
    if (rank != n % 2) return ended[rank] = program(context);
    ended[rank] = NoThrow([&] {
      const OutOfMemory none(n / 2);
      return program(context);
    });
    was_thrown = thrown;
    return ended[rank];
  };
  const absl::Status status = RunRanks(2, run, {.timeout_seconds = 5, .report = nullptr}, contexts);
  if (!was_thrown) return status.ok() ? kNothingThrown : kWrong;
  for (const absl::Status& one : {status, ended[0], ended[1]}) {
    if (IsExpected(one)) continue;
    std::fprintf(stderr, "allocation %ld of rank %ld: %s\n", n / 2, n % 2, one.ToString().c_str());
    return kWrong;
  }
  return kFailed;
}

// What came of `run` in a process of its own, which may neither end by a signal nor hang.
void RunApart(absl::FunctionRef<Outcome()> run, Outcome& outcome) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    _exit(run());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  outcome = static_cast<Outcome>(WEXITSTATUS(status));
}

// Whichever allocation of the program throws.
void ExpectSound(const Program& program, const ContextOptions& contexts = {}) {
  int64_t n = 0;
  for (Outcome outcome = kFailed; outcome != kNothingThrown; ++n) {
    SCOPED_TRACE(absl::StrCat("allocation ", n / 2, " of rank ", n % 2));
    ASSERT_NO_FATAL_FAILURE(RunApart([&] { return RunWithout(program, contexts, n); }, outcome));
    ASSERT_NE(outcome, kWrong);
  }
  EXPECT_GT(n, 200);
}

// A product in f32, which may be oneDNN's, of which each size is another.
absl::Status Multiply(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=1"));
  for (int64_t size = 1; size < 60; ++size) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, mesh, {Replicate()}, {size, 64}, {.seed = 1}));
    DT_RETURN_IF_ERROR(MatMul(x, Transpose(x, 0, 1)).status());
  }
  return absl::OkStatus();
}

// Of the process, in bytes.
int64_t Addresses() {
  std::ifstream pages("/proc/self/statm");
  int64_t count = 0;
  pages >> count;
  return count * sysconf(_SC_PAGESIZE);
}

Outcome RunUnder(int64_t addresses, const Program& program) {
  const auto limit = static_cast<rlim_t>(addresses);
  const rlimit limits = {limit, limit};
  if (setrlimit(RLIMIT_AS, &limits) != 0) return kWrong;
  return IsExpected(RunRanks(1, program, {.report = nullptr})) ? kFailed : kWrong;
}

TEST(OutOfMemoryTest, ProductsUnderALimitOfAddressesEndWithAnError) {
  for (int64_t mib = 0; mib < 64; mib += 2) {
    SCOPED_TRACE(absl::StrCat(mib, " MiB"));
    Outcome outcome = kWrong;
    ASSERT_NO_FATAL_FAILURE(
        RunApart([&] { return RunUnder(Addresses() + (mib << 20), Multiply); }, outcome));
    EXPECT_EQ(outcome, kFailed);
  }
}

TEST(OutOfMemoryTest, ATrainingStepEndsWithAnError) {
  ExpectSound([](Context& context) { return Train(context, {}); });
}

TEST(OutOfMemoryTest, ExchangesBesideWorkEndWithAnError) {
  ExpectSound([](Context& context) { return Train(context, {.bucket_bytes = 1}); },
              {.overlap = {.chunks = 2, .min_bytes = 1}});
}

TEST(OutOfMemoryTest, ChunksBesideWorkEndWithAnError) { ExpectSound(MoveBesideWork); }

class ThrowsAtFinish final : public ExchangeObserver {
 public:
  void Begins(const Collective&, bool) override {}
  void Finishes(const Collective&) override { throw std::bad_alloc(); }
  void Finished(const Collective&) override {}
  void Drops(const Collective&) override {}
  void Counted(const Collective&, const CommunicatorTraffic&) override {}
};

// Peers read what the caller would free, were it told by an exception.
TEST(OutOfMemoryTest, AnObserverThatHasNoMemoryFailsTheExchange) {
  ThrowsAtFinish observer;
  absl::Status told[2];
  const auto run = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        RandomNormal(context, mesh, {Shard(0)}, {6, 8}, {.seed = 1}));
    if (context.rank() == 0) context.communicator().set_observer(&observer);
    return told[context.rank()] = x.Redistribute({Replicate()}).status();
  };
  EXPECT_FALSE(RunRanks(2, run, {.report = nullptr}).ok());
  for (const absl::Status& status : told) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

TEST(OutOfMemoryTest, ATracedRingEndsWithAnError) { ExpectSound(RunRing); }

}  // namespace
}  // namespace dtensor
