// Measures the bytes per second that the main kernels read and write, on one thread or, with
// DTENSOR_BENCH_DEVICE=cuda, on the first GPU. A copy in the same run is the reference:
//
//   bazel run -c opt //runtime/kernels:kernels_benchmark -- --benchmark_filter=f32
//
// Sizes are bytes of one operand. On a busy machine, take the smallest of
// --benchmark_repetitions=10.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/comparison.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/norm.h"
#include "dtensor/runtime/kernels/optimizer.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/runtime/kernels/softmax.h"

namespace dtensor::kernels {
namespace {

using benchmark::State;

bool OnGpu() {
  const char* const device = std::getenv("DTENSOR_BENCH_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}

std::unique_ptr<Device> MakeDevice() {
  if (!OnGpu()) return MakeCpuDevice();
  auto device = MakeCudaDevice(0);
  DT_REQUIRE(device.ok(), "DTENSOR_BENCH_DEVICE=cuda needs a GPU, and --config=cuda");
  return *std::move(device);
}

// One rank's device and tensors of `bytes` bytes in rows of `width` elements.
struct Bench {
  Bench(DType type, int64_t bytes, int64_t width)
      : device(MakeDevice()), dtype(type), rows(bytes / SizeOf(type) / width), columns(width) {}

  Tensor Make(DType type, absl::Span<const int64_t> shape, double value) {
    auto tensor = Tensor::Empty(*device, type, shape);
    DT_CHECK(tensor.ok() && Fill(*device, *tensor, value).ok());
    return *tensor;
  }
  Tensor Matrix(double value) { return Make(dtype, {rows, columns}, value); }
  Tensor Noise() {
    Tensor tensor = Matrix(0);
    const IndexSet region[] = {IndexSet::Interval(0, rows), IndexSet::Interval(0, columns)};
    DT_CHECK(RandomNormal(*device, region, tensor.shape(), 1, 2, 0, 1, tensor).ok());
    return tensor;
  }

  std::unique_ptr<Device> device;
  DType dtype;
  int64_t rows, columns;
};

// A GPU gets several launches at a time, so that the host's cost of a launch is hidden, as in real
// programs.
void Measure(State& state, Bench& b, int64_t bytes, const std::function<absl::Status()>& kernel) {
  const int batch = OnGpu() ? 20 : 1;
  DT_CHECK(kernel().ok() && b.device->Synchronize().ok());
  while (state.KeepRunningBatch(batch)) {
    for (int i = 0; i < batch; ++i) DT_CHECK(kernel().ok());
    DT_CHECK(b.device->Synchronize().ok());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes);
}

void BM_Memcpy(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Matrix(1), y = b.Matrix(2);
  Measure(state, b, 2 * x.bytes(),
          [&] { return b.device->CopyOnDevice(y.raw(), x.raw(), x.bytes()); });
}

void BM_Add(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), y = b.Noise(), z = b.Matrix(0);
  Measure(state, b, 3 * x.bytes(), [&] { return Binary(*b.device, BinaryOp::kAdd, x, y, z); });
}

void BM_Transpose(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor x = b.Noise(), y = b.Make(dtype, {b.columns, b.rows}, 0);
  const Tensor view = x.Transpose(0, 1);
  Measure(state, b, 2 * x.bytes(), [&] { return Unary(*b.device, UnaryOp::kCopy, view, y); });
}

void BM_Exp(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), z = b.Matrix(0);
  Measure(state, b, 2 * x.bytes(), [&] { return Unary(*b.device, UnaryOp::kExp, x, z); });
}

void BM_Gelu(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), z = b.Matrix(0);
  Measure(state, b, 2 * x.bytes(), [&] { return Unary(*b.device, UnaryOp::kGelu, x, z); });
}

void BM_GeluGrad(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), dy = b.Noise(), z = b.Matrix(0);
  Measure(state, b, 3 * x.bytes(), [&] { return UnaryGrad(*b.device, UnaryOp::kGelu, x, dy, z); });
}

void BM_Where(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), y = b.Noise(), z = b.Matrix(0);
  const Tensor condition = b.Make(DType::kBool, x.shape(), 0);
  DT_CHECK(Compare(*b.device, CompareOp::kLess, x, y, condition).ok());
  Measure(state, b, 3 * x.bytes() + condition.bytes(),
          [&] { return Where(*b.device, condition, x, y, z); });
}

void BM_SiluMul(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), y = b.Noise(), z = b.Matrix(0);
  Measure(state, b, 3 * x.bytes(), [&] { return SiluMul(*b.device, x, y, z); });
}

void BM_SiluMulGrad(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), y = b.Noise(), dy = b.Noise(), dx = b.Matrix(0), du = b.Matrix(0);
  Measure(state, b, 5 * x.bytes(), [&] { return SiluMulGrad(*b.device, x, y, dy, dx, du); });
}

void BM_Softmax(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), y = b.Matrix(0);
  Measure(state, b, 2 * x.bytes(), [&] { return Softmax(*b.device, SoftmaxForm::kPlain, x, y); });
}

void BM_RmsNorm(State& state, DType dtype) {
  Bench b(dtype, state.range(0), state.range(1));
  const Tensor x = b.Noise(), y = b.Matrix(0), w = b.Make(dtype, {b.columns}, 1);
  const Tensor rstd = b.Make(AccumulatorOf(dtype), {b.rows}, 1);
  Measure(state, b, 2 * x.bytes(), [&] { return RmsNorm(*b.device, x, w, 1e-5, y, rstd); });
}

void BM_RmsNormGrad(State& state, DType dtype) {
  Bench b(dtype, state.range(0), state.range(1));
  const Tensor x = b.Noise(), dy = b.Noise(), dx = b.Matrix(0), w = b.Make(dtype, {b.columns}, 1);
  const Tensor rstd = b.Make(AccumulatorOf(dtype), {b.rows}, 1), dw = b.Make(dtype, {b.columns}, 0);
  Measure(state, b, 3 * x.bytes(), [&] { return RmsNormGrad(*b.device, x, w, rstd, dy, dx, dw); });
}

void BM_LayerNorm(State& state, DType dtype) {
  Bench b(dtype, state.range(0), state.range(1));
  const Tensor x = b.Noise(), y = b.Matrix(0), w = b.Make(dtype, {b.columns}, 1);
  const Tensor mean = b.Make(AccumulatorOf(dtype), {b.rows}, 1);
  const Tensor rstd = b.Make(AccumulatorOf(dtype), {b.rows}, 1);
  Measure(state, b, 2 * x.bytes(),
          [&] { return LayerNorm(*b.device, x, w, w, 1e-5, y, mean, rstd); });
}

void BM_LayerNormGrad(State& state, DType dtype) {
  Bench b(dtype, state.range(0), state.range(1));
  const Tensor x = b.Noise(), dy = b.Noise(), dx = b.Matrix(0), w = b.Make(dtype, {b.columns}, 1);
  const Tensor stat = b.Make(AccumulatorOf(dtype), {b.rows}, 1);
  const Tensor dw = b.Make(dtype, {b.columns}, 0), db = b.Make(dtype, {b.columns}, 0);
  Measure(state, b, 3 * x.bytes(),
          [&] { return LayerNormGrad(*b.device, x, w, stat, stat, dy, dx, dw, db); });
}

void BM_SumColumns(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor x = b.Noise(), sum = b.Make(dtype, {b.columns}, 0);
  Measure(state, b, x.bytes(), [&] { return Reduce(*b.device, ReduceOp::kSum, x, {0}, sum); });
}

void BM_SumRows(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor x = b.Noise(), sum = b.Make(dtype, {b.rows}, 0);
  Measure(state, b, x.bytes(), [&] { return Reduce(*b.device, ReduceOp::kSum, x, {1}, sum); });
}

void BM_SumOfSquares(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor x = b.Noise(), sum = b.Make(AccumulatorOf(dtype), {}, 0);
  Measure(state, b, x.bytes(), [&] { return SumOfSquares(*b.device, x, sum); });
}

void BM_AdamW(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor p = b.Noise(), g = b.Noise();
  const Tensor m = b.Make(AccumulatorOf(dtype), p.shape(), 0), v = b.Make(m.dtype(), p.shape(), 1);
  Measure(state, b, 3 * p.bytes() + 4 * m.bytes(),
          [&] { return AdamW(*b.device, {.lr = 1e-4}, p, g, m, v, Tensor()); });
}

void BM_Rope(State& state, DType dtype) {
  constexpr int64_t kHeads = 8, kFeatures = 64;
  Bench b(dtype, state.range(0), kHeads * kFeatures);
  const Tensor x = b.Noise(), y = b.Matrix(0);
  const Dims shape = {b.rows / 256, 256, kHeads, kFeatures};
  const Tensor heads = *x.Reshape(shape), rotated = *y.Reshape(shape);
  const IndexSet positions = IndexSet::Interval(0, 256);
  Measure(state, b, 2 * x.bytes(),
          [&] { return Rope(*b.device, heads, positions, {10000}, false, rotated); });
}

struct Ids {
  Ids(Bench& b, int64_t limit) {
    std::vector<int32_t> ids(b.rows);
    for (int64_t i = 0; i < b.rows; ++i) ids[i] = static_cast<int32_t>(i * 7919 % limit);
    auto made = FromHost<int32_t>(*b.device, ids, {b.rows});
    DT_CHECK(made.ok() && b.device->Synchronize().ok());
    tensor = *std::move(made);
  }
  Tensor tensor;
};

void BM_Bincount(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor counts = b.Make(AccumulatorOf(dtype), {256}, 0);
  const Ids ids(b, 256);
  Measure(state, b, ids.tensor.bytes(), [&] { return Bincount(*b.device, ids.tensor, counts); });
}

void BM_Embedding(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor table = b.Make(dtype, {256, b.columns}, 1), y = b.Matrix(0);
  const Ids ids(b, 256);
  Measure(state, b, 2 * y.bytes(), [&] {
    return Embedding(*b.device, ids.tensor, table, IndexSet::Interval(0, 256), 256, y);
  });
}

void BM_EmbeddingGrad(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 512);
  const Tensor table = b.Make(dtype, {256, b.columns}, 1), dy = b.Noise();
  const Ids ids(b, 256);
  Measure(state, b, dy.bytes(), [&] {
    return EmbeddingGrad(*b.device, ids.tensor, dy, IndexSet::Interval(0, 256), table);
  });
}

void BM_CrossEntropyStats(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), stats = b.Make(AccumulatorOf(dtype), {b.rows, 3}, 0);
  const Ids ids(b, 256);
  Measure(state, b, x.bytes(), [&] {
    return CrossEntropyStats(*b.device, x, ids.tensor, IndexSet::Interval(0, 256), {256, -1},
                             stats);
  });
}

void BM_CrossEntropyGrad(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), dx = b.Matrix(0), lse = b.Make(AccumulatorOf(dtype), {b.rows}, 6);
  const Tensor dloss = b.Make(AccumulatorOf(dtype), {}, 1).BroadcastTo({b.rows});
  const Ids ids(b, 256);
  Measure(state, b, 2 * x.bytes(), [&] {
    return CrossEntropyGrad(*b.device, x, ids.tensor, IndexSet::Interval(0, 256), {256, -1},
                            {lse, lse}, dloss, dx);
  });
}

void BM_Dropout(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 256);
  const Tensor x = b.Noise(), y = b.Matrix(0);
  const IndexSet region[] = {IndexSet::Interval(0, b.rows), IndexSet::Interval(0, b.columns)};
  Measure(state, b, 2 * x.bytes(),
          [&] { return Dropout(*b.device, x, region, x.shape(), 1, 2, 0.1, y); });
}

// The fixed cost of a call, without its elements.
void BM_AddOfAFew(State& state, DType dtype) {
  Bench b(dtype, state.range(0), 4);
  const Tensor x = b.Noise(), y = b.Noise(), z = b.Matrix(0);
  Measure(state, b, 3 * x.bytes(), [&] { return Binary(*b.device, BinaryOp::kAdd, x, y, z); });
}

constexpr int64_t kSmall = 1 << 20, kLarge = 64 << 20;

void Register(const char* name, void (*run)(State&, DType), std::vector<int64_t> more = {}) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string full = std::string(name) + "/" + std::string(ToString(dtype));
    auto* registered = benchmark::RegisterBenchmark(full.c_str(), [run, dtype](State& state) {
                         run(state, dtype);
                       })->UseRealTime();
    for (const int64_t bytes : {kSmall, kLarge}) {
      if (more.empty()) registered->Args({bytes});
      for (const int64_t width : more) registered->Args({bytes, width});
    }
    registered->ComputeStatistics("min", [](const std::vector<double>& values) {
      return *std::min_element(values.begin(), values.end());
    });
    registered->ComputeStatistics("max", [](const std::vector<double>& values) {
      return *std::max_element(values.begin(), values.end());
    });
  }
}

const bool registered = [] {
  Register("Memcpy", BM_Memcpy);
  Register("Add", BM_Add);
  Register("Transpose", BM_Transpose);
  Register("Exp", BM_Exp);
  Register("Gelu", BM_Gelu);
  Register("GeluGrad", BM_GeluGrad);
  Register("Where", BM_Where);
  Register("SiluMul", BM_SiluMul);
  Register("SiluMulGrad", BM_SiluMulGrad);
  Register("Softmax", BM_Softmax);
  Register("RmsNorm", BM_RmsNorm, {128, 512});
  Register("RmsNormGrad", BM_RmsNormGrad, {128, 512});
  Register("LayerNorm", BM_LayerNorm, {128, 512});
  Register("LayerNormGrad", BM_LayerNormGrad, {128, 512});
  Register("SumColumns", BM_SumColumns);
  Register("SumRows", BM_SumRows);
  Register("SumOfSquares", BM_SumOfSquares);
  Register("Bincount", BM_Bincount);
  Register("AdamW", BM_AdamW);
  Register("Rope", BM_Rope);
  Register("Embedding", BM_Embedding);
  Register("EmbeddingGrad", BM_EmbeddingGrad);
  Register("CrossEntropyStats", BM_CrossEntropyStats);
  Register("CrossEntropyGrad", BM_CrossEntropyGrad);
  Register("Dropout", BM_Dropout);
  benchmark::RegisterBenchmark("AddOfAFew/f32",
                               [](State& state) { BM_AddOfAFew(state, DType::kF32); })
      ->Arg(64)
      ->UseRealTime();
  return true;
}();

}  // namespace
}  // namespace dtensor::kernels
