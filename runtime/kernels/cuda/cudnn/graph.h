// A graph of operations for cuDNN, and the plan that it makes of one: kernels, chosen and compiled.
//
// Tensors have four dimensions and strides, in elements. One is in memory, whose address a run
// says; or virtual: it is never in memory, or only in cuDNN's workspace; or a scalar, an f32 of
// the host that is read when a run is launched. cuDNN recognizes some graphs as a whole and has
// fused kernels for them, so the order in which operations are added matters.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_GRAPH_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/cuda/cudnn/descriptor.h"

namespace dtensor::kernels::cuda {

using Dims4 = std::array<int64_t, 4>;
Dims4 RowMajor(const Dims4& dims);

// Requires: a type that tensors of operators have here: f32, f16, bf16.
cudnnDataType_t CudnnType(DType dtype);

// Made of a graph; runs of it are launched by one thread at a time.
struct GraphPlan {
  Descriptor engine, plan;
  int64_t workspace_bytes = 0;

  // Launches it on the handle's stream. `pointers`: of each tensor in memory and each scalar, its
  // id and address; `workspace`, 256-byte aligned, is this run's alone until it has ended.
  absl::Status Run(cudnnHandle_t handle, absl::Span<const std::pair<int64_t, void*>> pointers,
                   void* workspace) const;
};

class Graph {
 public:
  // A tensor of this graph.
  struct Node {
    int index = -1;
  };

  // Ids are the caller's: different, from 1 to 99.
  Node Memory(int64_t id, DType dtype, const Dims4& dims, const Dims4& strides);
  Node Scalar(int64_t id);
  Node Virtual(cudnnDataType_t type, const Dims4& dims, const Dims4& strides);
  Node Virtual(cudnnDataType_t type, const Dims4& dims) {
    return Virtual(type, dims, RowMajor(dims));
  }

  // c = a b, of the last two dimensions. Heads of b, the second dimension, may be fewer: each goes
  // with as many of a's, one after the other.
  void Multiply(Node a, Node b, Node c);
  // y = f(x), or f(x, b); with `chosen_by`, x where that is true, else b. A size of 1 is broadcast.
  void Map(cudnnPointwiseMode_t f, Node x, Node y);
  void Map(cudnnPointwiseMode_t f, Node x, Node b, Node y);
  void Select(Node x, Node b, Node chosen_by, Node y);
  // Each element's index along a dimension.
  void Index(Node x, int64_t dimension, Node y);
  // Along the dimensions in which y has less: to 1, or, of heads, in groups of adjacent ones.
  void Reduce(cudnnReduceTensorOp_t f, Node x, Node y);
  // The same memory with other dimensions and strides, in y's type.
  void Reinterpret(Node x, Node y);

  // cuDNN's first choice that it can make. May take long: it compiles. The graph is used up.
  // Errors, with cuDNN's words: kUnimplemented where it has no kernels for it; kResourceExhausted;
  // else kInternal, of anything that failed from the first node on, the last engine among it.
  absl::StatusOr<GraphPlan> MakePlan(cudnnHandle_t handle) &&;

 private:
  Node AddTensor(int64_t id, cudnnDataType_t type, const Dims4& dims, const Dims4& strides,
                 int flag);
  // An operation of a kind: its own descriptor, if `own` has one, and tensors by attributes.
  using Tensors = std::initializer_list<std::pair<cudnnBackendAttributeName_t, Node>>;
  void AddOperation(cudnnBackendDescriptorType_t kind, cudnnBackendAttributeName_t own_name,
                    Descriptor own, Tensors tensors);
  void AddMap(cudnnPointwiseMode_t f, int64_t dimension, Tensors tensors);
  // Keeps the first error.
  bool Keeps(const absl::Status& status);

  absl::Status status_;
  std::vector<Descriptor> tensors_, owned_, operations_;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_GRAPH_H_
