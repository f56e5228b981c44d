// For tests of cuDNN, the fake and the real one: one head's attention in bf16, as a graph.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_CUDNN_TESTING_H_
#define DTENSOR_TOOLS_CUDA_FAKE_CUDNN_TESTING_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "dtensor/runtime/kernels/cuda/cudnn/attention_graphs.h"
#include "dtensor/runtime/kernels/cuda/cudnn/graph.h"

namespace dtensor::kernels::cuda {

inline constexpr int64_t kTestRows = 64, kTestFeatures = 16;
inline constexpr int64_t kTestElements = kTestRows * kTestFeatures;

inline AttentionKey TestKey(bool backward) {
  AttentionKey key;
  key.backward = backward;
  key.causal = true;
  key.batch = key.q_heads = key.kv_heads = 1;
  key.q_rows = key.keys = kTestRows;
  key.dim = kTestFeatures;
  key.q = key.k = key.v = key.o = {kTestElements, kTestFeatures, kTestFeatures};
  key.dout = key.dq = key.dk = key.dv = key.q;
  return key;
}

// Memory of a run, in the order of `stream`, and what it is told.
class TestRun {
 public:
  explicit TestRun(cudaStream_t stream) : stream_(stream) {
    for (int64_t id = kIdQ; id <= kIdDv; ++id) Add(id, Allocate(kTestElements * sizeof(float)));
    Add(kIdScale, &scale);
    Add(kIdHidden, &hidden_);
    Add(kIdOne, &one_);
  }
  ~TestRun() {
    for (void* const data : allocated_) cudaFreeAsync(data, stream_);
  }

  void* Allocate(size_t bytes) {
    void* data = nullptr;
    cudaMallocAsync(&data, bytes, stream_);
    allocated_.push_back(data);
    return data;
  }
  void Fill(int64_t id, float value) {
    std::vector<uint16_t> values(kTestElements, __bfloat16_as_ushort(__float2bfloat16(value)));
    cudaMemcpyAsync(at(id), values.data(), values.size() * 2, cudaMemcpyDefault, stream_);
    cudaStreamSynchronize(stream_);
  }
  // Waits for the stream.
  std::vector<float> Values(int64_t id) {
    std::vector<uint16_t> bits(kTestElements);
    cudaMemcpyAsync(bits.data(), at(id), bits.size() * 2, cudaMemcpyDefault, stream_);
    cudaStreamSynchronize(stream_);
    std::vector<float> values;
    for (const uint16_t one : bits) values.push_back(__bfloat162float(__ushort_as_bfloat16(one)));
    return values;
  }
  std::vector<float> Statistics() {
    std::vector<float> values(kTestRows);
    cudaMemcpyAsync(values.data(), at(kIdLse), kTestRows * sizeof(float), cudaMemcpyDefault,
                    stream_);
    cudaStreamSynchronize(stream_);
    return values;
  }
  void*& at(int64_t id) {
    for (auto& [known, data] : all_) {
      if (known == id) return data;
    }
    return all_.emplace_back(id, nullptr).second;
  }
  // Of a graph in that direction.
  std::vector<std::pair<int64_t, void*>> Pointers(bool backward) {
    std::vector<std::pair<int64_t, void*>> wanted;
    for (const auto& one : all_) {
      const bool is_backwards = (one.first >= kIdDout && one.first <= kIdDv) || one.first == kIdOne;
      if (backward || !is_backwards) wanted.push_back(one);
    }
    return wanted;
  }

  float scale = 0.25f;

 private:
  void Add(int64_t id, void* data) { all_.emplace_back(id, data); }

  const cudaStream_t stream_;
  float hidden_ = -std::numeric_limits<float>::infinity(), one_ = 1;
  std::vector<void*> allocated_;
  std::vector<std::pair<int64_t, void*>> all_;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_CUDNN_TESTING_H_
