// What a communicator's abort does and does not wait for, with the faults that the fake of NCCL makes.
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

}  // namespace
}  // namespace dtensor
