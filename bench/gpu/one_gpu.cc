// What one GPU does: see figure.h.
#ifdef DTENSOR_HAS_CUDNN
#include <cudnn.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/bench/gpu/figure.h"
#include "dtensor/bench/gpu/noise.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/cudnn.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::bench {
namespace {

// --- Attention.

std::string CudnnName() {
#ifdef DTENSOR_HAS_CUDNN
  return absl::StrCat("cuDNN ", cudnnGetVersion());
#else
  return "cuDNN (the program is built without it)";
#endif
}

struct AttentionRow {
  int64_t s, heads, kv_heads, dim;
  bool causal;
};

class AttentionRun {
 public:
  static absl::StatusOr<AttentionRun> Make(Device& device, const AttentionRow& row) {
    AttentionRun run(device, row);
    const Dims q = {1, row.s, row.heads, row.dim}, k = {1, row.s, row.kv_heads, row.dim};
    for (Tensor* x : {&run.q_, &run.o_, &run.dout_, &run.dq_}) {
      DT_ASSIGN_OR_RETURN(*x, Noise(device, DType::kBF16, q));
    }
    for (Tensor* x : {&run.k_, &run.v_, &run.dk_, &run.dv_}) {
      DT_ASSIGN_OR_RETURN(*x, Noise(device, DType::kBF16, k));
    }
    for (Tensor* x : {&run.lse_, &run.delta_}) {
      DT_ASSIGN_OR_RETURN(*x, Tensor::Empty(device, DType::kF32, {1, row.heads, row.s}));
    }
    return run;
  }

  absl::Status Run(bool backward) const {
    if (!backward) {
      return kernels::Attention(device_, q_, k_, v_, scale_, row_.causal, o_, lse_);
    }
    return kernels::AttentionGrad(device_, q_, k_, v_, o_, lse_, dout_, scale_, row_.causal, dq_,
                                  dk_, dv_);
  }
  // Under a mask that cuDNN is not asked for.
  absl::Status RunStep(bool backward, const kernels::AttentionStep& step) const {
    if (!backward) return kernels::Attention(device_, q_, k_, v_, step, nullptr, o_, lse_);
    DT_RETURN_IF_ERROR(kernels::AttentionDelta(device_, o_, dout_, delta_));
    return kernels::AttentionGrad(device_, q_, k_, v_, lse_, delta_, dout_, step, dq_, dk_, dv_,
                                  &o_);
  }
  kernels::AttentionStep Causal() const {
    return kernels::WholeAttention(scale_, true, row_.s, row_.s);
  }
  // Each query sees `width` keys.
  kernels::AttentionStep Window(int64_t width) const {
    kernels::AttentionStep step = Causal();
    step.mask = *AttentionMask::Window(width);
    return step;
  }
  // A block of a striped ring of two ranks: queries at even positions, keys at odd ones.
  kernels::AttentionStep Striped() const {
    kernels::AttentionStep step = Causal();
    step.q_positions = IndexSet::FromIntervals({IndexRun{0, 1, 2, row_.s}});
    step.k_positions = IndexSet::FromIntervals({IndexRun{1, 1, 2, row_.s}});
    return step;
  }

 private:
  AttentionRun(Device& device, const AttentionRow& row)
      : device_(device), row_(row), scale_(1 / std::sqrt(static_cast<double>(row.dim))) {}

  Device& device_;
  AttentionRow row_;
  double scale_;
  Tensor q_, k_, v_, o_, lse_, delta_, dout_, dq_, dk_, dv_;
};

// Products of q and k that the mask leaves, of 2 flops a feature.
double PairFlops(const AttentionRow& row, double pairs) {
  return 2.0 * pairs * static_cast<double>(row.heads * row.dim);
}

double FlopsOf(const AttentionRow& row, bool backward, double pairs) {
  return (backward ? 5 : 2) * PairFlops(row, pairs);
}

std::string NameOf(const AttentionRow& row, bool backward, const char* mask, const char* by) {
  return absl::StrCat("attention/", backward ? "bwd/" : "fwd/", row.s, "/", row.dim, "/", mask, "/",
                      by);
}

// The portable kernel under other masks, beside its rate under the causal one.
absl::Status MeasureMasks(Device& device, const Scale& scale, const AttentionRow& row,
                          const AttentionRun& run, bool backward, const Report& report) {
  const int64_t width = row.s / 4;
  const auto s = static_cast<double>(row.s), w = static_cast<double>(width);
  struct Masked {
    const char* name;
    double pairs;
    kernels::AttentionStep step;
  };
  const Masked masks[] = {{"causal", s * (s + 1) / 2, run.Causal()},
                          {"window", w * (w + 1) / 2 + (s - w) * w, run.Window(width)},
                          {"striped", s * (s - 1) / 2, run.Striped()}};
  std::vector<Call> calls;
  for (const Masked& mask : masks) {
    calls.push_back([&] { return run.RunStep(backward, mask.step); });
  }
  kernels::AllowCudnn(device, false);
  DT_ASSIGN_OR_RETURN(const std::vector<double> seconds, SecondsInTurn(device, scale, calls));
  kernels::AllowCudnn(device, true);
  const double causal = FlopsOf(row, backward, masks[0].pairs) / seconds[0];
  for (const int i : {1, 2}) {
    const double rate = FlopsOf(row, backward, masks[i].pairs) / seconds[i];
    report({NameOf(row, backward, masks[i].name, "portable"), rate / 1e12, "TF/s",
            "the causal mask", rate / causal, ""});
  }
  return absl::OkStatus();
}

absl::Status MeasurePass(Device& device, const Scale& scale, const AttentionRow& row,
                         const AttentionRun& run, bool backward, const Report& report) {
  const auto by = [&](bool cudnn) {
    return [&, cudnn] {
      kernels::AllowCudnn(device, cudnn);
      return run.Run(backward);
    };
  };
  const int64_t before = kernels::CudnnSteps(device);
  DT_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                      SecondsInTurn(device, scale, {by(false), by(true)}));
  const auto s = static_cast<double>(row.s);
  const double flops = FlopsOf(row, backward, row.causal ? s * (s + 1) / 2 : s * s);
  const double portable = flops / seconds[0] / 1e12, cudnn = flops / seconds[1] / 1e12;
  const char* const mask = row.causal ? "causal" : "full";
  const std::string name = NameOf(row, backward, mask, "portable");
  if (kernels::CudnnSteps(device) == before) {  // both were the portable kernel
    report({name, portable, "TF/s", "", 0, CudnnName() + " does not compute it here"});
  } else {
    report({NameOf(row, backward, mask, "cudnn"), cudnn, "TF/s", "", 0, CudnnName()});
    report({name, portable, "TF/s", "cuDNN", portable / cudnn, ""});
  }
  return absl::OkStatus();
}

absl::Status MeasureAttention(Device& device, const Scale& scale, const AttentionRow& row,
                              const Report& report) {
  DT_ASSIGN_OR_RETURN(const AttentionRun run, AttentionRun::Make(device, row));
  for (const bool backward : {false, true}) {
    DT_RETURN_IF_ERROR(MeasurePass(device, scale, row, run, backward, report));
    if (row.causal) {
      DT_RETURN_IF_ERROR(MeasureMasks(device, scale, row, run, backward, report));
    }
  }
  return absl::OkStatus();
}

// A text's next token: one query of each head, and keys and values that are read once.
absl::Status MeasureDecoding(Device& device, const Scale& scale, double copy,
                             const Report& report) {
  const int64_t keys = scale.Of(32768, 64), heads = 32, kv_heads = 8, dim = 128;
  const DType dtype = DType::kBF16;
  DT_ASSIGN_OR_RETURN(const Tensor q, Noise(device, dtype, {1, 1, heads, dim}));
  DT_ASSIGN_OR_RETURN(const Tensor o, Noise(device, dtype, {1, 1, heads, dim}));
  DT_ASSIGN_OR_RETURN(const Tensor k, Noise(device, dtype, {1, keys, kv_heads, dim}));
  DT_ASSIGN_OR_RETURN(const Tensor v, Noise(device, dtype, {1, keys, kv_heads, dim}));
  DT_ASSIGN_OR_RETURN(const Tensor lse, Tensor::Empty(device, DType::kF32, {1, heads, 1}));
  DT_ASSIGN_OR_RETURN(const double seconds, SecondsOf(device, scale, [&] {
                        return kernels::Attention(device, q, k, v, 0.1, true, o, lse);
                      }));
  const double rate = static_cast<double>(k.bytes() + v.bytes()) / seconds / 1e9;
  report({absl::StrCat("attention/decode/", keys, "/", dim), rate, "GB/s", "the copy", rate / copy,
          ""});
  return absl::OkStatus();
}

// --- The host.

// Of calls that nobody waits for, as many as a queue holds easily.
template <typename Fn>
absl::StatusOr<double> HostMicroseconds(Device& device, const Scale& scale, const Fn& call) {
  using Clock = std::chrono::steady_clock;
  const int calls = scale.tiny ? 10 : 500;
  double fastest = 0;
  for (int round = 0; round < 1 + scale.rounds(); ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) DT_RETURN_IF_ERROR(call());
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    DT_RETURN_IF_ERROR(device.Synchronize());
    if (round > 0) fastest = round == 1 ? us : std::min(fastest, us);
  }
  return fastest / calls;
}

absl::Status MeasureHost(Device& device, const Scale& scale, const Report& report) {
  DT_ASSIGN_OR_RETURN(const Tensor x, Noise(device, DType::kF32, {4, 4}));
  DT_ASSIGN_OR_RETURN(const Tensor y, Noise(device, DType::kF32, {4, 4}));
  DT_ASSIGN_OR_RETURN(const double kernel, HostMicroseconds(device, scale, [&] {
                        return kernels::Binary(device, kernels::BinaryOp::kAdd, x, x, y);
                      }));
  report({"host/kernel/add", kernel, "us", "", 0, ""});

  // As rank 0 of a 2x2 mesh on paper: nothing is communicated.
  const std::unique_ptr<Communicator> communicator = MakeSimulatedCommunicator(0, 4);
  Context context(*communicator, device);
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
  const Placement placements[] = {Shard(0), Shard(1)};
  const TensorOr a = FromLocal(context, mesh, placements, {8, 8}, x);
  DT_RETURN_IF_ERROR(a.status());
  DT_ASSIGN_OR_RETURN(const double whole,
                      HostMicroseconds(device, scale, [&] { return Add(a, a).status(); }));
  report({"host/operator/add", whole, "us", "6 us", 6 / whole, ""});
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureOneGpu(Device& device, const Scale& scale, const Report& report) {
  DT_ASSIGN_OR_RETURN(const double copy, MeasureMemory(device, scale, report));
  DT_RETURN_IF_ERROR(MeasureProducts(device, scale, report));
  const std::vector<AttentionRow> rows = scale.tiny
                                             ? std::vector<AttentionRow>{{64, 2, 1, 16, true}}
                                             : std::vector<AttentionRow>{{4096, 16, 16, 128, true},
                                                                         {4096, 16, 16, 128, false},
                                                                         {8192, 32, 8, 128, true},
                                                                         {4096, 16, 16, 64, true}};
  for (const AttentionRow& row : rows) {
    DT_RETURN_IF_ERROR(MeasureAttention(device, scale, row, report));
  }
  DT_RETURN_IF_ERROR(MeasureDecoding(device, scale, copy, report));
  return MeasureHost(device, scale, report);
}

}  // namespace dtensor::bench
