// The graphs of the fake cuDNN: what finalized descriptors describe, and how it is computed.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_CUDNN_H_
#define DTENSOR_TOOLS_CUDA_FAKE_CUDNN_H_

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dtensor::fake_cuda {

using Dims4 = std::array<int64_t, 4>;

struct CudnnTensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Dims4 dims = {}, strides = {};
  int64_t alignment = 0;  // of its address, in bytes
  bool is_virtual = false, is_scalar = false;

  int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  // To the end of the last element in memory.
  int64_t extent() const;
  int64_t bytes() const;
};

// A matrix product computes y from x and b. A map has x, and uses b and `chosen_by` if it needs
// them.
struct CudnnOperation {
  enum class Kind : uint8_t { kMap, kProduct, kReduction, kReshape };
  Kind kind = Kind::kMap;
  int mode = 0;           // cudnnPointwiseMode_t or cudnnReduceTensorOp_t
  int64_t dimension = 0;  // of an index
  bool has_b = false, has_choice = false;
  CudnnTensor x, b, chosen_by, y;
};

struct CudnnGraph {
  cudnnHandle_t handle = nullptr;
  std::vector<CudnnOperation> operations;

  // The tensors that are no result of an earlier operation, and the results that are in memory, by
  // id.
  std::map<int64_t, CudnnTensor> Inputs() const;
  std::map<int64_t, CudnnTensor> Results() const;
};

// Why cuDNN has no kernels for this graph; empty if it has. Attention is recognized by the order of
// its operations, with 16-bit operands (cudnn_patterns.cc).
std::string WhyNotSupported(const CudnnGraph& graph);
// How many bytes of workspace a plan of a supported graph asks for.
int64_t CudnnWorkspaceBytes(const CudnnGraph& graph);

// Computes it on the calling thread, each operation in f32, results rounded to their tensor's
// type. `memory`: addresses by id; `scalars`: values.
void ComputeCudnn(const CudnnGraph& graph, const std::map<int64_t, void*>& memory,
                  const std::map<int64_t, float>& scalars);

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_CUDNN_H_
