#include "dtensor/runtime/kernels/cuda/cudnn/graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int64_t kFirstVirtual = 100;  // ids; those of other tensors are the caller's
constexpr int64_t kAlignment = 16;      // bytes, of all addresses
constexpr int64_t kMostEngines = 16;

absl::StatusOr<Descriptor> MakeTensor(int64_t id, cudnnDataType_t type, const Dims4& dims,
                                      const Dims4& strides, int flag) {
  DT_ASSIGN_OR_RETURN(Descriptor tensor, Descriptor::Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR));
  DT_RETURN_IF_ERROR(tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type));
  DT_RETURN_IF_ERROR(tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64,
                                absl::MakeConstSpan(dims.data(), dims.size())));
  DT_RETURN_IF_ERROR(tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
                                absl::MakeConstSpan(strides.data(), strides.size())));
  DT_RETURN_IF_ERROR(tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id));
  DT_RETURN_IF_ERROR(tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment));
  if (flag != 0) {
    DT_RETURN_IF_ERROR(
        tensor.Set(static_cast<cudnnBackendAttributeName_t>(flag), CUDNN_TYPE_BOOLEAN, true));
  }
  DT_RETURN_IF_ERROR(tensor.Finalize());
  return tensor;
}

absl::StatusOr<Descriptor> MakePointwise(cudnnPointwiseMode_t f, int64_t dimension) {
  DT_ASSIGN_OR_RETURN(Descriptor own, Descriptor::Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
  DT_RETURN_IF_ERROR(own.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, f));
  // Comparisons compute in booleans.
  const cudnnDataType_t type = f == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
  DT_RETURN_IF_ERROR(own.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, type));
  if (dimension >= 0) {
    DT_RETURN_IF_ERROR(own.Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, dimension));
  }
  DT_RETURN_IF_ERROR(own.Finalize());
  return own;
}

absl::StatusOr<Descriptor> MakeMatmul() {
  DT_ASSIGN_OR_RETURN(Descriptor own, Descriptor::Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR));
  DT_RETURN_IF_ERROR(own.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  DT_RETURN_IF_ERROR(own.Finalize());
  return own;
}

absl::StatusOr<Descriptor> MakeReduction(cudnnReduceTensorOp_t f) {
  DT_ASSIGN_OR_RETURN(Descriptor own, Descriptor::Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
  DT_RETURN_IF_ERROR(
      own.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  DT_RETURN_IF_ERROR(own.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, f));
  DT_RETURN_IF_ERROR(own.Finalize());
  return own;
}

absl::StatusOr<Descriptor> MakeOperation(cudnnBackendDescriptorType_t kind) {
  DT_ASSIGN_OR_RETURN(Descriptor operation, Descriptor::Make(kind));
  if (kind != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) return operation;
  for (const auto name :
       {CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2}) {
    DT_RETURN_IF_ERROR(operation.Set(name, CUDNN_TYPE_FLOAT, 1.0f));
  }
  return operation;
}

absl::StatusOr<std::vector<Descriptor>> EnginesFor(const Descriptor& graph) {
  DT_ASSIGN_OR_RETURN(Descriptor heuristics, Descriptor::Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  DT_RETURN_IF_ERROR(heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
  DT_RETURN_IF_ERROR(
      heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A));
  DT_RETURN_IF_ERROR(heuristics.Finalize());
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < kMostEngines; ++i) {
    DT_ASSIGN_OR_RETURN(configs.emplace_back(),
                        Descriptor::Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configs.back().get());
  }
  DT_ASSIGN_OR_RETURN(const int64_t found,
                      heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                     absl::MakeSpan(raw)));
  configs.resize(std::min(found, kMostEngines));
  return configs;
}

absl::StatusOr<GraphPlan> PlanOf(cudnnHandle_t handle, Descriptor engine) {
  GraphPlan made;
  made.engine = std::move(engine);
  DT_ASSIGN_OR_RETURN(made.plan, Descriptor::Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
  DT_RETURN_IF_ERROR(made.plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle));
  DT_RETURN_IF_ERROR(made.plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, made.engine));
  DT_RETURN_IF_ERROR(made.plan.Finalize());
  DT_RETURN_IF_ERROR(made.plan
                         .Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                              absl::MakeSpan(&made.workspace_bytes, 1))
                         .status());
  return made;
}

}  // namespace

Dims4 RowMajor(const Dims4& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

cudnnDataType_t CudnnType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    case DType::kF16:
      return CUDNN_DATA_HALF;
    default:
      DT_CHECK(dtype == DType::kF32);
      return CUDNN_DATA_FLOAT;
  }
}

absl::Status GraphPlan::Run(cudnnHandle_t handle,
                            absl::Span<const std::pair<int64_t, void*>> pointers,
                            void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, address] : pointers) {
    ids.push_back(id);
    addresses.push_back(address);
  }
  DT_ASSIGN_OR_RETURN(Descriptor pack, Descriptor::Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  DT_RETURN_IF_ERROR(
      pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, absl::MakeConstSpan(ids)));
  DT_RETURN_IF_ERROR(pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                              absl::MakeConstSpan(addresses)));
  DT_RETURN_IF_ERROR(pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace));
  DT_RETURN_IF_ERROR(pack.Finalize());
  return ToStatus(cudnnBackendExecute(handle, plan.get(), pack.get()), "cudnnBackendExecute");
}

bool Graph::Keeps(const absl::Status& status) {
  status_.Update(status);
  return status_.ok();
}

Graph::Node Graph::AddTensor(int64_t id, cudnnDataType_t type, const Dims4& dims,
                             const Dims4& strides, int flag) {
  auto tensor = MakeTensor(id, type, dims, strides, flag);
  Keeps(tensor.status());
  tensors_.push_back(tensor.ok() ? *std::move(tensor) : Descriptor());
  return {static_cast<int>(tensors_.size()) - 1};
}

Graph::Node Graph::Memory(int64_t id, DType dtype, const Dims4& dims, const Dims4& strides) {
  return AddTensor(id, CudnnType(dtype), dims, strides, 0);
}
Graph::Node Graph::Scalar(int64_t id) {
  return AddTensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}
Graph::Node Graph::Virtual(cudnnDataType_t type, const Dims4& dims, const Dims4& strides) {
  return AddTensor(kFirstVirtual + static_cast<int64_t>(tensors_.size()), type, dims, strides,
                   CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

void Graph::AddOperation(cudnnBackendDescriptorType_t kind, cudnnBackendAttributeName_t own_name,
                         Descriptor own, Tensors tensors) {
  if (!status_.ok()) return;
  const auto add = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(Descriptor operation, MakeOperation(kind));
    if (own.get() != nullptr) DT_RETURN_IF_ERROR(operation.Set(own_name, own));
    for (const auto& [name, node] : tensors) {
      DT_RETURN_IF_ERROR(operation.Set(name, tensors_[node.index]));
    }
    DT_RETURN_IF_ERROR(operation.Finalize());
    owned_.push_back(std::move(own));
    operations_.push_back(std::move(operation));
    return absl::OkStatus();
  };
  Keeps(add());
}

void Graph::Multiply(Node a, Node b, Node c) {
  auto own = MakeMatmul();
  if (!Keeps(own.status())) return;
  AddOperation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
               *std::move(own),
               {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c}});
}

void Graph::AddMap(cudnnPointwiseMode_t f, int64_t dimension, Tensors tensors) {
  auto own = MakePointwise(f, dimension);
  if (!Keeps(own.status())) return;
  AddOperation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *std::move(own), tensors);
}
void Graph::Map(cudnnPointwiseMode_t f, Node x, Node y) {
  AddMap(f, -1,
         {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x}, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}
void Graph::Map(cudnnPointwiseMode_t f, Node x, Node b, Node y) {
  AddMap(f, -1,
         {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
          {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
          {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}
void Graph::Select(Node x, Node b, Node chosen_by, Node y) {
  AddMap(CUDNN_POINTWISE_BINARY_SELECT, -1,
         {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
          {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
          {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, chosen_by},
          {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}
void Graph::Index(Node x, int64_t dimension, Node y) {
  AddMap(CUDNN_POINTWISE_GEN_INDEX, dimension,
         {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x}, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}

void Graph::Reduce(cudnnReduceTensorOp_t f, Node x, Node y) {
  auto own = MakeReduction(f);
  if (!Keeps(own.status())) return;
  AddOperation(
      CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
      *std::move(own),
      {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x}, {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
}

void Graph::Reinterpret(Node x, Node y) {
  AddOperation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, {}, Descriptor(),
               {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}});
}

absl::StatusOr<GraphPlan> Graph::MakePlan(cudnnHandle_t handle) && {
  DT_RETURN_IF_ERROR(status_);
  DT_ASSIGN_OR_RETURN(Descriptor graph, Descriptor::Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const Descriptor& operation : operations_) operations.push_back(operation.get());
  DT_RETURN_IF_ERROR(graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                               absl::MakeConstSpan(operations)));
  DT_RETURN_IF_ERROR(graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle));
  DT_RETURN_IF_ERROR(graph.Finalize());
  DT_ASSIGN_OR_RETURN(std::vector<Descriptor> engines, EnginesFor(graph));
  absl::Status refusal = absl::UnimplementedError("cuDNN has no engine for this graph");
  for (Descriptor& engine : engines) {
    auto plan = PlanOf(handle, std::move(engine));
    // PlanOf compiles the engine, which may also fail.
    if (plan.ok() || absl::IsResourceExhausted(plan.status())) return plan;
    refusal = plan.status();
  }
  return refusal;
}

}  // namespace dtensor::kernels::cuda
