// What a communicator's abort does and does not wait for, with the faults that the fake makes.
#include "dtensor/runtime/comm/nccl/nccl_group.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cuda/fake/nccl_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int> refused_threads = 0;

}  // namespace

// Before the system's: refuses as many threads as that says.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*fn)(void*), void* argument) {
  if (refused_threads > 0 && refused_threads-- > 0) return EAGAIN;
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, fn, argument);
}

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

absl::Status GoOn() { return absl::OkStatus(); }

// A variable of the environment, while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

// Ends the program where `fn` hangs, for nothing else would.
void Within(seconds longest, const std::function<void()>& fn) {
  std::atomic<bool> done = false;
  std::thread thread([&] {
    cudaSetDevice(0);
    fn();
    done = true;
  });
  for (const auto until = Clock::now() + longest; !done && Clock::now() < until;) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (!done) {
    std::cerr << "it hangs" << std::endl;
    _exit(1);
  }
  thread.join();
}

// Of rank 0, alone.
class NcclGroupTest : public testing::Test {
 protected:
  NcclGroupTest() {
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    void* data = nullptr;
    cudaMalloc(&data, 64);
    data_ = static_cast<char*>(data);
  }
  ~NcclGroupTest() override {
    cudaStreamDestroy(stream_);
    cudaFree(data_);
  }

  static std::unique_ptr<NcclGroup> Connect() {
    return *NcclGroup::Connect(*NewNcclId(), 1, 0, GoOn);
  }
  absl::Status Gather(NcclGroup& group, const NcclStop& stop = GoOn) {
    return group.Call(
        [&](ncclComm_t comm) { return ncclAllGather(data_, data_, 1, ncclUint8, comm, stream_); },
        stop);
  }
  static bool IsAborted(NcclGroup& group) { return NcclGroup::AbortAll({&group}, Clock::now()); }

  cudaStream_t stream_ = nullptr;
  char* data_ = nullptr;
};

// An abort that hangs keeps the lock of NCCL's calls.
TEST_F(NcclGroupTest, NobodyWaitsForAnAbortThatHangs) {
  const Variable stuck("DTENSOR_FAKE_NCCL_GROUP", "stuck"),
      hangs("DTENSOR_FAKE_NCCL_ABORT", "hangs");
  const std::unique_ptr<NcclGroup> group = Connect();
  Within(seconds(10), [&] {
    std::thread watch([&] {
      std::this_thread::sleep_for(milliseconds(100));
      EXPECT_FALSE(NcclGroup::AbortAll({group.get()}, Clock::now() + milliseconds(100)));
    });
    EXPECT_THAT(Gather(*group), StatusIs(absl::StatusCode::kAborted)) << "in progress";
    watch.join();
    EXPECT_THAT(Gather(*group), StatusIs(absl::StatusCode::kAborted)) << "afterwards";
    const auto stop = [] { return absl::DataLossError("the dog ate it"); };
    EXPECT_THAT(Gather(*group, stop), StatusIs(absl::StatusCode::kDataLoss)) << "with a reason";
    DT_EXPECT_OK(group->End(GoOn));
  });
}

// As nccl.conf is told of: with the first call of NCCL.
TEST_F(NcclGroupTest, AnEnvironmentInWhichCallsBlock) {
  {
    const Variable blocks("NCCL_COMM_BLOCKING", "1");
    EXPECT_THAT(NewNcclId(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("unset it, or set it to 0")));
  }
  const Variable blocks("NCCL_COMM_BLOCKING", "0");
  DT_EXPECT_OK(NewNcclId());
}

// --- A communicator of the program's, of which an abort must not lead to what NCCL frees twice.

class CallersGroupTest : public NcclGroupTest {
 protected:
  CallersGroupTest() {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    EXPECT_EQ(own_.Init(id), ncclSuccess);
    group_ = *NcclGroup::Adopt(own_.comm, 1, 0, 0, GoOn, is_gone_);
  }
  ~CallersGroupTest() override { cudaStreamDestroy(own_.stream); }
  bool Abort() { return NcclGroup::AbortAll({group_.get()}, Clock::now() + seconds(20)); }

  NcclRank own_{.rank = 0, .size = 1, .gpu = 0};
  const std::shared_ptr<std::atomic<bool>> is_gone_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<NcclGroup> group_;
};

TEST_F(CallersGroupTest, AnIdleOneIsRevoked) {
  DT_EXPECT_OK(Gather(*group_));
  EXPECT_TRUE(Abort());
  EXPECT_FALSE(*is_gone_);
  EXPECT_EQ(own_.Await(), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(own_.comm), ncclSuccess);
}

TEST_F(CallersGroupTest, OneThatIsInProgressIsAborted) {
  const Variable stuck("DTENSOR_FAKE_NCCL_GROUP", "stuck");
  std::atomic<bool> calls = false;
  std::thread caller([&] {
    cudaSetDevice(0);
    const auto stop = [&] {
      calls = true;
      return absl::OkStatus();
    };
    EXPECT_THAT(Gather(*group_, stop), StatusIs(absl::StatusCode::kAborted));
  });
  while (!calls) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(Abort());
  caller.join();
  EXPECT_TRUE(*is_gone_);
}

TEST_F(CallersGroupTest, OneOfWhichNcclReportsAnErrorIsAborted) {
  // A message to itself that it does not receive.
  const auto send = [&](ncclComm_t comm) {
    return ncclSend(data_, 1, ncclUint8, 0, comm, stream_);
  };
  const bool is_late = group_->Call(send, GoOn).ok();
  while (is_late && group_->failure().ok()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(Abort());
  EXPECT_TRUE(*is_gone_);
}

TEST_F(CallersGroupTest, OneThatCannotBeRevokedIsAborted) {
  EXPECT_EQ(ncclCommRevoke(own_.comm, NCCL_REVOKE_DEFAULT), ncclInProgress);
  EXPECT_EQ(own_.Await(), ncclSuccess);
  EXPECT_TRUE(Abort());
  EXPECT_TRUE(*is_gone_);
}

TEST_F(NcclGroupTest, OneThatIsInTheMaking) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<bool> waits = false;
  std::atomic<int> adopted = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      while (rank == 1 && !waits) std::this_thread::sleep_for(milliseconds(1));
      cudaSetDevice(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
      const auto stop = [&] {
        waits = true;
        return absl::OkStatus();
      };
      DT_EXPECT_OK(NcclGroup::Adopt(comm, 2, rank, rank, stop));
      waits = true;
      ++adopted;  // a rank that aborts sooner is gone for the other, which still asks
      while (adopted < 2) std::this_thread::sleep_for(milliseconds(1));
      ncclCommAbort(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(NcclGroupTest, OneThatIsNotMadeInTime) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  const auto stop = [] { return absl::DeadlineExceededError("it is late"); };
  EXPECT_THAT(NcclGroup::Adopt(comm, 2, 0, 0, stop).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess) << "it is the caller's";
}

// --- What begins, and what is given up.

// Two ranks of a GPU, where NCCL tells it at once: with a communicator, which is aborted as well.
TEST_F(NcclGroupTest, AnErrorThatComesWithACommunicator) {
  const Variable late("DTENSOR_FAKE_NCCL_INIT", "late");
  const std::string id = *NewNcclId();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      cudaSetDevice(0);
      EXPECT_THAT(NcclGroup::Connect(id, 2, rank, GoOn).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           testing::AllOf(HasSubstr("Duplicate GPU"),
                                          HasSubstr("start no more ranks on a host"))));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// NCCL's thread may launch what is in progress later, when its memory is somebody else's.
TEST_F(NcclGroupTest, ACallThatIsGivenUpIsAborted) {
  const Variable stuck("DTENSOR_FAKE_NCCL_GROUP", "stuck");
  const std::unique_ptr<NcclGroup> group = Connect();
  const auto begin = Clock::now();
  const auto stop = [&] {
    return Clock::now() - begin < milliseconds(50) ? absl::OkStatus() : absl::DataLossError("dog");
  };
  EXPECT_THAT(Gather(*group, stop), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(IsAborted(*group));
}

TEST_F(NcclGroupTest, ThereIsNoThreadForAWhile) {
  const std::unique_ptr<NcclGroup> groups[] = {Connect(), Connect()};
  refused_threads = 3;
  EXPECT_TRUE(NcclGroup::AbortAll({groups[0].get(), groups[1].get()}, Clock::now() + seconds(20)));
  EXPECT_EQ(refused_threads, 0);
}

TEST_F(NcclGroupTest, ThereIsNoThread) {
  const std::unique_ptr<NcclGroup> group = Connect();
  refused_threads = 1 << 20;
  EXPECT_FALSE(NcclGroup::AbortAll({group.get()}, Clock::now() + milliseconds(20)));
  refused_threads = 0;
  DT_EXPECT_OK(Gather(*group)) << "it is not aborted, and may be later";
  EXPECT_TRUE(NcclGroup::AbortAll({group.get()}, Clock::now() + seconds(20)));
}

}  // namespace
}  // namespace dtensor
