#include "dtensor/tools/cli/rank_kernels.h"

#include <initializer_list>

#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::cli {
namespace {

constexpr int64_t kHeads = 4, kPositions = 512, kHeadDim = 64;

constexpr int64_t kFeatures = 256;  // in and out

// The number of tokens. f64 and f16 have no fast code on some machines.
int64_t Tokens(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 ? 1024 : 64; }

absl::Status SetAll(Device& device, float value, std::initializer_list<Tensor*> tensors,
                    const Dims& shape) {
  for (Tensor* tensor : tensors) {
    DT_ASSIGN_OR_RETURN(*tensor, Tensor::Empty(device, DType::kF32, shape));
    DT_RETURN_IF_ERROR(kernels::Fill(device, *tensor, value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankKernels> RankKernels::Create(Context& context, int64_t elements) {
  DT_CHECK(elements >= Tokens(DType::kF32) * kFeatures);
  RankKernels kernels(context);
  Device& device = context.device();
  DT_RETURN_IF_ERROR(SetAll(device, 0, {&kernels.a_, &kernels.b_, &kernels.c_}, {elements}));
  DT_RETURN_IF_ERROR(kernels.MakeHeads());
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"all", context.world_size()}}));
  DT_ASSIGN_OR_RETURN(kernels.small_,
                      Full(context, Layout::Replicated(mesh, 1), {16}, DType::kF32, 1));
  DT_RETURN_IF_ERROR(kernels.small_.set_requires_grad(true));
  return kernels;
}

absl::Status RankKernels::MakeHeads() {
  Device& device = context_->device();
  DT_RETURN_IF_ERROR(SetAll(device, 0.1f, {&q_, &k_, &v_, &o_, &dout_, &dq_, &dk_, &dv_},
                            {1, kPositions, kHeads, kHeadDim}));
  return SetAll(device, 0, {&lse_}, {1, kHeads, kPositions});
}

// y = x w^T, dx = dy w, dw = dy^T x.
absl::Status RankKernels::Gemm(DType dtype) {
  const int64_t tokens = Tokens(dtype), n = kFeatures;
  GemmProblem gemm = {.dtype = dtype, .out_dtype = dtype, .m = tokens, .n = n, .k = n};
  gemm.a = {a_.raw(), n, 1, 0};
  gemm.b = {b_.raw(), 1, n, 0};
  gemm.c = {c_.raw(), n, 1, 0};
  DT_RETURN_IF_ERROR(context_->device().Gemm(gemm));
  gemm.b = {b_.raw(), n, 1, 0};
  DT_RETURN_IF_ERROR(context_->device().Gemm(gemm));
  gemm.m = n;
  gemm.k = tokens;
  gemm.a = {b_.raw(), 1, n, 0};
  gemm.b = {a_.raw(), n, 1, 0};
  return context_->device().Gemm(gemm);
}

double RankKernels::GemmFlops(DType dtype) {
  return 3 * 2.0 * static_cast<double>(Tokens(dtype) * kFeatures * kFeatures);
}

absl::Status RankKernels::Attention() {
  Device& device = context_->device();
  DT_RETURN_IF_ERROR(kernels::Attention(device, q_, k_, v_, 0.125, /*causal=*/true, o_, lse_));
  return kernels::AttentionGrad(device, q_, k_, v_, o_, lse_, dout_, 0.125, /*causal=*/true, dq_,
                                dk_, dv_);
}

// Two matrix products forward and five backward, over the pairs that the mask allows.
double RankKernels::AttentionFlops() {
  constexpr double kPairs = kPositions * (kPositions + 1) / 2;
  return 7 * 2.0 * kHeads * kHeadDim * kPairs;
}

absl::Status RankKernels::Add() {
  return kernels::Binary(context_->device(), kernels::BinaryOp::kAdd, a_, b_, c_);
}

absl::Status RankKernels::Dispatch() { return dtensor::Add(small_, small_).status(); }

}  // namespace dtensor::cli
