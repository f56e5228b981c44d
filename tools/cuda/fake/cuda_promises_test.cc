// What our code takes CUDA's runtime and cuBLASLt to promise: the same file runs over the fakes and
// on a GPU, so that the fakes promise no more than CUDA does, nor less.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// A few milliseconds of a GPU, tens of a fake one.
constexpr size_t kMuch = size_t{256} << 20;

class CudaPromisesTest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "there is no GPU";
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    stream_ = MakeStream();
    other_ = MakeStream();
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

  static cudaStream_t MakeStream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
  }
  static cudaEvent_t MakeEvent() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
  }
  template <typename T>
  T* Allocate(size_t count) {
    void* data = nullptr;
    EXPECT_EQ(cudaMallocAsync(&data, count * sizeof(T), stream_), cudaSuccess);
    return static_cast<T*>(data);
  }
  void Fill(void* data, int value, size_t bytes, cudaStream_t stream) {
    EXPECT_EQ(cudaMemsetAsync(data, value, bytes, stream), cudaSuccess);
  }
  // Waits for `stream`.
  template <typename T>
  std::vector<T> Values(const T* data, size_t count, cudaStream_t stream) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, count * sizeof(T), cudaMemcpyDefault, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return values;
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
};

TEST_F(CudaPromisesTest, AStreamWorksInOrder) {
  auto* const data = Allocate<uint8_t>(64);
  for (int value = 0; value < 100; ++value) Fill(data, value, 64, stream_);
  EXPECT_THAT(Values(data, 64, stream_), Each(99));
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
}

TEST_F(CudaPromisesTest, FreedMemoryIsThereForWhatWasLaunchedBefore) {
  auto* const data = Allocate<uint8_t>(64);
  Fill(data, 7, 64, stream_);
  std::vector<uint8_t> seen(64);
  EXPECT_EQ(cudaMemcpyAsync(seen.data(), data, 64, cudaMemcpyDefault, stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_THAT(seen, Each(7));
}

// By the same address, in the stream's order; the host sees it when it has waited.
TEST_F(CudaPromisesTest, AGpuWritesPageLockedMemory) {
  void* words = nullptr;
  ASSERT_EQ(cudaMallocHost(&words, 64), cudaSuccess);
  std::memset(words, 1, 64);
  auto* const data = Allocate<uint8_t>(64);
  EXPECT_EQ(cudaMemcpyAsync(data, words, 64, cudaMemcpyDefault, stream_), cudaSuccess);
  EXPECT_THAT(Values(data, 64, stream_), Each(1));
  Fill(data, 2, 64, stream_);
  EXPECT_EQ(cudaMemcpyAsync(words, data, 64, cudaMemcpyDefault, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  const auto* const seen = static_cast<const uint8_t*>(words);
  EXPECT_THAT(std::vector<uint8_t>(seen, seen + 64), Each(2));
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(words), cudaSuccess);
}

TEST_F(CudaPromisesTest, AnEventOrdersStreams) {
  auto* const data = Allocate<uint8_t>(kMuch);
  const cudaEvent_t event = MakeEvent();
  for (int value = 1; value < 5; ++value) {
    Fill(data, value, kMuch, stream_);
    EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(other_, event, 0), cudaSuccess);
    EXPECT_THAT(Values(data + kMuch - 64, 64, other_), Each(value));
  }
  // The wait is for what was recorded when it was asked for; what is recorded later changes
  // nothing.
  Fill(data, 5, kMuch, stream_);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event, 0), cudaSuccess);
  std::vector<uint8_t> seen(64);
  EXPECT_EQ(cudaMemcpyAsync(seen.data(), data + kMuch - 64, 64, cudaMemcpyDefault, other_),
            cudaSuccess);
  const cudaEvent_t read = MakeEvent();
  EXPECT_EQ(cudaEventRecord(read, other_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, read, 0), cudaSuccess);
  Fill(data, 6, kMuch, stream_);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  for (const cudaEvent_t one : {event, read}) {
    EXPECT_EQ(cudaEventDestroy(one), cudaSuccess);  // which waits for nobody
  }
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
  EXPECT_THAT(seen, Each(5));
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
}

TEST_F(CudaPromisesTest, AnEventThatWasNotRecordedHasHappened) {
  const cudaEvent_t event = MakeEvent();
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

// Nowhere is it said whether that is the last error then (CUDA 13.0: no). Who asks clears it
// (cuda_status.h).
TEST_F(CudaPromisesTest, NotReadyIsNoErrorThatStays) {
  auto* const data = Allocate<uint8_t>(kMuch);
  const cudaEvent_t event = MakeEvent();
  bool seen = false;  // the host may be kept busy for longer than the GPU
  for (int tries = 0; tries < 20 && !seen; ++tries) {
    for (int i = 0; i < 10; ++i) Fill(data, i, kMuch, stream_);
    EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
    seen = cudaEventQuery(event) == cudaErrorNotReady;
  }
  EXPECT_TRUE(seen);
  const cudaError_t last = cudaGetLastError();
  EXPECT_TRUE(last == cudaErrorNotReady || last == cudaSuccess) << last;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
}

TEST_F(CudaPromisesTest, MoreMemoryThanThereIsIsAnError) {
  void* data = nullptr;
  EXPECT_EQ(cudaMallocAsync(&data, size_t{1} << 40, stream_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// cudaMallocAsync takes from the GPU's current pool, cudaMallocFromPoolAsync from the one that is
// named; what is taken stays when the pool is destroyed, and its GPU has the default one again.
TEST_F(CudaPromisesTest, MemoryIsFromTheCurrentPool) {
  cudaMemPool_t common, own;
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&common, 0), cudaSuccess);
  ASSERT_EQ(cudaMemPoolCreate(&own, &props), cudaSuccess);
  const auto used = [](cudaMemPool_t pool) {
    uint64_t bytes = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes), cudaSuccess);
    return bytes;
  };
  const uint64_t before = used(common);
  void* named = nullptr;
  ASSERT_EQ(cudaDeviceSetMemPool(0, own), cudaSuccess);
  EXPECT_EQ(cudaMallocFromPoolAsync(&named, 64, common, stream_), cudaSuccess);
  EXPECT_EQ(used(own), 0);
  EXPECT_GT(used(common), before);
  auto* const current = Allocate<uint8_t>(64);
  EXPECT_GE(used(own), 64);
  EXPECT_EQ(cudaFreeAsync(named, stream_), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(own), cudaSuccess);
  Fill(current, 3, 64, stream_);
  EXPECT_THAT(Values(current, 64, stream_), Each(3));
  EXPECT_EQ(cudaFreeAsync(current, stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(Allocate<uint8_t>(64), stream_), cudaSuccess);
}

TEST_F(CudaPromisesTest, AGpuThatIsNotThereIsAnError) {
  EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  int gpu = -1;
  EXPECT_EQ(cudaGetDevice(&gpu), cudaSuccess);
  EXPECT_EQ(gpu, 0);
}

// D = A B of 2x3 and 3x2, row-major, which cuBLASLt takes for D' = B' A'.
class CublasLtPromisesTest : public CudaPromisesTest {
 protected:
  void SetUp() override {
    CudaPromisesTest::SetUp();
    if (stream_ == nullptr) return;
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceInit(&preference_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatrixLayoutInit(&d_, CUDA_R_32F, 2, 2, 2), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatrixLayoutInit(&a_, CUDA_R_32F, 3, 2, 3), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatrixLayoutInit(&b_, CUDA_R_32F, 2, 3, 2), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    if (handle_ != nullptr) {
      EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    }
    CudaPromisesTest::TearDown();
  }
  cublasStatus_t Choose(int* found) {
    return cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &b_, &a_, &d_, &d_, &preference_, 1,
                                          &best_, found);
  }

  bool IsFound() {
    int found = 0;
    return Choose(&found) == CUBLAS_STATUS_SUCCESS && found == 1 &&
           best_.state == CUBLAS_STATUS_SUCCESS;
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatmulPreferenceOpaque_t preference_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
  cublasLtMatmulHeuristicResult_t best_;
};

TEST_F(CublasLtPromisesTest, AProduct) {
  ASSERT_TRUE(IsFound());
  EXPECT_EQ(best_.workspaceSize, 0);  // none was allowed
  auto *const a = Allocate<float>(6), *const b = Allocate<float>(6), *const d = Allocate<float>(4);
  const float host_a[] = {1, 2, 3, 4, 5, 6}, host_b[] = {1, 0, 0, 1, 1, 1}, one = 1, zero = 0;
  EXPECT_EQ(cudaMemcpyAsync(a, host_a, sizeof(host_a), cudaMemcpyDefault, stream_), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(b, host_b, sizeof(host_b), cudaMemcpyDefault, stream_), cudaSuccess);
  // With a factor of 0, what was there before counts for nothing, NaN or not.
  EXPECT_EQ(cublasLtMatmul(handle_, &operation_, &one, b, &b_, a, &a_, &zero, d, &d_, d, &d_,
                           &best_.algo, nullptr, 0, stream_),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(Values(d, 4, stream_), ElementsAre(4, 5, 10, 11));
  for (float* data : {a, b, d}) EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
}

TEST_F(CublasLtPromisesTest, MatricesThatDoNotFitHaveNoAlgorithm) {
  ASSERT_EQ(cublasLtMatrixLayoutInit(&a_, CUDA_R_32F, 4, 2, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_FALSE(IsFound());
}

TEST_F(CublasLtPromisesTest, TypesThatDoNotGoTogetherHaveNoAlgorithm) {
  ASSERT_EQ(cublasLtMatrixLayoutInit(&a_, CUDA_R_16BF, 3, 2, 3), CUBLAS_STATUS_SUCCESS);
  EXPECT_FALSE(IsFound());
}

}  // namespace
}  // namespace dtensor
