#include "dtensor/runtime/device/cuda/cublaslt_gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm_operand.h"

namespace dtensor {
namespace {

// NVIDIA's recommendation for Hopper; older GPUs need less.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kMostPlans = 4096;

absl::Status ToStatus(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cublasLtGetStatusString(status)));
}

#define DT_CUBLAS(function, ...) DT_RETURN_IF_ERROR(ToStatus(function(__VA_ARGS__), #function))

// What a plan depends on. Alignments are those of addresses, in bytes: algorithms for aligned
// operands fail on others.
struct Key {
  DType dtype, out_dtype;
  bool accumulate;
  int64_t batch, m, n, k;
  OperandStrides a, b, c;
  uint32_t a_alignment, b_alignment, c_alignment;
  int64_t part_rows = 0;  // for a part: m is then the whole's, whose algorithm it uses
  friend bool operator==(const Key&, const Key&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.dtype, key.out_dtype, key.accumulate, key.batch, key.m,
                      key.n, key.k, key.a, key.b, key.c, key.a_alignment, key.b_alignment,
                      key.c_alignment, key.part_rows);
  }
};

uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

absl::StatusOr<Key> MakeKey(const GemmProblem& p) {
  if (!IsFloat(p.dtype)) {
    return absl::UnimplementedError(absl::StrCat("there is no product of ", ToString(p.dtype),
                                                 " on cuda; convert the operands to f64 first"));
  }
  if (p.batch > std::numeric_limits<int32_t>::max()) {
    return absl::UnimplementedError(
        absl::StrCat("a product of ", p.batch,
                     " matrices is too many for cuda, which counts to 2^31 - 1; make "
                     "it in parts"));
  }
  const auto a = StridesOf(p.a, p.m, p.k, p.batch);
  const auto b = StridesOf(p.b, p.k, p.n, p.batch);
  const auto c = StridesOf(p.c, p.m, p.n, p.batch);
  if (!a || !b || !c) {
    return absl::UnimplementedError(
        "a product's operand is neither row- nor column-major, which cuda needs; copy it first");
  }
  return Key{p.dtype,
             p.out_dtype,
             p.accumulate,
             p.batch,
             p.m,
             p.n,
             p.k,
             *a,
             *b,
             *c,
             AlignmentOf(p.a.data),
             AlignmentOf(p.b.data),
             AlignmentOf(p.c.data)};
}

cudaDataType_t CudaType(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// cuBLASLt is column-major: it sees a row-major matrix (rows, columns) as a (columns, rows) one. So
// it multiplies the transposes: C' = B' A'.
absl::Status InitLayout(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, const OperandStrides& s,
                        int64_t rows, int64_t columns, int32_t batch) {
  if (s.row_major()) std::swap(rows, columns);
  DT_CUBLAS(cublasLtMatrixLayoutInit, &layout, CudaType(dtype), rows, columns, s.leading());
  DT_CUBLAS(cublasLtMatrixLayoutSetAttribute, &layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
            sizeof(batch));
  DT_CUBLAS(cublasLtMatrixLayoutSetAttribute, &layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            &s.batch, sizeof(s.batch));
  return absl::OkStatus();
}

struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

absl::Status InitOperation(cublasLtMatmulDescOpaque_t& operation, const Key& key) {
  const bool wide = key.dtype == DType::kF64;
  DT_CUBLAS(cublasLtMatmulDescInit, &operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
            wide ? CUDA_R_64F : CUDA_R_32F);
  const cublasOperation_t first = key.b.row_major() ? CUBLAS_OP_N : CUBLAS_OP_T;
  const cublasOperation_t second = key.a.row_major() ? CUBLAS_OP_N : CUBLAS_OP_T;
  DT_CUBLAS(cublasLtMatmulDescSetAttribute, &operation, CUBLASLT_MATMUL_DESC_TRANSA, &first,
            sizeof(first));
  DT_CUBLAS(cublasLtMatmulDescSetAttribute, &operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
            sizeof(second));
  return absl::OkStatus();
}

absl::Status InitPreference(cublasLtMatmulPreferenceOpaque_t& preference, const Key& key) {
  DT_CUBLAS(cublasLtMatmulPreferenceInit, &preference);
  const size_t workspace = kWorkspaceBytes;
  DT_CUBLAS(cublasLtMatmulPreferenceSetAttribute, &preference,
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
  // Excludes sums in parts that a second kernel adds up (split-K), since these may be rounded to
  // the result's type. In which order a kernel adds is up to cuBLASLt and may differ between
  // shapes.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
  DT_CUBLAS(cublasLtMatmulPreferenceSetAttribute, &preference,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
  const std::pair<cublasLtMatmulPreferenceAttributes_t, uint32_t> alignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment},  // cuBLASLt's A is our B
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment}};
  for (const auto& [attribute, bytes] : alignments) {
    DT_CUBLAS(cublasLtMatmulPreferenceSetAttribute, &preference, attribute, &bytes, sizeof(bytes));
  }
  return absl::OkStatus();
}

// Errors: kUnimplemented if cuBLASLt has no algorithm: nothing was launched, so the device goes on.
absl::StatusOr<Plan> MakePlan(const Key& key, cublasLtHandle_t handle) {
  Plan plan;
  const auto batch = static_cast<int32_t>(key.batch);
  DT_RETURN_IF_ERROR(InitOperation(plan.operation, key));
  DT_RETURN_IF_ERROR(InitLayout(plan.a, key.dtype, key.a, key.m, key.k, batch));
  DT_RETURN_IF_ERROR(InitLayout(plan.b, key.dtype, key.b, key.k, key.n, batch));
  DT_RETURN_IF_ERROR(InitLayout(plan.c, key.out_dtype, key.c, key.m, key.n, batch));
  cublasLtMatmulPreferenceOpaque_t preference;
  DT_RETURN_IF_ERROR(InitPreference(preference, key));
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &plan.operation, &plan.b, &plan.a, &plan.c, &plan.c, &preference, 1, &best, &found);
  const bool is_refused = status == CUBLAS_STATUS_NOT_SUPPORTED;
  if (!is_refused) DT_RETURN_IF_ERROR(ToStatus(status, "cublasLtMatmulAlgoGetHeuristic"));
  if (is_refused || found == 0 || best.state != CUBLAS_STATUS_SUCCESS) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for a product of ",
                                                 key.batch, " x (", key.m, ", ", key.k, ") and (",
                                                 key.k, ", ", key.n, "); make it in parts"));
  }
  plan.algorithm = best.algo;
  return plan;
}

GemmMatrix FromRow(const GemmMatrix& x, int64_t row, DType dtype) {
  return {static_cast<char*>(x.data) + row * x.row_stride * SizeOf(dtype), x.row_stride,
          x.col_stride, x.batch_stride};
}

// The whole product of which `p` is a part.
GemmProblem WholeOf(const GemmProblem& p) {
  GemmProblem whole = p;
  whole.m = p.whole_rows;
  whole.whole_rows = whole.first_row = 0;
  whole.a = FromRow(p.a, -p.first_row, p.dtype);
  whole.c = FromRow(p.c, -p.first_row, p.out_dtype);
  return whole;
}

// `whole` with fewer rows, by the same algorithm. Errors: kUnimplemented if that cannot compute it.
absl::StatusOr<Plan> MakePartPlan(const Key& key, const Plan& whole, cublasLtHandle_t handle) {
  Plan plan = whole;
  DT_RETURN_IF_ERROR(InitLayout(plan.a, key.dtype, key.a, key.part_rows, key.k, 1));
  DT_RETURN_IF_ERROR(InitLayout(plan.c, key.out_dtype, key.c, key.part_rows, key.n, 1));
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, &plan.operation, &plan.b, &plan.a,
                                                        &plan.c, &plan.c, &plan.algorithm, &result);
  if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) return plan;
  return absl::UnimplementedError(absl::StrCat("cuBLASLt's algorithm for a product of ", key.m,
                                               " rows does not take ", key.part_rows,
                                               " of them; make all at once"));
}

}  // namespace

struct CublasLtGemm::Impl {
  explicit Impl(cudaStream_t stream) : stream(stream) {}
  ~Impl() {
    if (workspace != nullptr) cudaFreeAsync(workspace, stream);
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  absl::StatusOr<Plan*> Find(const Key& key) {
    if (const auto found = plans.find(key); found != plans.end()) return &found->second;
    absl::StatusOr<Plan> plan;
    if (key.part_rows == 0) {
      plan = MakePlan(key, handle);
    } else {
      Key whole = key;
      whole.part_rows = 0;
      DT_ASSIGN_OR_RETURN(const Plan* const taken, Find(whole));
      plan = MakePartPlan(key, *taken, handle);
    }
    DT_RETURN_IF_ERROR(plan.status());
    if (plans.size() >= kMostPlans) plans.clear();
    return &plans.emplace(key, *plan).first->second;
  }

  // For a part, or for a whole product.
  absl::StatusOr<Plan*> PlanOf(const GemmProblem& p) {
    if (p.whole_rows == 0) {
      DT_ASSIGN_OR_RETURN(const Key key, MakeKey(p));
      return Find(key);
    }
    DT_ASSIGN_OR_RETURN(Key key, MakeKey(WholeOf(p)));
    key.part_rows = p.m;
    if (AlignmentOf(p.a.data) >= key.a_alignment && AlignmentOf(p.c.data) >= key.c_alignment) {
      return Find(key);
    }
    return absl::UnimplementedError(
        absl::StrCat("rows from ", p.first_row, " on are less aligned than all ", p.whole_rows,
                     ", whose algorithm they would need; make all at once"));
  }

  const cudaStream_t stream;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  HashMap<Key, Plan> plans;
};

CublasLtGemm::CublasLtGemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CublasLtGemm::~CublasLtGemm() = default;

absl::StatusOr<std::unique_ptr<CublasLtGemm>> CublasLtGemm::Make(cudaMemPool_t pool,
                                                                 cudaStream_t stream) {
  auto impl = std::make_unique<Impl>(stream);
  DT_CUBLAS(cublasLtCreate, &impl->handle);
  if (cudaMallocFromPoolAsync(&impl->workspace, kWorkspaceBytes, pool, stream) != cudaSuccess) {
    impl->workspace = nullptr;
    cudaGetLastError();  // or the next call would report it again
    return absl::ResourceExhaustedError("the GPU has no 32 MiB left for products to work in");
  }
  return std::unique_ptr<CublasLtGemm>(new CublasLtGemm(std::move(impl)));
}

absl::Status CublasLtGemm::CheckRows(const GemmProblem& gemm) {
  return impl_->PlanOf(gemm).status();
}

absl::Status CublasLtGemm::Run(const GemmProblem& gemm) {
  GemmProblem p = WithoutNeedlessBatch(gemm);
  // If the columns of one A overlap those of the next, each A is a valid matrix, but the joined one
  // is not.
  if (!StridesOf(p.a, p.m, p.k, p.batch)) p = gemm;
  DT_ASSIGN_OR_RETURN(Plan* const plan, impl_->PlanOf(p));
  const float one = 1, beta = p.accumulate ? 1 : 0;
  const double wide_one = 1, wide_beta = beta;
  const bool wide = p.dtype == DType::kF64;
  DT_CUBLAS(cublasLtMatmul, impl_->handle, &plan->operation,
            wide ? static_cast<const void*>(&wide_one) : &one, p.b.data, &plan->b, p.a.data,
            &plan->a, wide ? static_cast<const void*>(&wide_beta) : &beta, p.c.data, &plan->c,
            p.c.data, &plan->c, &plan->algorithm, impl_->workspace, kWorkspaceBytes, impl_->stream);
  return absl::OkStatus();
}

}  // namespace dtensor
