// Products beside bare cuBLASLt: the same descriptors, workspace and rules (no sums in parts), no
// look-up and no checks.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/bench/gpu/figure.h"
#include "dtensor/bench/gpu/noise.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::bench {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

// c = a b of n x n in bf16, row-major: to cuBLASLt, which counts columns first, c' = b' a'.
class BareProduct {
 public:
  BareProduct(Device& device, int64_t n, const Tensor& a, const Tensor& b, const Tensor& c)
      : stream_(CudaStreamOf(device)), a_(a), b_(b), c_(c) {
    const size_t bytes = kWorkspace;
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    ok_ = cublasLtCreate(&handle_) == CUBLAS_STATUS_SUCCESS &&
          cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0 &&
          cublasLtMatrixLayoutInit(&layout_, CUDA_R_16BF, n, n, n) == 0 &&
          cublasLtMatmulPreferenceInit(&preference_) == 0 &&
          cublasLtMatmulPreferenceSetAttribute(
              &preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)) == 0 &&
          cublasLtMatmulPreferenceSetAttribute(
              &preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof(none)) == 0 &&
          cudaMallocAsync(&workspace_, kWorkspace, stream_) == cudaSuccess;
    int found = 0;
    ok_ = ok_ &&
          cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &layout_, &layout_, &layout_,
                                         &layout_, &preference_, 1, &best_, &found) == 0 &&
          found == 1;
  }
  ~BareProduct() {
    if (workspace_ != nullptr) cudaFreeAsync(workspace_, stream_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  absl::Status Run() {
    const float one = 1, zero = 0;
    const bool launched =
        ok_ && cublasLtMatmul(handle_, &operation_, &one, b_.raw(), &layout_, a_.raw(), &layout_,
                              &zero, c_.raw(), &layout_, c_.raw(), &layout_, &best_.algo,
                              workspace_, kWorkspace, stream_) == 0;
    return launched ? absl::OkStatus() : absl::InternalError("bare cuBLASLt refused a product");
  }

 private:
  const cudaStream_t stream_;
  const Tensor &a_, &b_, &c_;
  bool ok_ = false;
  void* workspace_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t layout_;
  cublasLtMatmulPreferenceOpaque_t preference_;
  cublasLtMatmulHeuristicResult_t best_;
};

absl::Status MeasureProduct(Device& device, const Scale& scale, int64_t n, const Report& report) {
  Tensor a, b, c;
  for (Tensor* x : {&a, &b, &c}) {
    DT_ASSIGN_OR_RETURN(*x, Noise(device, DType::kBF16, {n, n}));
  }
  BareProduct bare(device, n, a, b, c);
  const GemmProblem gemm = {.dtype = DType::kBF16,
                            .out_dtype = DType::kBF16,
                            .m = n,
                            .n = n,
                            .k = n,
                            .a = {a.raw(), n, 1, 0},
                            .b = {b.raw(), n, 1, 0},
                            .c = {c.raw(), n, 1, 0}};
  DT_ASSIGN_OR_RETURN(
      const std::vector<double> seconds,
      SecondsInTurn(device, scale,
                    {[&] { return bare.Run(); }, [&] { return device.Gemm(gemm); }}));
  const double of_bare = seconds[0], ours = seconds[1];
  const double flops =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  report({absl::StrCat("product/bf16/", n), flops / ours / 1e12, "TF/s", "bare cuBLASLt",
          of_bare / ours, ""});
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureProducts(Device& device, const Scale& scale, const Report& report) {
  for (const int64_t n : {scale.Of(1024, 16), scale.Of(4096, 32), scale.Of(8192, 48)}) {
    DT_RETURN_IF_ERROR(MeasureProduct(device, scale, n, report));
  }
  return absl::OkStatus();
}

}  // namespace dtensor::bench
