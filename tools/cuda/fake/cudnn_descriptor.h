// Descriptors of the fake cuDNN: attributes of the kinds that our own code uses, held against what
// each kind needs when it is finalized.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_CUDNN_DESCRIPTOR_H_
#define DTENSOR_TOOLS_CUDA_FAKE_CUDNN_DESCRIPTOR_H_

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "dtensor/tools/cuda/fake/cudnn.h"

namespace dtensor::fake_cuda {

// A descriptor that is used refers to none that it was made of: what they said was copied.
class CudnnDescriptor {
 public:
  // Refuses kinds that are not faked, and descriptors that are none, or no more.
  static cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t kind);
  static void Destroy(cudnnBackendDescriptor_t descriptor);
  static CudnnDescriptor& Of(cudnnBackendDescriptor_t descriptor);

  cudnnStatus_t Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t count, const void* values);
  cudnnStatus_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t most, int64_t* count, void* values);
  cudnnStatus_t Finalize();

  bool finalized() const { return finalized_; }
  const CudnnGraph& graph() const { return graph_; }  // of graphs, engines' configurations, plans

  // Of an attribute: none if it was not set. Requires: that it holds values of T's size.
  template <typename T>
  std::vector<T> Values(cudnnBackendAttributeName_t name) const {
    const auto found = attributes_.find(name);
    if (found == attributes_.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  struct Attribute {
    cudnnBackendAttributeType_t type;
    std::vector<unsigned char> bytes;
  };

  explicit CudnnDescriptor(cudnnBackendDescriptorType_t kind) : kind_(kind) {}

  template <typename T>
  bool Read(cudnnBackendAttributeName_t name, T& value) const;
  bool ReadDims(cudnnBackendAttributeName_t name, Dims4& dims) const;
  // The finalized descriptor that an attribute names; null where it was not set.
  const CudnnDescriptor* Child(cudnnBackendAttributeName_t name) const;
  bool ReadTensor(cudnnBackendAttributeName_t name, CudnnTensor& tensor) const;

  cudnnStatus_t FinalizeTensor();
  cudnnStatus_t FinalizeProduct();
  cudnnStatus_t FinalizeMap();
  cudnnStatus_t FinalizeReduction();
  cudnnStatus_t FinalizeReshape();
  cudnnStatus_t FinalizeGraph();
  cudnnStatus_t FinalizeFromGraph(cudnnBackendAttributeName_t name);
  cudnnStatus_t FinalizePack();
  cudnnStatus_t GetEngines(int64_t most, int64_t* count, void* values) const;

  const cudnnBackendDescriptorType_t kind_;
  bool finalized_ = false;
  std::map<int, Attribute> attributes_;
  CudnnTensor tensor_;
  CudnnOperation operation_;
  CudnnGraph graph_;
};

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_CUDNN_DESCRIPTOR_H_
