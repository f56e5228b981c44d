// Counts calls to the fake cuBLASLt, for tests that results are cached.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_CUBLASLT_COUNTS_H_
#define DTENSOR_TOOLS_CUDA_FAKE_CUBLASLT_COUNTS_H_

#include <cstdint>

namespace dtensor::fake_cuda {

// How often the calling thread has called cublasLtMatmulAlgoGetHeuristic.
int64_t HeuristicsAsked();

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_CUBLASLT_COUNTS_H_
