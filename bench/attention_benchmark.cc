// The CPU attention kernel on one thread: batch 1, 4 heads, forward and backward, beside oneDNN's
// product of the same type on the same core.
//
//   bazel run //bench:attention -- --benchmark_filter='fwd/4096/128/full/f32'
//
//   GF_per_s           4 s^2 d a head forward, 10 s^2 d backward; half of it under a causal mask
//   product_GF_per_s   at 1024^3, in turn with the kernel
//   share_of_product   the first over the second
//
// fwd8 and bwd8 feed the keys in 8 steps, as a ring of 8 ranks does, to all queries; the carry, and
// gradients of keys in f32, are part of that.
//
// Times are the thread's CPU time, and the fastest of all calls: these machines are shared.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

constexpr int64_t kHeads = 4;

struct Row {
  int64_t s, d;
  bool causal, backward;
  DType dtype;
  int64_t steps = 1;
};

std::string NameOf(const Row& row) {
  const std::string steps = row.steps > 1 ? absl::StrCat(row.steps) : "";
  return absl::StrCat(row.backward ? "bwd" : "fwd", steps, "/", row.s, "/", row.d, "/",
                      row.causal ? "causal" : "full", "/", std::string(ToString(row.dtype)));
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// `best` becomes the shortest run of `fn` so far.
template <class Fn>
double Shorten(double& best, Fn fn) {
  const double start = ThreadSeconds();
  DT_CHECK(fn().ok());
  const double seconds = ThreadSeconds() - start;
  best = std::min(best, seconds);
  return seconds;
}

Tensor Noise(Device& device, DType dtype, const Dims& shape, uint64_t seed) {
  auto tensor = Tensor::Empty(device, dtype, shape);
  DT_CHECK(tensor.ok());
  std::vector<IndexSet> region;
  for (const int64_t size : shape) region.push_back(IndexSet::Interval(0, size));
  DT_CHECK(RandomNormal(device, region, shape, seed, 1, 0, 1, *tensor).ok());
  return *tensor;
}

// A square product of the type, as the yardstick.
class Yardstick {
 public:
  Yardstick(Device& device, DType dtype)
      : device_(device),
        a_(Noise(device, dtype, {kSize, kSize}, 1)),
        b_(Noise(device, dtype, {kSize, kSize}, 2)),
        c_(Noise(device, dtype, {kSize, kSize}, 3)) {}

  void Run() {
    GemmProblem gemm;
    gemm.dtype = gemm.out_dtype = a_.dtype();
    gemm.m = gemm.n = gemm.k = kSize;
    gemm.a = {a_.raw(), kSize, 1, 0};
    gemm.b = {b_.raw(), kSize, 1, 0};
    gemm.c = {c_.raw(), kSize, 1, 0};
    Shorten(best_, [&] { return device_.Gemm(gemm); });
  }
  double Speed() const { return 2.0 * kSize * kSize * kSize / best_ / 1e9; }

 private:
  static constexpr int64_t kSize = 1024;
  Device& device_;
  Tensor a_, b_, c_;
  double best_ = 1e9;
};

// The operands and results of a row.
class Bench {
 public:
  explicit Bench(const Row& row)
      : row_(row),
        device_(MakeCpuDevice()),
        scale_(1 / std::sqrt(static_cast<double>(row.d))),
        shape_({1, row.s, kHeads, row.d}),
        q_(Make(row.dtype)),
        k_(Make(row.dtype)),
        v_(Make(row.dtype)),
        dout_(Make(row.dtype)),
        o_(Make(row.dtype)),
        dq_(Make(GradientType())),
        dk_(Make(GradientType())),
        dv_(Make(GradientType())),
        lse_(Noise(*device_, DType::kF32, {1, kHeads, row.s}, 9)),
        delta_(Noise(*device_, DType::kF32, lse_.shape(), 9)),
        carry_({Make(DType::kF32), Noise(*device_, DType::kF32, lse_.shape(), 9),
                Noise(*device_, DType::kF32, lse_.shape(), 9)}) {}

  Device& device() { return *device_; }

  absl::Status Forward() {
    for (int64_t i = 0; i < row_.steps; ++i) {
      DT_RETURN_IF_ERROR(
          Attention(*device_, q_, Keys(k_, i), Keys(v_, i), Step(i), &carry_, o_, lse_));
    }
    return absl::OkStatus();
  }
  absl::Status Backward() {
    DT_RETURN_IF_ERROR(AttentionDelta(*device_, o_, dout_, delta_));
    for (int64_t i = 0; i < row_.steps; ++i) {
      DT_RETURN_IF_ERROR(AttentionGrad(*device_, q_, Keys(k_, i), Keys(v_, i), lse_, delta_, dout_,
                                       Step(i), dq_, Keys(dk_, i), Keys(dv_, i)));
    }
    return absl::OkStatus();
  }

 private:
  DType GradientType() const { return row_.steps > 1 ? DType::kF32 : row_.dtype; }
  Tensor Make(DType dtype) { return Noise(*device_, dtype, shape_, ++seed_); }
  int64_t Count() const { return row_.s / row_.steps; }
  Tensor Keys(const Tensor& x, int64_t i) const {
    return x.View({1, Count(), kHeads, row_.d}, x.strides(), i * Count() * x.strides()[1]);
  }
  AttentionStep Step(int64_t i) const {
    AttentionStep step = WholeAttention(scale_, row_.causal, row_.s, row_.s);
    step.k_positions = step.k_positions.Slice(i * Count(), (i + 1) * Count());
    step.first = i == 0;
    step.last = i + 1 == row_.steps;
    return step;
  }

  const Row row_;
  uint64_t seed_ = 0;
  const std::unique_ptr<Device> device_;
  const double scale_;
  const Dims shape_;
  const Tensor q_, k_, v_, dout_, o_, dq_, dk_, dv_, lse_, delta_;
  const AttentionCarry carry_;
};

void Run(benchmark::State& state, const Row& row) {
  Bench bench(row);
  DT_CHECK(bench.Forward().ok());
  Yardstick yardstick(bench.device(), row.dtype);
  double best = 1e9;
  for (auto _ : state) {
    yardstick.Run();
    state.SetIterationTime(
        Shorten(best, [&] { return row.backward ? bench.Backward() : bench.Forward(); }));
  }
  const double s = static_cast<double>(row.s), d = static_cast<double>(row.d);
  const double flops = (row.backward ? 10.0 : 4.0) * s * s * d * kHeads / (row.causal ? 2 : 1);
  state.counters["GF_per_s"] = flops / best / 1e9;
  state.counters["product_GF_per_s"] = yardstick.Speed();
  state.counters["share_of_product"] = flops / best / 1e9 / yardstick.Speed();
}

void Register(const Row& row) {
  benchmark::RegisterBenchmark(NameOf(row).c_str(), [row](benchmark::State& state) {
    Run(state, row);
  })->UseManualTime();
}

const bool registered = [] {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool backward : {false, true}) {
      for (const int64_t s : {1024, 4096, 8192}) {
        for (const int64_t d : {64, 128}) {
          for (const bool causal : {true, false}) {
            Register({s, d, causal, backward, dtype});
            if (s == 8192) Register({s, d, causal, backward, dtype, 8});
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dtensor::kernels
