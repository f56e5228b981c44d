// How the fake cuDNN computes a graph: one operation after the other, on the host.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/cudnn.h"
#include "dtensor/tools/cuda/fake/fake.h"

namespace dtensor::fake_cuda {
namespace {

using Values = std::vector<float>;

int64_t SizeOf(cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF ? 2 : 4;
}

float Get(cudnnDataType_t type, const void* data, int64_t i) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case CUDNN_DATA_HALF:
      return __half2float(static_cast<const __half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}
void Put(cudnnDataType_t type, void* data, int64_t i, float value) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(value);
      break;
    case CUDNN_DATA_HALF:
      static_cast<__half*>(data)[i] = __float2half(value);
      break;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

// Calls fn(element, offset in memory), in row-major order.
template <typename Fn>
void ForEach(const CudnnTensor& x, Fn fn) {
  int64_t element = 0;
  for (int64_t i = 0; i < x.dims[0]; ++i) {
    for (int64_t j = 0; j < x.dims[1]; ++j) {
      for (int64_t k = 0; k < x.dims[2]; ++k) {
        int64_t offset = i * x.strides[0] + j * x.strides[1] + k * x.strides[2];
        for (int64_t l = 0; l < x.dims[3]; ++l, offset += x.strides[3]) fn(element++, offset);
      }
    }
  }
}

float Apply(int mode, float x, float b) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    default:
      Refuse("cudnnBackendExecute", "a map that is not faked");
  }
}

class Computation {
 public:
  Computation(const std::map<int64_t, void*>& memory, const std::map<int64_t, float>& scalars)
      : memory_(memory), scalars_(scalars) {}

  void Compute(const CudnnOperation& op) {
    switch (op.kind) {
      case CudnnOperation::Kind::kProduct:
        return Multiply(op);
      case CudnnOperation::Kind::kReduction:
        return Reduce(op);
      case CudnnOperation::Kind::kReshape:
        return Reshape(op);
      case CudnnOperation::Kind::kMap:
        return Map(op);
    }
  }

 private:
  // In row-major order.
  Values Read(const CudnnTensor& x) const {
    if (x.is_scalar) return {scalars_.at(x.id)};
    if (x.is_virtual) return virtual_.at(x.id);
    Values values(x.elements());
    const void* const data = memory_.at(x.id);
    ForEach(x, [&](int64_t i, int64_t offset) { values[i] = Get(x.type, data, offset); });
    return values;
  }
  void Write(const CudnnTensor& y, Values values) {
    if (!y.is_virtual) {
      void* const data = memory_.at(y.id);
      ForEach(y, [&](int64_t i, int64_t offset) { Put(y.type, data, offset, values[i]); });
      return;
    }
    for (float& value : values) {
      float rounded = 0;
      Put(y.type, &rounded, 0, value);
      value = Get(y.type, &rounded, 0);
    }
    virtual_[y.id] = std::move(values);
  }

  void Map(const CudnnOperation& op) {
    const Values x = Read(op.x), b = op.has_b ? Read(op.b) : Values();
    const Values choice = op.has_choice ? Read(op.chosen_by) : Values();
    Values y(op.y.elements());
    int64_t i = 0;
    for (Dims4 at = {}; at[0] < op.y.dims[0]; ++at[0]) {
      for (at[1] = 0; at[1] < op.y.dims[1]; ++at[1]) {
        for (at[2] = 0; at[2] < op.y.dims[2]; ++at[2]) {
          for (at[3] = 0; at[3] < op.y.dims[3]; ++at[3], ++i) {
            const float value = x[At(op.x, at)], other = op.has_b ? b[At(op.b, at)] : 0;
            y[i] = op.mode == CUDNN_POINTWISE_GEN_INDEX ? static_cast<float>(at[op.dimension])
                   : op.has_choice ? (choice[At(op.chosen_by, at)] != 0 ? value : other)
                                   : Apply(op.mode, value, other);
          }
        }
      }
    }
    Write(op.y, std::move(y));
  }
  // The element that is broadcast there.
  static int64_t At(const CudnnTensor& x, const Dims4& at) {
    int64_t element = 0;
    for (int d = 0; d < 4; ++d) element = element * x.dims[d] + (x.dims[d] == 1 ? 0 : at[d]);
    return element;
  }

  void Multiply(const CudnnOperation& op) {
    const Values a = Read(op.x), b = Read(op.b);
    const int64_t heads = op.y.dims[1], m = op.y.dims[2], n = op.y.dims[3], k = op.x.dims[3];
    const int64_t group = heads / op.b.dims[1];
    Values y(op.y.elements());
    for (int64_t z = 0; z < op.y.dims[0] * heads; ++z) {
      const int64_t b_head = z / heads * op.b.dims[1] + z % heads / group;
      for (int64_t i = 0; i < m; ++i) {
        float* const row = y.data() + (z * m + i) * n;
        for (int64_t j = 0; j < k; ++j) {
          const float factor = a[(z * m + i) * k + j];
          const float* const of_b = b.data() + (b_head * k + j) * n;
          for (int64_t l = 0; l < n; ++l) row[l] += factor * of_b[l];
        }
      }
    }
    Write(op.y, std::move(y));
  }

  void Reduce(const CudnnOperation& op) {
    const bool is_sum = op.mode == CUDNN_REDUCE_TENSOR_ADD;
    const Values x = Read(op.x);
    Values y(op.y.elements(), is_sum ? 0 : -INFINITY);
    int64_t i = 0;
    for (Dims4 at = {}; at[0] < op.x.dims[0]; ++at[0]) {
      for (at[1] = 0; at[1] < op.x.dims[1]; ++at[1]) {
        for (at[2] = 0; at[2] < op.x.dims[2]; ++at[2]) {
          for (at[3] = 0; at[3] < op.x.dims[3]; ++at[3], ++i) {
            int64_t to = 0;
            for (int d = 0; d < 4; ++d) {
              to = to * op.y.dims[d] + at[d] / (op.x.dims[d] / op.y.dims[d]);
            }
            y[to] = is_sum ? y[to] + x[i] : (x[i] > y[to] || std::isnan(x[i])) ? x[i] : y[to];
          }
        }
      }
    }
    Write(op.y, std::move(y));
  }

  void Reshape(const CudnnOperation& op) {
    const Values x = Read(op.x);
    Values in_memory(std::max(op.x.extent(), op.y.extent())), y(op.y.elements());
    ForEach(op.x, [&](int64_t i, int64_t offset) { in_memory[offset] = x[i]; });
    ForEach(op.y, [&](int64_t i, int64_t offset) { y[i] = in_memory[offset]; });
    Write(op.y, std::move(y));
  }

  const std::map<int64_t, void*>& memory_;
  const std::map<int64_t, float>& scalars_;
  std::map<int64_t, Values> virtual_;
};

}  // namespace

int64_t CudnnTensor::extent() const {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) last += (dims[d] - 1) * strides[d];
  return last + 1;
}
int64_t CudnnTensor::bytes() const { return extent() * SizeOf(type); }

std::map<int64_t, CudnnTensor> CudnnGraph::Inputs() const {
  std::map<int64_t, CudnnTensor> inputs;
  std::set<int64_t> results;
  for (const CudnnOperation& op : operations) {
    const std::pair<bool, const CudnnTensor*> read[] = {
        {true, &op.x}, {op.has_b, &op.b}, {op.has_choice, &op.chosen_by}};
    for (const auto& [is_there, x] : read) {
      if (is_there && results.count(x->id) == 0) inputs[x->id] = *x;
    }
    results.insert(op.y.id);
  }
  return inputs;
}
std::map<int64_t, CudnnTensor> CudnnGraph::Results() const {
  std::map<int64_t, CudnnTensor> results;
  for (const CudnnOperation& op : operations) {
    if (!op.y.is_virtual) results[op.y.id] = op.y;
  }
  return results;
}

void ComputeCudnn(const CudnnGraph& graph, const std::map<int64_t, void*>& memory,
                  const std::map<int64_t, float>& scalars) {
  Computation computation(memory, scalars);
  for (const CudnnOperation& op : graph.operations) computation.Compute(op);
}

}  // namespace dtensor::fake_cuda
