// What CUDA does unasked, and the fakes with it: waits within calls that launch, allocate or free,
// and who may use whose memory.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "dtensor/tools/cuda/fake/fake.h"
#include "dtensor/tools/cuda/fake/host_grid.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using fake_cuda::Kernel;

const char kKernels[2] = {};  // their addresses stand for kernels

// With `argument` alone.
void Launch(const char& kernel, cudaStream_t stream, const void* argument = nullptr) {
  const Kernel::Argument arguments[] = {{&argument, sizeof(argument)}, {}};
  fake_cuda::LaunchGrid(stream, 1, 1, {&kernel, arguments}, [] {});
}

cudaStream_t MakeStream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

class ImplicitTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    cudaSetDevice(0);
  }

  // Whether `call` waits for a stream of GPU 0 that is held up.
  static bool Waits(const std::function<void()>& call) {
    const cudaStream_t stream = MakeStream();
    std::atomic<bool> is_open = false, is_done = false;
    fake_cuda::Enqueue(stream, [&] {
      while (!is_open) std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
    std::thread caller([&] {
      call();
      is_done = true;
    });
    for (int i = 0; i < 100 && !is_done; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const bool waited = !is_done;
    is_open = true;
    caller.join();
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return waited;
  }
};

TEST_F(ImplicitTest, TheFirstLaunchOfAKernelWaitsForItsGpu) {
  const auto launch = [](const char& kernel, int gpu) {
    return [&kernel, gpu] {
      cudaSetDevice(gpu);
      const cudaStream_t stream = MakeStream();
      Launch(kernel, stream);
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    };
  };
  EXPECT_TRUE(Waits(launch(kKernels[0], 0)));
  EXPECT_FALSE(Waits(launch(kKernels[0], 0)));
  EXPECT_FALSE(Waits(launch(kKernels[0], 1))) << "GPU 1 has nothing to wait for";
  EXPECT_TRUE(Waits(launch(kKernels[1], 0)));
}

TEST_F(ImplicitTest, AllocationsMayWait) {
  void *pinned = nullptr, *data = nullptr;
  EXPECT_TRUE(Waits([&] { cudaMallocHost(&pinned, 16); }));
  EXPECT_TRUE(Waits([&] { cudaFreeHost(pinned); }));
  EXPECT_TRUE(Waits([&] { cudaMalloc(&data, 16); }));
  EXPECT_TRUE(Waits([&] { cudaFree(data); }));
  cublasLtHandle_t handle;
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_TRUE(Waits([&] { cublasLtDestroy(handle); }));
}

// A kernel of GPU 0 is given memory of GPU 1, after `prepare`.
void UsePeersMemory(bool of_pool, void (*prepare)()) {
  cudaSetDevice(1);
  const cudaStream_t owner = MakeStream();
  void* data = nullptr;
  if (of_pool) {
    cudaMallocAsync(&data, 16, owner);
  } else {
    cudaMalloc(&data, 16);
  }
  cudaSetDevice(0);
  prepare();
  const cudaStream_t stream = MakeStream();
  Launch(kKernels[0], stream, static_cast<char*>(data) + 8);
  cudaStreamSynchronize(stream);
  std::_Exit(0);
}
void Nothing() {}
void EnablePeer() { cudaDeviceEnablePeerAccess(1, 0); }
void OpenPool() {
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 1);
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = 0;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  cudaMemPoolSetAccess(pool, &access, 1);
}

TEST_F(ImplicitTest, EachKindOfMemoryHasItsOwnAccess) {
  const auto refused = testing::ExitedWithCode(67), used = testing::ExitedWithCode(0);
  EXPECT_EXIT(UsePeersMemory(true, Nothing), refused, "the pool of another GPU's memory");
  EXPECT_EXIT(UsePeersMemory(true, EnablePeer), refused, "the pool of another GPU's memory");
  EXPECT_EXIT(UsePeersMemory(true, OpenPool), used, "");
  EXPECT_EXIT(UsePeersMemory(false, Nothing), refused, "has no access to memory of a peer");
  EXPECT_EXIT(UsePeersMemory(false, OpenPool), refused, "has no access to memory of a peer");
  EXPECT_EXIT(UsePeersMemory(false, EnablePeer), used, "");
}

TEST_F(ImplicitTest, PeersAreEnabledOnce) {
  const auto program = [] {
    cudaSetDevice(0);
    const std::vector<cudaError_t> seen = {
        cudaDeviceEnablePeerAccess(1, 0), cudaDeviceEnablePeerAccess(1, 0),
        cudaDeviceEnablePeerAccess(0, 0), cudaDeviceEnablePeerAccess(1, 1)};
    const std::vector<cudaError_t> expected = {cudaSuccess, cudaErrorPeerAccessAlreadyEnabled,
                                               cudaErrorInvalidDevice, cudaErrorInvalidValue};
    std::_Exit(seen == expected ? 0 : 1);
  };
  EXPECT_EXIT(program(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dtensor
