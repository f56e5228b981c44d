// What a cached dispatch costs over the local kernel: 4x4 tensors, one thread that acts as rank 0
// of a 2x2 mesh, nothing to communicate. The local kernel includes allocating its output.
//
//   over_local_ns   time of one dispatch less that of the local kernel, both measured here in turn
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

// One rank of a world that exists on paper, with a device that computes.
class Rank {
 public:
  Rank()
      : communicator_(MakeSimulatedCommunicator(0, 4)),
        device_(MakeCpuDevice()),
        context_(*communicator_, *device_),
        mesh_(*DeviceMesh::Parse("a=2,b=2")) {}

  TensorOr Make(std::initializer_list<Placement> placements, bool grad) {
    const std::vector<float> values(16, 1.5f);
    TensorOr tensor = Distribute<float>(context_, mesh_,
                                        absl::MakeConstSpan(placements.begin(), placements.size()),
                                        {4, 4}, values);
    if (tensor.ok()) DT_RETURN_IF_ERROR(tensor->set_requires_grad(grad));
    return tensor;
  }
  Context& context() { return context_; }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Device> device_;
  Context context_;
  DeviceMesh mesh_;
};

double Nanoseconds(int rounds, const auto& fn) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) fn();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
             .count() /
         rounds;
}

// Both in turn, the median of the differences: the machine's speed drifts.
void Compare(benchmark::State& state, const auto& dispatch, const auto& local) {
  constexpr int kRounds = 2000;
  Nanoseconds(kRounds, dispatch);  // caches warm up
  Nanoseconds(kRounds, local);
  std::vector<double> over, locals;
  for (auto _ : state) {
    const double with = Nanoseconds(kRounds, dispatch), without = Nanoseconds(kRounds, local);
    over.push_back(with - without);
    locals.push_back(without);
    state.SetIterationTime(with * 1e-9);
  }
  std::sort(over.begin(), over.end());
  std::sort(locals.begin(), locals.end());
  state.counters["over_local_ns"] = over[over.size() / 2];
  state.counters["local_ns"] = locals[locals.size() / 2];
}

void BM_Add(benchmark::State& state, bool recording) {
  Rank rank;
  const TensorOr a = rank.Make({Shard(0), Shard(1)}, recording),
                 b = rank.Make({Shard(0), Shard(1)}, recording);
  const Tensor x = a->local(), y = b->local();
  Compare(
      state, [&] { benchmark::DoNotOptimize(Add(a, b)); },
      [&] {
        Tensor out = *Tensor::Empty(rank.device(), DType::kF32, x.shape());
        benchmark::DoNotOptimize(
            kernels::Binary(rank.device(), kernels::BinaryOp::kAdd, x, y, out));
      });
}

void BM_MatMul(benchmark::State& state, bool recording) {
  Rank rank;
  const TensorOr a = rank.Make({Shard(0), Replicate()}, recording),
                 b = rank.Make({Replicate(), Shard(1)}, recording);
  const Tensor x = a->local(), y = b->local();
  Compare(
      state, [&] { benchmark::DoNotOptimize(MatMul(a, b)); },
      [&] {
        Tensor out = *Tensor::Empty(rank.device(), DType::kF32, {x.size(0), y.size(1)});
        const GemmProblem gemm = {.batch = 1,
                                  .m = x.size(0),
                                  .n = y.size(1),
                                  .k = x.size(1),
                                  .a = {x.raw(), x.strides()[0], x.strides()[1], 0},
                                  .b = {y.raw(), y.strides()[0], y.strides()[1], 0},
                                  .c = {out.raw(), out.strides()[0], out.strides()[1], 0}};
        benchmark::DoNotOptimize(rank.device().Gemm(gemm));
      });
}

BENCHMARK_CAPTURE(BM_Add, no_grad, false)->UseManualTime()->Iterations(101);
BENCHMARK_CAPTURE(BM_Add, recording, true)->UseManualTime()->Iterations(101);
BENCHMARK_CAPTURE(BM_MatMul, no_grad, false)->UseManualTime()->Iterations(101);
BENCHMARK_CAPTURE(BM_MatMul, recording, true)->UseManualTime()->Iterations(101);

}  // namespace
}  // namespace dtensor
