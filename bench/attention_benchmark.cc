// The CPU attention kernel on one thread: batch 1, 4 heads, forward and backward, beside oneDNN's
// product of the same type on the same core.
//
//   bazel run //bench:attention -- --benchmark_filter='fwd/4096/128/full/f32'
//
//   GF_per_s           4 s^2 d a head forward, 10 s^2 d backward; half of it under a causal mask
//   product_GF_per_s   at 1024^3, in turn with the kernel
//   share_of_product   the first over the second
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
#include "dtensor/runtime/device/product.h"
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
};

std::string NameOf(const Row& row) {
  return absl::StrCat(row.backward ? "bwd" : "fwd", "/", row.s, "/", row.d, "/",
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
    Product product;
    product.dtype = product.out_dtype = a_.dtype();
    product.m = product.n = product.k = kSize;
    product.a = {a_.raw(), kSize, 1, 0};
    product.b = {b_.raw(), kSize, 1, 0};
    product.c = {c_.raw(), kSize, 1, 0};
    Shorten(best_, [&] { return device_.Multiply(product); });
  }
  double Speed() const { return 2.0 * kSize * kSize * kSize / best_ / 1e9; }

 private:
  static constexpr int64_t kSize = 1024;
  Device& device_;
  Tensor a_, b_, c_;
  double best_ = 1e9;
};

void Run(benchmark::State& state, const Row& row) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Dims shape = {1, row.s, kHeads, row.d};
  const auto noise = [&](uint64_t seed) { return Noise(*device, row.dtype, shape, seed); };
  const Tensor q = noise(1), k = noise(2), v = noise(3), dout = noise(4), o = noise(5);
  const Tensor dq = noise(6), dk = noise(7), dv = noise(8);
  auto lse = Tensor::Empty(*device, DType::kF32, {1, kHeads, row.s});
  DT_CHECK(lse.ok());
  const double scale = 1 / std::sqrt(static_cast<double>(row.d));
  DT_CHECK(Attention(*device, q, k, v, scale, row.causal, o, *lse).ok());

  Yardstick yardstick(*device, row.dtype);
  double best = 1e9;
  for (auto _ : state) {
    yardstick.Run();
    state.SetIterationTime(Shorten(best, [&] {
      if (!row.backward) return Attention(*device, q, k, v, scale, row.causal, o, *lse);
      return AttentionGrad(*device, q, k, v, o, *lse, dout, scale, row.causal, dq, dk, dv);
    }));
  }
  const double s = static_cast<double>(row.s), d = static_cast<double>(row.d);
  const double flops = (row.backward ? 10.0 : 4.0) * s * s * d * kHeads / (row.causal ? 2 : 1);
  state.counters["GF_per_s"] = flops / best / 1e9;
  state.counters["product_GF_per_s"] = yardstick.Speed();
  state.counters["share_of_product"] = flops / best / 1e9 / yardstick.Speed();
}

const bool registered = [] {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool backward : {false, true}) {
      for (const int64_t s : {1024, 4096, 8192}) {
        for (const int64_t d : {64, 128}) {
          for (const bool causal : {true, false}) {
            const Row row = {s, d, causal, backward, dtype};
            benchmark::RegisterBenchmark(NameOf(row).c_str(), [row](benchmark::State& state) {
              Run(state, row);
            })->UseManualTime();
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dtensor::kernels
