// The graph API of the fake cuDNN: descriptors, their attributes, and what is launched of a plan.
#include "dtensor/tools/cuda/fake/cudnn.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/cudnn_descriptor.h"
#include "dtensor/tools/cuda/fake/fake.h"

struct cudnnContext {
  int gpu;
  cudaStream_t stream;
};

namespace dtensor::fake_cuda {
namespace {

constexpr size_t kPoisoned = 4096;  // bytes at either end of a workspace

// What a variant pack says, held against a plan's graph.
struct Launch {
  std::map<int64_t, void*> memory;
  std::map<int64_t, float> scalars;
};

void Add(const CudnnTensor& x, void* data, int gpu, Launch& launch) {
  if (x.is_scalar) {
    std::memcpy(&launch.scalars[x.id], data, sizeof(float));
    return;
  }
  RequireOnGpu("cudnnBackendExecute", gpu, data, x.bytes());
  if (reinterpret_cast<uintptr_t>(data) % x.alignment != 0) {
    Refuse("cudnnBackendExecute", "an address is less aligned than its tensor says");
  }
  launch.memory[x.id] = data;
}

Launch LaunchOf(const CudnnGraph& graph, const CudnnDescriptor& pack, int gpu) {
  const auto ids = pack.Values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto data = pack.Values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, CudnnTensor> wanted = graph.Inputs();
  wanted.merge(graph.Results());
  Launch launch;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto found = wanted.find(ids[i]);
    if (found == wanted.end()) Refuse("cudnnBackendExecute", "an id that the graph lacks");
    Add(found->second, data[i], gpu, launch);
    wanted.erase(found);
  }
  if (!wanted.empty()) Refuse("cudnnBackendExecute", "a tensor in memory has no address");
  return launch;
}

// What cuDNN leaves there is nobody's.
void Poison(void* workspace, size_t bytes) {
  const size_t some = std::min(bytes, kPoisoned);
  std::memset(workspace, 0xFF, some);
  std::memset(static_cast<char*>(workspace) + bytes - some, 0xFF, some);
}

}  // namespace
}  // namespace dtensor::fake_cuda

using dtensor::fake_cuda::CudnnDescriptor;
using dtensor::fake_cuda::Refuse;

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED:
      return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
      return "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED";
    case CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED";
    default:
      return "CUDNN_STATUS_BAD_PARAM";
  }
}

// DTENSOR_FAKE_CUDNN=absent: only libcudnn.so itself is installed.
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  const char* const said = std::getenv("DTENSOR_FAKE_CUDNN");
  if (said != nullptr && std::strcmp(said, "absent") == 0) {
    return CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED;
  }
  *handle = new cudnnContext{dtensor::fake_cuda::CurrentGpu(), nullptr};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (dtensor::fake_cuda::GpuOf(stream) != handle->gpu) {
    Refuse("cudnnSetStream", "the handle and the stream are not of one GPU");
  }
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = CudnnDescriptor::Make(type);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  CudnnDescriptor::Destroy(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  return CudnnDescriptor::Of(descriptor).Set(name, type, count, values);
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t* count, void* values) {
  return CudnnDescriptor::Of(descriptor).Get(name, type, most, count, values);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return CudnnDescriptor::Of(descriptor).Finalize();
}

// Attributes and scalars are read before it returns; memory in the order of the handle's stream.
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  namespace fake = dtensor::fake_cuda;
  const CudnnDescriptor& of_plan = CudnnDescriptor::Of(plan);
  const CudnnDescriptor& of_pack = CudnnDescriptor::Of(pack);
  if (!of_plan.finalized() || !of_pack.finalized()) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  const fake::CudnnGraph graph = of_plan.graph();
  if (graph.handle != handle || fake::CurrentGpu() != handle->gpu) {
    Refuse("cudnnBackendExecute", "the plan, the handle and the thread are not of one GPU");
  }
  fake::Launch launch = fake::LaunchOf(graph, of_pack, handle->gpu);
  void* const workspace = of_pack.Values<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE).at(0);
  const auto bytes = static_cast<size_t>(fake::CudnnWorkspaceBytes(graph));
  fake::RequireOnGpu("cudnnBackendExecute", handle->gpu, workspace, bytes);
  fake::Enqueue(handle->stream, [graph, launch = std::move(launch), workspace, bytes] {
    fake::Poison(workspace, bytes);
    fake::ComputeCudnn(graph, launch.memory, launch.scalars);
    fake::Poison(workspace, bytes);
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
