// What one GPU does: see figure.h.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/bench/gpu/figure.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/cudnn.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/norm.h"
#include "dtensor/runtime/kernels/optimizer.h"
#include "dtensor/runtime/kernels/softmax.h"

namespace dtensor::bench {
namespace {

absl::StatusOr<Tensor> Noise(Device& device, DType dtype, const Dims& shape) {
  DT_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::Empty(device, dtype, shape));
  std::vector<IndexSet> region;
  for (const int64_t size : shape) region.push_back(IndexSet::Interval(0, size));
  DT_RETURN_IF_ERROR(kernels::RandomNormal(device, region, shape, 1, 2, 0, 1, tensor));
  return tensor;
}

// --- Memory.

// Returns what a copy reaches, in GB/s.
absl::StatusOr<double> MeasureMemory(Device& device, const Scale& scale, const Report& report) {
  const int64_t columns = 4096, rows = scale.Of(32768, 4);  // 256 MiB in bf16
  const DType dtype = DType::kBF16;
  DT_ASSIGN_OR_RETURN(const Tensor x, Noise(device, dtype, {rows, columns}));
  DT_ASSIGN_OR_RETURN(const Tensor y, Noise(device, dtype, {rows, columns}));
  DT_ASSIGN_OR_RETURN(const Tensor z, Noise(device, dtype, {rows, columns}));
  DT_ASSIGN_OR_RETURN(const Tensor weight, Noise(device, dtype, {columns}));
  DT_ASSIGN_OR_RETURN(const Tensor rstd, Noise(device, DType::kF32, {rows}));
  DT_ASSIGN_OR_RETURN(const Tensor m, Noise(device, DType::kF32, {rows, columns}));
  DT_ASSIGN_OR_RETURN(const Tensor v, Tensor::Empty(device, DType::kF32, {rows, columns}));
  DT_RETURN_IF_ERROR(kernels::Fill(device, v, 1));
  DT_ASSIGN_OR_RETURN(const double copy, SecondsOf(device, scale, [&] {
                        return device.CopyOnDevice(y.raw(), x.raw(), x.bytes());
                      }));
  const double limit = 2 * static_cast<double>(x.bytes()) / copy / 1e9;
  report({"memory/copy", limit, "GB/s", "", 0, ""});

  using Call = std::function<absl::Status()>;
  const std::tuple<const char*, int64_t, Call> kernels[] = {
      {"memory/add", 3 * x.bytes(),
       [&] { return kernels::Binary(device, kernels::BinaryOp::kAdd, x, y, z); }},
      {"memory/silu_mul", 3 * x.bytes(), [&] { return kernels::SiluMul(device, x, y, z); }},
      {"memory/transpose", 2 * x.bytes(),
       [&] {
         return kernels::Unary(device, kernels::UnaryOp::kCopy, x.Transpose(0, 1),
                               *z.Reshape({columns, rows}));
       }},
      {"memory/softmax", 2 * x.bytes(),
       [&] { return kernels::Softmax(device, kernels::SoftmaxForm::kPlain, x, z); }},
      {"memory/rms_norm", 2 * x.bytes(),
       [&] { return kernels::RmsNorm(device, x, weight, 1e-5, z, rstd); }},
      {"memory/adamw", 3 * x.bytes() + 4 * m.bytes(),
       [&] { return kernels::AdamW(device, {.lr = 1e-4}, z, y, m, v, Tensor()); }}};
  for (const auto& [name, bytes, call] : kernels) {
    DT_ASSIGN_OR_RETURN(const double seconds, SecondsOf(device, scale, call));
    const double rate = static_cast<double>(bytes) / seconds / 1e9;
    report({name, rate, "GB/s", "the copy", rate / limit, ""});
  }
  return limit;
}

// --- Attention.

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
    DT_ASSIGN_OR_RETURN(run.lse_, Tensor::Empty(device, DType::kF32, {1, row.heads, row.s}));
    return run;
  }

  absl::Status Forward() const {
    return kernels::Attention(device_, q_, k_, v_, scale_, row_.causal, o_, lse_);
  }
  absl::Status Backward() const {
    return kernels::AttentionGrad(device_, q_, k_, v_, o_, lse_, dout_, scale_, row_.causal, dq_,
                                  dk_, dv_);
  }
  // Under masks that cuDNN is not asked for. Each query sees `width` keys:
  absl::Status Window(int64_t width) const {
    kernels::AttentionStep step = kernels::WholeAttention(scale_, true, row_.s, row_.s);
    DT_ASSIGN_OR_RETURN(step.mask, AttentionMask::Window(width));
    return kernels::Attention(device_, q_, k_, v_, step, nullptr, o_, lse_);
  }
  // A block of a striped ring of two ranks: queries at even positions, keys at odd ones.
  absl::Status Striped() const {
    kernels::AttentionStep step = kernels::WholeAttention(scale_, true, row_.s, row_.s);
    step.q_positions = IndexSet::FromIntervals({IndexRun{0, 1, 2, row_.s}});
    step.k_positions = IndexSet::FromIntervals({IndexRun{1, 1, 2, row_.s}});
    return kernels::Attention(device_, q_, k_, v_, step, nullptr, o_, lse_);
  }

 private:
  AttentionRun(Device& device, const AttentionRow& row)
      : device_(device), row_(row), scale_(1 / std::sqrt(static_cast<double>(row.dim))) {}

  Device& device_;
  AttentionRow row_;
  double scale_;
  Tensor q_, k_, v_, o_, lse_, dout_, dq_, dk_, dv_;
};

// Products of q and k that the mask leaves, of 2 flops a feature.
double PairFlops(const AttentionRow& row, double pairs) {
  return 2.0 * pairs * static_cast<double>(row.heads * row.dim);
}

// The portable kernel under other masks, beside its rate under the causal one.
absl::Status MeasureMasks(Device& device, const Scale& scale, const AttentionRow& row,
                          const AttentionRun& run, double causal, const Report& report) {
  const int64_t width = row.s / 4;
  const auto s = static_cast<double>(row.s), w = static_cast<double>(width);
  struct Masked {
    const char* name;
    double pairs;
    std::function<absl::Status()> call;
  };
  const Masked masks[] = {
      {"window", w * (w + 1) / 2 + (s - w) * w, [&] { return run.Window(width); }},
      {"striped", s * (s - 1) / 2, [&] { return run.Striped(); }}};
  kernels::AllowCudnn(device, false);
  for (const Masked& mask : masks) {
    DT_ASSIGN_OR_RETURN(const double seconds, SecondsOf(device, scale, mask.call));
    const double rate = 2 * PairFlops(row, mask.pairs) / seconds / 1e12;
    report({absl::StrCat("attention/fwd/", row.s, "/", row.dim, "/", mask.name, "/portable"), rate,
            "TF/s", "the causal mask", rate / causal, ""});
  }
  kernels::AllowCudnn(device, true);
  return absl::OkStatus();
}

absl::Status MeasureAttention(Device& device, const Scale& scale, const AttentionRow& row,
                              const Report& report) {
  DT_ASSIGN_OR_RETURN(const AttentionRun run, AttentionRun::Make(device, row));
  const auto s = static_cast<double>(row.s);
  const double pairs = row.causal ? s * (s + 1) / 2 : s * s;
  double forward = 0;  // by the portable kernel
  for (const bool backward : {false, true}) {
    const double flops = (backward ? 5 : 2) * PairFlops(row, pairs);
    const std::string name = absl::StrCat("attention/", backward ? "bwd/" : "fwd/", row.s, "/",
                                          row.dim, row.causal ? "/causal" : "/full");
    double rates[2] = {};  // portable, cuDNN
    int64_t steps = 0;
    for (const bool cudnn : {false, true}) {
      kernels::AllowCudnn(device, cudnn);
      const int64_t before = kernels::CudnnSteps(device);
      DT_ASSIGN_OR_RETURN(const double seconds, SecondsOf(device, scale, [&] {
                            return backward ? run.Backward() : run.Forward();
                          }));
      rates[cudnn] = flops / seconds / 1e12;
      steps = kernels::CudnnSteps(device) - before;
    }
    const char* const who = steps > 0 ? "" : "cuDNN does not compute it here";
    report({name + "/cudnn", rates[1], "TF/s", "", 0, who});
    report({name + "/portable", rates[0], "TF/s", "cuDNN", rates[0] / rates[1], who});
    if (!backward) forward = rates[0];
  }
  return row.causal ? MeasureMasks(device, scale, row, run, forward, report) : absl::OkStatus();
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
