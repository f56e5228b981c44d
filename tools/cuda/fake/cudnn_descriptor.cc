#include "dtensor/tools/cuda/fake/cudnn_descriptor.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/fake.h"

namespace dtensor::fake_cuda {
namespace {

// Descriptors that there are, of all threads.
std::mutex mutex;
std::set<const void*>& Alive() {
  static auto* const alive = new std::set<const void*>;
  return *alive;
}

struct Rule {
  cudnnBackendDescriptorType_t kind;
  int name;
  cudnnBackendAttributeType_t type;
};
// Each attribute that may be set: of which kind, and its type. CUDA's own are more.
constexpr Rule kRules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1,
     CUDNN_TYPE_FLOAT},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2,
     CUDNN_TYPE_FLOAT},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR},
};

bool IsKind(cudnnBackendDescriptorType_t kind) {
  return kind == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR ||
         std::any_of(std::begin(kRules), std::end(kRules),
                     [&](const Rule& rule) { return rule.kind == kind; });
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // f32 and enumerators
  }
}

// Whether `small` is broadcast to `large`.
bool Broadcasts(const CudnnTensor& small, const CudnnTensor& large) {
  for (int d = 0; d < 4; ++d) {
    if (small.dims[d] != 1 && small.dims[d] != large.dims[d]) return false;
  }
  return true;
}

}  // namespace

cudnnBackendDescriptor_t CudnnDescriptor::Make(cudnnBackendDescriptorType_t kind) {
  if (!IsKind(kind)) Refuse("cudnnBackendCreateDescriptor", "a kind that is not faked");
  auto* const made = new CudnnDescriptor(kind);
  const std::lock_guard lock(mutex);
  Alive().insert(made);
  return made;
}

void CudnnDescriptor::Destroy(cudnnBackendDescriptor_t descriptor) {
  const CudnnDescriptor* const old = &Of(descriptor);
  {
    const std::lock_guard lock(mutex);
    Alive().erase(old);
  }
  delete old;
}

CudnnDescriptor& CudnnDescriptor::Of(cudnnBackendDescriptor_t descriptor) {
  const std::lock_guard lock(mutex);
  if (Alive().count(descriptor) == 0) Refuse("cuDNN", "no such descriptor");
  return *static_cast<CudnnDescriptor*>(descriptor);
}

cudnnStatus_t CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t count,
                                   const void* values) {
  const auto rule = std::find_if(std::begin(kRules), std::end(kRules),
                                 [&](const Rule& r) { return r.kind == kind_ && r.name == name; });
  if (finalized_ || rule == std::end(kRules) || count < 1) return CUDNN_STATUS_BAD_PARAM;
  if (rule->type != type) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  const auto* const bytes = static_cast<const unsigned char*>(values);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      Of(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
    }
  }
  attributes_[name] = {type, {bytes, bytes + count * SizeOf(type)}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CudnnDescriptor::Get(cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t most, int64_t* count,
                                   void* values) {
  if (!finalized_) return CUDNN_STATUS_NOT_INITIALIZED;
  if (kind_ == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
      type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    return GetEngines(most, count, values);
  }
  if (kind_ == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 && most == 1) {
    const int64_t bytes = CudnnWorkspaceBytes(graph_);
    std::memcpy(values, &bytes, sizeof(bytes));
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  Refuse("cudnnBackendGetAttribute", "an attribute that is not faked");
}

// Three: the first two cannot be made into a plan, as happens: one is not for the graph after all,
// the other's kernel does not compile. DTENSOR_FAKE_CUDNN=broken: nor does the third's.
cudnnStatus_t CudnnDescriptor::GetEngines(int64_t most, int64_t* count, void* values) const {
  *count = 0;
  if (!WhyNotSupported(graph_).empty()) return CUDNN_STATUS_SUCCESS;
  for (; *count < std::min<int64_t>(most, 3); ++*count) {
    auto& config = Of(static_cast<cudnnBackendDescriptor_t*>(values)[*count]);
    if (config.kind_ != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
    config.graph_ = graph_;
    config.operation_.mode = static_cast<int>(*count);
    config.finalized_ = true;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CudnnDescriptor::Finalize() {
  if (finalized_) return CUDNN_STATUS_BAD_PARAM;
  const cudnnStatus_t status = [&] {
    switch (kind_) {
      case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return FinalizeTensor();
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return FinalizeProduct();
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return FinalizeMap();
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return FinalizeReduction();
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return FinalizeReshape();
      case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return FinalizeGraph();
      case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return FinalizeFromGraph(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return FinalizeFromGraph(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return FinalizePack();
      default:  // what an operation does: all that may be set must be
        return attributes_.size() >= (kind_ == CUDNN_BACKEND_MATMUL_DESCRIPTOR ? 1 : 2)
                   ? CUDNN_STATUS_SUCCESS
                   : CUDNN_STATUS_BAD_PARAM;
    }
  }();
  finalized_ = status == CUDNN_STATUS_SUCCESS;
  return status;
}

template <typename T>
bool CudnnDescriptor::Read(cudnnBackendAttributeName_t name, T& value) const {
  const std::vector<T> values = Values<T>(name);
  if (values.size() != 1) return false;
  value = values[0];
  return true;
}

bool CudnnDescriptor::ReadDims(cudnnBackendAttributeName_t name, Dims4& dims) const {
  const std::vector<int64_t> values = Values<int64_t>(name);
  if (values.size() != dims.size()) return false;
  std::copy(values.begin(), values.end(), dims.begin());
  return true;
}

const CudnnDescriptor* CudnnDescriptor::Child(cudnnBackendAttributeName_t name) const {
  cudnnBackendDescriptor_t raw = nullptr;
  if (!Read(name, raw)) return nullptr;
  const CudnnDescriptor& child = Of(raw);
  if (!child.finalized_) Refuse("cudnnBackendFinalize", "a descriptor that is used is not final");
  return &child;
}

bool CudnnDescriptor::ReadTensor(cudnnBackendAttributeName_t name, CudnnTensor& tensor) const {
  const CudnnDescriptor* const child = Child(name);
  if (child == nullptr) return false;
  if (child->kind_ != CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    Refuse("cudnnBackendFinalize", "an operand is no tensor");
  }
  tensor = child->tensor_;
  return true;
}

cudnnStatus_t CudnnDescriptor::FinalizeTensor() {
  const bool is_complete = Read(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor_.id) &&
                           Read(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor_.type) &&
                           Read(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor_.alignment) &&
                           ReadDims(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor_.dims) &&
                           ReadDims(CUDNN_ATTR_TENSOR_STRIDES, tensor_.strides);
  if (!is_complete || tensor_.alignment < 1) return CUDNN_STATUS_BAD_PARAM;
  if (*std::min_element(tensor_.dims.begin(), tensor_.dims.end()) < 1) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const auto is_set = [&](cudnnBackendAttributeName_t name) {
    const auto values = Values<unsigned char>(name);  // a bool each
    return !values.empty() && values[0] != 0;
  };
  tensor_.is_virtual = is_set(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  tensor_.is_scalar = is_set(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CudnnDescriptor::FinalizeProduct() {
  CudnnOperation& op = operation_;
  op.kind = CudnnOperation::Kind::kProduct;
  op.has_b = true;
  if (Child(CUDNN_ATTR_OPERATION_MATMUL_DESC) == nullptr ||
      !ReadTensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC, op.x) ||
      !ReadTensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC, op.b) ||
      !ReadTensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC, op.y)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const Dims4 &a = op.x.dims, &b = op.b.dims, &c = op.y.dims;
  const bool fits = a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 &&
                    a[2] == c[2] && a[3] == b[2] && b[3] == c[3];
  return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t CudnnDescriptor::FinalizeMap() {
  CudnnOperation& op = operation_;
  const CudnnDescriptor* const own = Child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  if (own == nullptr || !ReadTensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, op.x) ||
      !ReadTensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, op.y)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  own->Read(CUDNN_ATTR_POINTWISE_MODE, op.mode);
  const bool is_index = op.mode == CUDNN_POINTWISE_GEN_INDEX;
  if (is_index != own->Read(CUDNN_ATTR_POINTWISE_AXIS, op.dimension)) return CUDNN_STATUS_BAD_PARAM;
  op.has_b = ReadTensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, op.b);
  op.has_choice = ReadTensor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, op.chosen_by);
  const bool fits = Broadcasts(op.x, op.y) && (!op.has_b || Broadcasts(op.b, op.y)) &&
                    (!op.has_choice || Broadcasts(op.chosen_by, op.y)) && op.dimension < 4;
  return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t CudnnDescriptor::FinalizeReduction() {
  CudnnOperation& op = operation_;
  op.kind = CudnnOperation::Kind::kReduction;
  const CudnnDescriptor* const own = Child(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  if (own == nullptr || !ReadTensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, op.x) ||
      !ReadTensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, op.y)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  own->Read(CUDNN_ATTR_REDUCTION_OPERATOR, op.mode);
  for (int d = 0; d < 4; ++d) {
    if (op.x.dims[d] % op.y.dims[d] != 0) return CUDNN_STATUS_BAD_PARAM;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CudnnDescriptor::FinalizeReshape() {
  CudnnOperation& op = operation_;
  op.kind = CudnnOperation::Kind::kReshape;
  if (!ReadTensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, op.x) ||
      !ReadTensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, op.y)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const bool fits = op.x.elements() == op.y.elements() && op.x.extent() == op.y.extent();
  return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t CudnnDescriptor::FinalizeGraph() {
  if (!Read(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, graph_.handle)) return CUDNN_STATUS_BAD_PARAM;
  for (const auto raw : Values<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const CudnnDescriptor& operation = Of(raw);
    if (!operation.finalized_) Refuse("cudnnBackendFinalize", "an operation is not final");
    graph_.operations.push_back(operation.operation_);
  }
  // What is virtual must have been computed before it is read.
  for (const auto& [id, tensor] : graph_.Inputs()) {
    if (tensor.is_virtual) return CUDNN_STATUS_BAD_PARAM;
  }
  return graph_.operations.empty() ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CudnnDescriptor::FinalizeFromGraph(cudnnBackendAttributeName_t name) {
  const CudnnDescriptor* const of = Child(name);
  if (of == nullptr) return CUDNN_STATUS_BAD_PARAM;
  const bool is_plan = kind_ == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
  const int needed = is_plan ? CUDNN_ATTR_EXECUTION_PLAN_HANDLE : CUDNN_ATTR_ENGINEHEUR_MODE;
  if (attributes_.count(needed) == 0) return CUDNN_STATUS_BAD_PARAM;
  if (is_plan && of->operation_.mode == 0) return CUDNN_STATUS_NOT_SUPPORTED;
  const char* const said = std::getenv("DTENSOR_FAKE_CUDNN");
  const bool is_broken = said != nullptr && std::strcmp(said, "broken") == 0;
  if (is_plan && (of->operation_.mode == 1 || is_broken)) {
    return CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
  }
  graph_ = of->graph_;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CudnnDescriptor::FinalizePack() {
  const size_t ids = Values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size();
  const size_t data = Values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size();
  const bool has_workspace = attributes_.count(CUDNN_ATTR_VARIANT_PACK_WORKSPACE) == 1;
  return ids == data && ids > 0 && has_workspace ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

}  // namespace dtensor::fake_cuda
