// What the fakes do not let pass: each case is a program's mistake, planted.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

using testing::ExitedWithCode;

constexpr int kRefused = 67;  // fake.h
constexpr size_t kMuch = size_t{64} << 20;

void MakePool(cudaMemLocationType where) {
  cudaMemPool_t pool;
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = where;
  cudaMemPoolCreate(&pool, &props);
}

struct Gpu {
  Gpu() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  void* Allocate(size_t bytes) {
    void* data = nullptr;
    cudaMallocAsync(&data, bytes, stream);
    return data;
  }
  void Finish() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  cudaStream_t stream = nullptr;
};

cudaEvent_t MakeEvent() {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  return event;
}

struct Product {
  int offset = 0;                // of an operand's address, in elements
  bool other_algorithm = false;  // for a product with another layout
  bool host_operand = false;
  int thread_gpu = 0;
};

// [1 x 2] by [2 x 1] in bf16.
void Multiply(const Product& product) {
  Gpu gpu;
  cublasLtHandle_t handle;
  cublasLtCreate(&handle);
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulPreferenceInit(&preference);
  cublasLtMatrixLayoutOpaque_t row, column, one;
  cublasLtMatrixLayoutInit(&row, CUDA_R_16BF, 1, 2, product.other_algorithm ? 2 : 1);
  cublasLtMatrixLayoutInit(&column, CUDA_R_16BF, 2, 1, 2);
  cublasLtMatrixLayoutInit(&one, CUDA_R_16BF, 1, 1, 1);
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  cublasLtMatmulAlgoGetHeuristic(handle, &operation, &row, &column, &one, &one, &preference, 1,
                                 &best, &found);
  cublasLtMatrixLayoutInit(&row, CUDA_R_16BF, 1, 2, 1);
  auto* const a = static_cast<uint16_t*>(gpu.Allocate(64));
  void* const b = gpu.Allocate(64);
  void* const c = gpu.Allocate(64);
  cudaMemsetAsync(a, 0, 64, gpu.stream);
  cudaMemsetAsync(b, 0, 64, gpu.stream);
  alignas(256) static uint16_t host[32] = {};
  const float factor = 1, none = 0;
  cudaSetDevice(product.thread_gpu);
  cublasLtMatmul(handle, &operation, &factor, product.host_operand ? host : a + product.offset,
                 &row, b, &column, &none, c, &one, c, &one, &best.algo, nullptr, 0, gpu.stream);
  cudaSetDevice(0);
  cudaStreamSynchronize(gpu.stream);
  for (void* data : {static_cast<void*>(a), b, c}) cudaFreeAsync(data, gpu.stream);
  cublasLtDestroy(handle);
  gpu.Finish();
}

class FakeRefusalsTest : public testing::Test {
 protected:
  // A stream is a thread: a process that is forked would have none.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// A case for each: what a program does, and what it is told.
struct Mistake {
  const char* name;
  void (*program)();
  const char* refusal;
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

const Mistake kMistakes[] = {
    {"MemoryIsFreedTwice",
     [] {
       Gpu gpu;
       void* const data = gpu.Allocate(16);
       cudaFreeAsync(data, gpu.stream);
       cudaFreeAsync(data, gpu.stream);
     },
     "cudaFreeAsync: no such memory"},
    {"MemoryIsNotFreed",
     [] {
       Gpu gpu;
       gpu.Allocate(16);
       gpu.Finish();
     },
     "memory was not freed"},
    {"PageLockedMemoryIsNotFreed",
     [] {
       void* data;
       cudaMallocHost(&data, 16);
     },
     "memory was not freed"},
    {"PageLockedMemoryIsFreedTwice",
     [] {
       void* data;
       cudaMallocHost(&data, 16);
       cudaFreeHost(data);
       cudaFreeHost(data);
     },
     "cudaFreeHost: no such memory"},
    {"PageLockedMemoryIsFreedAsAGpus",
     [] {
       void* data;
       cudaMallocHost(&data, 16);
       cudaFreeAsync(data, Gpu().stream);
     },
     "cudaFreeAsync: no such memory"},
    {"PageLockedMemoryIsFilled",
     [] {
       void* data;
       cudaMallocHost(&data, 16);
       cudaMemsetAsync(data, 0, 16, Gpu().stream);
     },
     "cudaMemsetAsync: it is not memory of a GPU"},
    {"ACopyReachesBeyondTheEndOfPageLockedMemory",
     [] {
       void* data;
       cudaMallocHost(&data, 16);
       Gpu gpu;
       cudaMemcpyAsync(gpu.Allocate(17), data, 17, cudaMemcpyDefault, gpu.stream);
     },
     "cudaMemcpyAsync: it reaches beyond the end"},
    {"AFillReachesBeyondTheEnd",
     [] {
       Gpu gpu;
       cudaMemsetAsync(static_cast<char*>(gpu.Allocate(16)) + 8, 0, 9, gpu.stream);
     },
     "cudaMemsetAsync: it reaches beyond the end"},
    {"ACopyReachesBeyondTheEnd",
     [] {
       Gpu gpu;
       char values[17];
       cudaMemcpyAsync(values, gpu.Allocate(16), 17, cudaMemcpyDefault, gpu.stream);
     },
     "cudaMemcpyAsync: it reaches beyond the end"},
    {"MemoryOfTheHostIsFilled",
     [] {
       Gpu gpu;
       static char values[16];
       cudaMemsetAsync(values, 0, 16, gpu.stream);
     },
     "cudaMemsetAsync: it is not memory of a GPU"},
    {"MemoryOfAnotherGpuIsFilled",
     [] {
       Gpu gpu;
       cudaSetDevice(1);
       Gpu other;
       cudaMemsetAsync(gpu.Allocate(16), 0, 16, other.stream);
     },
     "cudaMemsetAsync: it is memory of another GPU"},
    {"ACopySaysItsDirection",
     [] {
       Gpu gpu;
       char value;
       cudaMemcpyAsync(&value, gpu.Allocate(1), 1, cudaMemcpyDeviceToHost, gpu.stream);
     },
     "only cudaMemcpyDefault"},
    {"AStreamIsUsedAfterItsEnd",
     [] {
       Gpu gpu;
       cudaStreamDestroy(gpu.stream);
       const Gpu another;
       cudaStreamSynchronize(gpu.stream);
     },
     "cudaStreamSynchronize: there is no such stream"},
    {"AStreamIsDestroyedTwice",
     [] {
       Gpu gpu;
       cudaStreamDestroy(gpu.stream);
       const Gpu another;
       cudaStreamDestroy(gpu.stream);
     },
     "cudaStreamDestroy: there is no such stream"},
    {"AStreamIsForgotten", [] { Gpu gpu; }, "not destroyed: stream"},
    {"AStreamWaitsForTheDefaultOne",
     [] {
       cudaStream_t stream;
       cudaStreamCreateWithFlags(&stream, cudaStreamDefault);
     },
     "only cudaStreamNonBlocking"},
    {"AnEventIsUsedAfterItsEnd",
     [] {
       const cudaEvent_t event = MakeEvent();
       cudaEventDestroy(event);
       MakeEvent();
       cudaEventSynchronize(event);
     },
     "cudaEventSynchronize: there is no such event"},
    {"AnEventIsDestroyedTwice",
     [] {
       const cudaEvent_t event = MakeEvent();
       cudaEventDestroy(event);
       MakeEvent();
       cudaEventDestroy(event);
     },
     "cudaEventDestroy: there is no such event"},
    {"AnEventIsForgotten", [] { MakeEvent(); }, "not destroyed: event"},
    {"AnEventHasATime",
     [] {
       cudaEvent_t event;
       cudaEventCreateWithFlags(&event, cudaEventDefault);
     },
     "only cudaEventDisableTiming"},
    {"APoolHasAnotherAttribute",
     [] {
       cudaMemPool_t pool;
       cudaDeviceGetDefaultMemPool(&pool, 0);
       uint64_t value = 0;
       cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &value);
     },
     "only cudaMemPoolAttrReleaseThreshold"},
    {"APoolIsOfTheHost", [] { MakePool(cudaMemLocationTypeHost); },
     "only pools of a GPU's own memory"},
    {"APoolIsOfAnotherGpu",
     [] {
       cudaMemPool_t pool;
       cudaDeviceGetDefaultMemPool(&pool, 1);
       void* data;
       cudaMallocFromPoolAsync(&data, 16, pool, Gpu().stream);
     },
     "only a pool of the stream's own GPU"},
    {"APoolIsNotDestroyed",
     [] {
       MakePool(cudaMemLocationTypeDevice);
       std::exit(0);
     },
     "a pool was not destroyed"},
    {"AnOperandIsLessAlignedThanWasSaid", [] { Multiply({.offset = 1}); },
     "less aligned than the algorithm"},
    {"AnAlgorithmIsOfAnotherProduct", [] { Multiply({.other_algorithm = true}); },
     "chosen for another product"},
    {"AnOperandIsOfTheHost", [] { Multiply({.host_operand = true}); },
     "cublasLtMatmul: it is not memory of a GPU"},
    {"AThreadWithoutAGpuAsksAfterAnEvent",
     [] {
       cudaSetDevice(1);
       const cudaEvent_t event = MakeEvent();
       std::thread([&] { cudaEventQuery(event); }).join();
     },
     "cudaEventQuery: it is another GPU's, and this thread has chosen none"},
    {"AThreadWithoutAGpuCopies",
     [] {
       cudaSetDevice(1);
       Gpu gpu;
       std::thread([&] { gpu.Allocate(16); }).join();
     },
     "a launch: it is another GPU's, and this thread has chosen none"},
    {"TheThreadIsAtAnotherGpu", [] { Multiply({.thread_gpu = 1}); }, "are not of one GPU"},
};

class MistakeTest : public FakeRefusalsTest, public testing::WithParamInterface<Mistake> {};

TEST_P(MistakeTest, IsRefused) {
  const auto program = [] {
    GetParam().program();
    std::exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(kRefused), GetParam().refusal);
}

INSTANTIATE_TEST_SUITE_P(Mistakes, MistakeTest, testing::ValuesIn(kMistakes),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(FakeRefusalsTest, AProductWithoutAMistakeIsNone) {
  const auto program = [] {
    Multiply({});
    std::exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(0), "");
}

TEST_F(FakeRefusalsTest, AnEventOfAnotherGpuIsRecorded) {
  Gpu gpu;
  cudaSetDevice(1);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  EXPECT_EQ(cudaEventRecord(event, gpu.stream), cudaErrorInvalidResourceHandle);
  cudaSetDevice(0);
  cudaGetLastError();
  cudaEventDestroy(event);
  gpu.Finish();
}

// TSan ends a program that it found at fault with 66, ASan with 1.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr char kNobodyWaits[] = "data race|heap-use-after-free";
#endif

#if defined(__SANITIZE_THREAD__)
TEST_F(FakeRefusalsTest, AStreamReadsWithoutWaiting) {
  const auto program = [] {
    Gpu writer, reader;
    void* const data = writer.Allocate(kMuch);
    cudaMemsetAsync(data, 1, kMuch, writer.stream);
    char seen;
    cudaMemcpyAsync(&seen, data, 1, cudaMemcpyDefault, reader.stream);
    reader.Finish();
    cudaFreeAsync(data, writer.stream);
    writer.Finish();
    std::exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(66), kNobodyWaits);
}

TEST_F(FakeRefusalsTest, TheHostReadsWithoutWaiting) {
  const auto program = [] {
    Gpu gpu;
    auto* const data = static_cast<volatile char*>(gpu.Allocate(kMuch));
    const char seen = *data;
    cudaFreeAsync(const_cast<char*>(data), gpu.stream);
    gpu.Finish();
    std::exit(seen == 2);
  };
  EXPECT_EXIT(program(), ExitedWithCode(66), kNobodyWaits);
}
#endif

#if defined(__SANITIZE_ADDRESS__)
TEST_F(FakeRefusalsTest, AnotherStreamReadsWhatWasFreed) {
  const auto program = [] {
    Gpu owner, reader;
    void* const data = owner.Allocate(64);
    cudaFreeAsync(data, owner.stream);
    cudaStreamSynchronize(owner.stream);
    char seen;
    cudaMemcpyAsync(&seen, data, 1, cudaMemcpyDefault, reader.stream);
    reader.Finish();
    owner.Finish();
    std::exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(1), kNobodyWaits);
}
#endif

}  // namespace
}  // namespace dtensor
