// Ranks of an NCCL communicator as threads, with a GPU each.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_NCCL_TESTING_H_
#define DTENSOR_TOOLS_CUDA_FAKE_NCCL_TESTING_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace dtensor {

// How soon every rank reports an error that the fake of NCCL finds, if nothing slows it down.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::seconds kNcclErrorsCome(20);
#else
inline constexpr std::chrono::seconds kNcclErrorsCome(2);
#endif

struct NcclRank {
  int rank = 0, size = 0, gpu = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  // Makes the communicator, which does not block. What it says in the end.
  ncclResult_t Init(const ncclUniqueId& id) {
    cudaSetDevice(gpu);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    return begun == ncclInProgress || begun == ncclSuccess ? Await() : begun;
  }
  // The final result of the last call.
  ncclResult_t Await() const {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return state;
  }
  // An error that comes some time later; ncclSuccess if none does within 20 s.
  ncclResult_t AwaitError() const {
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < 20000 && (state == ncclSuccess || state == ncclInProgress); ++i) {
      ncclCommGetAsyncError(comm, &state);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state;
  }
  std::string Error() const { return ncclGetLastError(comm); }
  ncclResult_t End(ncclResult_t result) const {
    return result == ncclInProgress || result == ncclSuccess ? Await() : result;
  }

  float* Filled(const std::vector<float>& values) const {
    void* data = nullptr;
    cudaMallocAsync(&data, (values.size() + 1) * sizeof(float), stream);
    cudaMemcpyAsync(data, values.data(), values.size() * sizeof(float), cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);  // `values` is a temporary
    return static_cast<float*>(data);
  }
  std::vector<float> Values(const float* data, size_t count) const {
    std::vector<float> values(count);
    cudaMemcpyAsync(values.data(), data, count * sizeof(float), cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    return values;
  }
  void Free(float* data) const { cudaFreeAsync(data, stream); }

  // Ends as a program does when it is done.
  ncclResult_t Destroy() const {
    cudaStreamSynchronize(stream);
    const ncclResult_t result = End(ncclCommFinalize(comm));
    ncclCommDestroy(comm);
    cudaStreamDestroy(stream);
    return result;
  }
  void Abort() const {
    ncclCommAbort(comm);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
};

// Runs fn on threads; the communicator already exists, and fn destroys it.
inline void RunNcclRanks(
    int size, const std::function<void(NcclRank&)>& fn,
    const std::function<int(int)>& gpu_of = [](int rank) { return rank; }) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      NcclRank rank{.rank = i, .size = size, .gpu = gpu_of(i)};
      const ncclResult_t made = rank.Init(id);
      if (made == ncclSuccess) return fn(rank);
      ADD_FAILURE() << "rank " << i << ": no communicator: " << ncclGetErrorString(made);
      rank.Abort();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_CUDA_FAKE_NCCL_TESTING_H_
