// Products of the fake cuBLASLt, on the host and in the stream's order. TSan sees each element that
// is read and written, and the beginning of the workspace, which is the product's alone while it
// runs.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "dtensor/tools/cuda/fake/cublaslt_counts.h"
#include "dtensor/tools/cuda/fake/fake.h"

using dtensor::fake_cuda::Enqueue;
using dtensor::fake_cuda::Refuse;
using dtensor::fake_cuda::RequireOnGpu;

namespace {

// What the opaque structs hold here.
struct Layout {
  cudaDataType_t type;
  int32_t batch;
  uint64_t rows, columns;
  int64_t leading, batch_stride;
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a, b;
  friend bool operator==(const Operation&, const Operation&) = default;
};

struct Preference {
  size_t workspace;
  uint32_t reductions;
  uint32_t alignments[4];  // of A, B, C, D
};

// Of cublasLtMatmulAlgo_t's 64 bytes.
struct Algorithm {
  uint64_t chosen_for;  // the digest of the operation and the layouts
  uint64_t workspace;
  uint32_t alignments[4];
  bool in_parts;      // a sum is made in two
  bool rounds_parts;  // which are added up in the result's type
};

constexpr uint64_t kMostInParts = 4096;  // elements of a result that would not fill a GPU
constexpr uint32_t kInTheResult =
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE | CUBLASLT_REDUCTION_SCHEME_INPLACE;

static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T>
T Load(const void* opaque) {
  T value;
  std::memcpy(&value, opaque, sizeof(T));
  return value;
}
template <typename T>
void Store(void* opaque, const T& value) {
  std::memcpy(opaque, &value, sizeof(T));
}

// `value`, of an attribute that has the size of a T.
template <typename T>
cublasStatus_t Read(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

size_t SizeOf(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

double Get(cudaDataType_t type, const void* data, int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[i];
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_16BF:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    default:
      return __half2float(static_cast<const __half*>(data)[i]);
  }
}

void Put(cudaDataType_t type, void* data, int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[i] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(static_cast<float>(value));
      break;
    default:
      static_cast<__half*>(data)[i] = __float2half(static_cast<float>(value));
  }
}

// To the 11 bits that TF32 keeps, to the nearest, as tensor cores take their operands.
double RoundedToTf32(double value) {
  uint32_t bits;
  const auto narrow = static_cast<float>(value);
  std::memcpy(&bits, &narrow, sizeof(bits));
  bits = (bits + 0x1000) & ~0x1FFFu;
  return Load<float>(&bits);
}

double Rounded(cudaDataType_t type, double value) {
  double kept[1];
  Put(type, kept, 0, value);
  return Get(type, kept, 0);
}

// D = alpha op(A) op(B) + beta C; all count columns first.
struct Product {
  Operation operation;
  Layout a, b, c, d;

  uint64_t m() const { return operation.a == CUBLAS_OP_N ? a.rows : a.columns; }
  uint64_t k() const { return operation.a == CUBLAS_OP_N ? a.columns : a.rows; }
  uint64_t n() const { return operation.b == CUBLAS_OP_N ? b.columns : b.rows; }

  bool Fits() const {
    const uint64_t b_rows = operation.b == CUBLAS_OP_N ? b.rows : b.columns;
    const auto is_result = [&](const Layout& x) {
      return x.rows == m() && x.columns == n() && x.batch == a.batch && x.type == d.type;
    };
    const auto is_matrix = [](const Layout& x) {
      return x.batch > 0 && x.leading >= static_cast<int64_t>(std::max<uint64_t>(x.rows, 1));
    };
    return k() == b_rows && a.batch == b.batch && is_result(c) && is_result(d) && is_matrix(a) &&
           is_matrix(b) && is_matrix(c) && is_matrix(d);
  }
  bool is_tf32() const { return operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32; }
  // The types that our own code asks for, of those that cuBLASLt has; and TF32, which it must not
  // ask for: its values then say so. cublasLt.h promises no rows and columns that need more than 32
  // bits.
  bool IsSupported() const {
    constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
    if (a.type != b.type || std::max({m(), n(), k()}) > kMost) return false;
    if (operation.compute == CUBLAS_COMPUTE_64F) {
      return operation.scale == CUDA_R_64F && a.type == CUDA_R_64F && d.type == CUDA_R_64F;
    }
    const bool narrow = a.type == CUDA_R_16BF || a.type == CUDA_R_16F;
    return (operation.compute == CUBLAS_COMPUTE_32F || is_tf32()) &&
           operation.scale == CUDA_R_32F && (a.type == CUDA_R_32F || (narrow && !is_tf32())) &&
           (d.type == CUDA_R_32F || d.type == a.type);
  }
  uint64_t Digest() const {
    uint64_t digest = 14695981039346656037u;
    const auto add = [&](uint64_t value) { digest = (digest ^ value) * 1099511628211u; };
    for (const uint64_t value : {uint64_t(operation.compute), uint64_t(operation.scale),
                                 uint64_t(operation.a), uint64_t(operation.b)}) {
      add(value);
    }
    for (const Layout& x : {a, b, c, d}) {
      for (const uint64_t value : {uint64_t(x.type), uint64_t(x.batch), x.rows, x.columns,
                                   uint64_t(x.leading), uint64_t(x.batch_stride)}) {
        add(value);
      }
    }
    return digest;
  }
};

Product ProductOf(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {Load<Operation>(operation), Load<Layout>(a), Load<Layout>(b), Load<Layout>(c),
          Load<Layout>(d)};
}

struct Operands {
  double alpha, beta;
  const void *a, *b, *c;
  void* d;
};

// Of one element, the terms [from, to).
double Sum(const Product& p, const Operands& x, int64_t batch, uint64_t row, uint64_t column,
           uint64_t from, uint64_t to) {
  const bool wide = p.operation.compute == CUBLAS_COMPUTE_64F;
  const auto operand = [&](const Layout& layout, const void* data, int64_t at) {
    const double value = Get(layout.type, data, at);
    return p.is_tf32() ? RoundedToTf32(value) : value;
  };
  double sum = 0;
  for (uint64_t i = from; i < to; ++i) {
    const int64_t a = p.operation.a == CUBLAS_OP_N ? row + i * p.a.leading : i + row * p.a.leading;
    const int64_t b =
        p.operation.b == CUBLAS_OP_N ? i + column * p.b.leading : column + i * p.b.leading;
    sum += operand(p.a, x.a, batch * p.a.batch_stride + a) *
           operand(p.b, x.b, batch * p.b.batch_stride + b);
    if (!wide) sum = static_cast<float>(sum);
  }
  return sum;
}

void Multiply(const Product& p, const Operands& x, const Algorithm& algorithm) {
  const uint64_t middle = algorithm.in_parts ? p.k() / 2 : 0;
  const auto rounded = [&](double sum) {
    if (algorithm.rounds_parts) return Rounded(p.d.type, sum);
    return p.operation.compute == CUBLAS_COMPUTE_64F ? sum : static_cast<float>(sum);
  };
  for (int64_t batch = 0; batch < p.d.batch; ++batch) {
    for (uint64_t column = 0; column < p.n(); ++column) {
      for (uint64_t row = 0; row < p.m(); ++row) {
        double sum = Sum(p, x, batch, row, column, middle, p.k());
        if (algorithm.in_parts) {
          sum = rounded(rounded(sum) + rounded(Sum(p, x, batch, row, column, 0, middle)));
        }
        double result = x.alpha * sum;
        if (x.beta != 0) {
          const int64_t c = batch * p.c.batch_stride + row + column * p.c.leading;
          result += x.beta * Get(p.c.type, x.c, c);
        }
        const int64_t d = batch * p.d.batch_stride + row + column * p.d.leading;
        Put(p.d.type, x.d, d, result);
      }
    }
  }
}

// To the end of the last element that it may touch.
size_t BytesOf(const Layout& x) {
  const int64_t last = (x.batch - 1) * std::max<int64_t>(x.batch_stride, 0) +
                       (static_cast<int64_t>(x.columns) - 1) * x.leading +
                       static_cast<int64_t>(x.rows);
  return x.rows == 0 || x.columns == 0 ? 0 : last * SizeOf(x.type);
}

void RequireOperand(int gpu, const Layout& layout, const void* data, uint32_t alignment) {
  RequireOnGpu("cublasLtMatmul", gpu, data, BytesOf(layout));
  if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    Refuse("cublasLtMatmul", "an operand is less aligned than the algorithm was chosen for");
  }
}

// What cublasLtMatmulAlgoCheck allowed: (the product that an algorithm was chosen for, another). Of
// the thread, which then runs it: a lock would be an order that cuBLASLt does not promise.
thread_local std::set<std::pair<uint64_t, uint64_t>> allowed;

thread_local int64_t heuristics_asked = 0;

}  // namespace

namespace dtensor::fake_cuda {

int64_t HeuristicsAsked() { return heuristics_asked; }

}  // namespace dtensor::fake_cuda

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_INVALID_VALUE";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(dtensor::fake_cuda::CurrentGpu()));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  const int* const gpu = reinterpret_cast<int*>(handle);
  dtensor::fake_cuda::WaitForGpu(*gpu);  // CUDA may: its workspace goes
  delete gpu;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t leading) {
  Store(layout, Layout{type, 1, rows, columns, leading, 0});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  auto kept = Load<Layout>(layout);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) status = Read(kept.batch, value, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    status = Read(kept.batch_stride, value, bytes);
  }
  Store(layout, kept);
  return status;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  Store(operation, Operation{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto kept = Load<Operation>(operation);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) status = Read(kept.a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) status = Read(kept.b, value, bytes);
  Store(operation, kept);
  return status;
}

// As cuBLASLt: no workspace, any reduction, addresses of 256 bytes.
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t) {
  Store(preference, Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto kept = Load<Preference>(preference);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    status = Read(kept.workspace, value, bytes);
  }
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    status = Read(kept.reductions, value, bytes);
  }
  static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ==
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + 3);
  const int operand = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (operand >= 0 && operand < 4) status = Read(kept.alignments[operand], value, bytes);
  Store(preference, kept);
  return status;
}

// One that uses all that the preference allows: the whole workspace, the alignment, and sums in
// parts, for small results if parts are kept apart, for all where they are rounded to the result's
// type.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  ++heuristics_asked;
  *found = 0;
  const Product product = ProductOf(operation, a, b, c, d);
  if (most < 1 || !product.Fits()) return CUBLAS_STATUS_INVALID_VALUE;
  if (!product.IsSupported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto wanted = Load<Preference>(preference);
  Algorithm algorithm = {product.Digest(), wanted.workspace};
  algorithm.rounds_parts = (wanted.reductions & kInTheResult) != 0;
  const bool is_small = product.m() * product.n() < kMostInParts;
  algorithm.in_parts = algorithm.rounds_parts || (wanted.reductions != 0 && is_small);
  std::copy_n(wanted.alignments, 4, algorithm.alignments);
  results[0] = {};
  Store(&results[0].algo, algorithm);
  results[0].workspaceSize = wanted.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

// Any algorithm is good for any product that fits.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* chosen,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Product product = ProductOf(operation, a, b, c, d);
  if (!product.Fits()) return CUBLAS_STATUS_INVALID_VALUE;
  if (!product.IsSupported()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto algorithm = Load<Algorithm>(chosen);
  allowed.insert({algorithm.chosen_for, product.Digest()});
  *result = {};
  result->workspaceSize = algorithm.workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* chosen,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Product product = ProductOf(operation, a_layout, b_layout, c_layout, d_layout);
  if (!product.Fits()) return CUBLAS_STATUS_INVALID_VALUE;
  const auto algorithm = Load<Algorithm>(chosen);
  const uint64_t digest = product.Digest();
  if (algorithm.chosen_for != digest && !allowed.contains({algorithm.chosen_for, digest})) {
    Refuse("cublasLtMatmul", "the algorithm was chosen for another product");
  }
  if (workspace_bytes < algorithm.workspace || (workspace == nullptr && workspace_bytes > 0)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int gpu = dtensor::fake_cuda::GpuOf(stream);
  if (*reinterpret_cast<int*>(handle) != gpu || dtensor::fake_cuda::CurrentGpu() != gpu) {
    Refuse("cublasLtMatmul", "the handle, the stream and the thread are not of one GPU");
  }
  RequireOperand(gpu, product.a, a, algorithm.alignments[0]);
  RequireOperand(gpu, product.b, b, algorithm.alignments[1]);
  RequireOperand(gpu, product.c, c, algorithm.alignments[2]);
  RequireOperand(gpu, product.d, d, algorithm.alignments[3]);
  RequireOnGpu("cublasLtMatmul", gpu, workspace, workspace_bytes);
  const bool wide = product.operation.scale == CUDA_R_64F;
  const auto factor = [wide](const void* value) {
    return wide ? Load<double>(value) : static_cast<double>(Load<float>(value));
  };
  const Operands operands = {factor(alpha), factor(beta), a, b, c, d};
  const size_t touched = std::min<size_t>(algorithm.workspace, 4096);
  Enqueue(stream, [=] {
    if (touched > 0) std::memset(workspace, 0xFF, touched);
    Multiply(product, operands, algorithm);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
