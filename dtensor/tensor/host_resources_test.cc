// Resources that an embedding program lends us: threads of its pool, and memory of its allocator.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

absl::Status Nothing(Context&) { return absl::OkStatus(); }

// The sum of one float from each of two ranks.
absl::Status MeetsItsPeer(Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
  DT_ASSIGN_OR_RETURN(const Tensor one, FromHost<float>(context.device(), {1}, {1}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor x, FromLocal(context, mesh, {Partial()}, {1}, one));
  DT_ASSIGN_OR_RETURN(const double sum, Item(x));
  return sum == 2 ? absl::OkStatus() : absl::InternalError("the sum is wrong");
}

// Threads that run what they are handed, first come, first served.
class Pool {
 public:
  explicit Pool(int n) {
    for (int i = 0; i < n; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Executor executor() {
    return [this](std::function<void()> fn) {
      {
        std::lock_guard lock(mutex_);
        work_.push_back(std::move(fn));
      }
      changed_.notify_one();
    };
  }
  bool has(std::thread::id id) const {
    for (const std::thread& thread : threads_) {
      if (thread.get_id() == id) return true;
    }
    return false;
  }

 private:
  void Work() {
    while (true) {
      std::function<void()> fn;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ends_ || !work_.empty(); });
        if (work_.empty()) return;
        fn = std::move(work_.front());
        work_.pop_front();
      }
      fn();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::deque<std::function<void()>> work_;
  std::vector<std::thread> threads_;
};

// --- Threads.

TEST(HostThreads, RanksRunOnThePool) {
  Pool pool(3);
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld world, LocalWorld::Create(2, {.executor = pool.executor()}));
  std::vector<Context*> contexts(2);
  for (int run = 0; run < 100; ++run) {
    DT_ASSERT_OK(world.Run([&](Context& context) -> absl::Status {
      if (!pool.has(std::this_thread::get_id())) return absl::InternalError("not of the pool");
      Context*& known = contexts[context.rank()];
      if (known != nullptr && known != &context) return absl::InternalError("another Context");
      known = &context;
      return MeetsItsPeer(context);
    }));
  }
}

TEST(HostThreads, BetweenRunsTheyAreThePrograms) {
  Pool pool(2);
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld first, LocalWorld::Create(2, {.executor = pool.executor()}));
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld second, LocalWorld::Create(2, {.executor = pool.executor()}));
  for (int run = 0; run < 10; ++run) {
    DT_ASSERT_OK(first.Run(MeetsItsPeer));
    DT_ASSERT_OK(second.Run(MeetsItsPeer));
  }
  DT_EXPECT_OK(RunRanks(2, MeetsItsPeer, {.executor = pool.executor()}));
}

TEST(HostThreads, APoolThatIsTooSmallIsAnErrorAndRunsNoRank) {
  Pool pool(2);
  DT_ASSERT_OK_AND_ASSIGN(
      LocalWorld world, LocalWorld::Create(3, {.timeout_seconds = 1, .executor = pool.executor()}));
  std::atomic<int> ran = 0;
  EXPECT_THAT(world.Run([&](Context&) {
    ++ran;
    return absl::OkStatus();
  }),
              StatusIs(Code::kDeadlineExceeded,
                       AllOf(HasSubstr("2 of 3 threads"), HasSubstr("a free thread for each"))));
  EXPECT_EQ(ran, 0);
  DT_EXPECT_OK(world.failure());
  // Its two threads are free again.
  DT_EXPECT_OK(RunRanks(2, MeetsItsPeer, {.executor = pool.executor()}));
}

TEST(HostThreads, APoolThatBlocksWhileItIsFullIsAnErrorInTime) {
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;
  Pool pool(2);
  const Executor one_waits = [&](std::function<void()> fn) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting == 0; });
    ++waiting;
    pool.executor()([&, fn = std::move(fn)] {
      {
        std::lock_guard lock(mutex);
        --waiting;
      }
      changed.notify_all();
      fn();
    });
  };
  EXPECT_THAT(RunRanks(4, Nothing, {.timeout_seconds = 1, .executor = one_waits}),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("2 of 4 threads in 1 s")));
  DT_EXPECT_OK(RunRanks(2, MeetsItsPeer, {.executor = one_waits})) << "its threads are free again";
}

// All threads are there, and the last one's executor waits for it.
TEST(HostThreads, AnExecutorThatWaitsIsAnErrorInTime) {
  const Executor waits = [](std::function<void()> fn) { std::thread(std::move(fn)).join(); };
  for (const int n : {1, 2}) {
    EXPECT_THAT(RunRanks(n, Nothing, {.timeout_seconds = 1, .executor = waits}),
                StatusIs(Code::kDeadlineExceeded, HasSubstr("1 of ")));
  }
}

TEST(HostThreads, TheCallersThreadIsNoThreadOfItsOwn) {
  for (const int n : {1, 2}) {
    EXPECT_THAT(RunRanks(n, Nothing, {.executor = [](std::function<void()> fn) { fn(); }}),
                StatusIs(Code::kInvalidArgument, HasSubstr("a thread of its own")));
  }
}

TEST(HostThreads, AnExecutorThatFailsIsAnError) {
  Pool pool(1);
  int calls = 0;
  const Executor executor = [&](std::function<void()> fn) {
    if (++calls == 2) throw std::runtime_error("the pool is closed");
    pool.executor()(std::move(fn));
  };
  EXPECT_THAT(RunRanks(2, Nothing, {.executor = executor}),
              StatusIs(Code::kInternal, HasSubstr("the pool is closed")));
  // What is dropped never comes; what is called after the run does nothing.
  std::vector<std::function<void()>> late;
  EXPECT_THAT(RunRanks(2, Nothing,
                       {.timeout_seconds = 0.1,
                        .executor = [&](std::function<void()> fn) { late.push_back(fn); }}),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("0 of 2")));
  for (const auto& fn : late) fn();
}

TEST(HostThreads, ErrorsOfRanksAreWhatTheyAreOnOurThreads) {
  Pool pool(2);
  DT_ASSERT_OK_AND_ASSIGN(LocalWorld world,
                          LocalWorld::Create(2, {.report = nullptr, .executor = pool.executor()}));
  EXPECT_THAT(world.Run([](Context& context) -> absl::Status {
    if (context.rank() == 1) throw std::runtime_error("it burns");
    return MeetsItsPeer(context);
  }),
              StatusIs(Code::kInternal, HasSubstr("rank 1: ")));
  EXPECT_EQ(world.Run(MeetsItsPeer), world.failure());
}

TEST(HostThreads, OptionsThatContradictAreRefused) {
  Pool pool(1);
  EXPECT_THAT(LocalWorld::Create(1, {.pin_threads = true, .executor = pool.executor()}),
              StatusIs(Code::kInvalidArgument, HasSubstr("to pin")));
  EXPECT_THAT(SingleRank({.executor = pool.executor()}),
              StatusIs(Code::kInvalidArgument, HasSubstr("executor")));
}

// --- Memory.

class Counting final : public std::pmr::memory_resource {
 public:
  std::atomic<int64_t> live = 0, calls = 0, limit = std::numeric_limits<int64_t>::max();

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    ++calls;
    if (live + static_cast<int64_t>(bytes) > limit) throw std::bad_alloc();
    live += bytes;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* data, size_t bytes, size_t alignment) override {
    live -= bytes;
    std::pmr::new_delete_resource()->deallocate(data, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(HostMemory, TensorsLieThere) {
  const auto memory = std::make_shared<Counting>();
  DT_ASSERT_OK(RunRanks(2, MeetsItsPeer, {.memory = memory}));
  EXPECT_GE(memory->calls, 2);
  DT_ASSERT_OK(RunRanks(1, Nothing));  // when a world ends, what is over goes
  EXPECT_EQ(memory->live, 0);
  EXPECT_EQ(memory.use_count(), 1);
}

TEST(HostMemory, BlocksOfAllSizesComeBack) {
  const auto memory = std::make_shared<Counting>();
  DT_ASSERT_OK_AND_ASSIGN(LocalRank rank, SingleRank({.memory = memory}));
  Device& device = rank.context().device();
  for (const int64_t size : {1, 1 << 10, 1 << 20, 5 << 20, 33 << 20}) {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Empty(device, DType::kBool, {size}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0);
    EXPECT_GE(memory->live, size);
    DT_EXPECT_OK(device.FillBytes(tensor.raw(), 1, size));
  }
  device.Trim();
  EXPECT_EQ(memory->live, 0);
}

TEST(HostMemory, OutOfItIsAnErrorThatNamesIt) {
  const auto memory = std::make_shared<Counting>();
  memory->limit = 64 << 20;
  DT_ASSERT_OK_AND_ASSIGN(LocalRank rank, SingleRank({.memory = memory}));
  Context& context = rank.context();
  EXPECT_THAT(
      Full(context, DeviceMesh(), {}, {32 << 20}, DType::kF32, 0),
      StatusIs(Code::kResourceExhausted, HasSubstr("the program's memory resource refused")));
}

TEST(HostMemory, LivesAsLongAsTensors) {
  auto memory = std::make_shared<Counting>();
  const std::weak_ptr<Counting> alive = memory;
  DistributedTensor kept;
  DT_ASSERT_OK(RunRanks(1,
                        [&](Context& context) -> absl::Status {
                          DT_ASSIGN_OR_RETURN(kept,
                                              Full(context, DeviceMesh(), {}, {2}, DType::kF32, 7));
                          return absl::OkStatus();
                        },
                        {.memory = std::move(memory)}));
  EXPECT_FALSE(alive.expired());
  EXPECT_THAT(ToHost<float>(kept.local()), IsOkAndHolds(testing::ElementsAre(7, 7)));
  kept = DistributedTensor();
  DT_ASSERT_OK(RunRanks(1, Nothing));
  EXPECT_TRUE(alive.expired());
}

TEST(HostMemory, IsForTheCpuDevice) {
  EXPECT_THAT(
      SingleRank({.device = Device::Kind::kDeferred, .memory = std::make_shared<Counting>()}),
      StatusIs(Code::kInvalidArgument, HasSubstr("cpu device")));
}

}  // namespace
}  // namespace dtensor
