// What a program has asked the fake cuBLASLt for: for tests of what it does not ask for again.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_CUBLASLT_COUNTS_H_
#define DTENSOR_TOOLS_CUDA_FAKE_CUBLASLT_COUNTS_H_

#include <cstdint>

namespace dtensor::fake_cuda {

// How often the calling thread has called cublasLtMatmulAlgoGetHeuristic.
int64_t HeuristicsAsked();

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_CUBLASLT_COUNTS_H_
