// Convolutions, batch norm, a ResNet-18, and sums along a dimension, on one rank and one thread:
// f32, forward, and forward with backward. bench/peers/conv.py runs PyTorch on the same.
//
//   bazel run //bench:conv -- --benchmark_filter='same'
//
//   ms   the thread's CPU time, the shortest of all calls: these machines are shared
#include <time.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "dtensor/nn/batch_norm.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/resnet.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/windows.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"

namespace dtensor {
namespace {

struct Row {
  std::string name;
  std::vector<Dims> shapes;  // of the operands
  std::function<TensorOr(const std::vector<TensorOr>&)> call;
  std::shared_ptr<Module> model = nullptr;  // that `call` calls
};

Row ConvRow(std::string name, Dims x, Dims weight, ConvOptions options) {
  return {std::move(name),
          {std::move(x), std::move(weight)},
          [options](const std::vector<TensorOr>& o) { return Conv(o[0], o[1], options); }};
}

Row ModuleRow(std::string name, Dims x, std::shared_ptr<Module> model) {
  return {std::move(name),
          {std::move(x)},
          [model](const std::vector<TensorOr>& o) { return (*model)(o[0]); },
          model};
}

std::vector<Row> Rows() {
  const ResNetConfig resnet18 = {.classes = 10,
                                 .features = {64, 128, 256, 512},
                                 .depths = {2, 2, 2, 2},
                                 .layer = ResNetConfig::Layer::kBasic};
  const ConvOptions same = {.before = {1}, .after = {1}};
  return {
      ConvRow("same", {8, 56, 56, 64}, {64, 64, 3, 3}, same),
      ConvRow("points", {8, 56, 56, 64}, {256, 64, 1, 1}, {}),
      ConvRow("stem", {2, 224, 224, 3}, {64, 3, 7, 7},
              {.stride = {2}, .before = {3}, .after = {3}}),
      ConvRow("patches", {8, 224, 224, 3}, {768, 3, 16, 16}, {.stride = {16}}),
      ConvRow("depthwise", {8, 28, 28, 192}, {192, 1, 3, 3},
              {.before = {1}, .after = {1}, .groups = 192}),
      ConvRow("causal", {2, 2048, 512}, {512, 1, 4}, {.before = {3}, .groups = 512}),
      ModuleRow("batch_norm", {8, 56, 56, 64}, std::make_shared<BatchNormLayer>(64)),
      ModuleRow("resnet18", {8, 128, 128, 3}, std::make_shared<ResNet>(resnet18)),
      {"cumsum_rows", {{256, 4096}}, [](const auto& o) { return CumSum(o[0], 1); }},
      {"cumsum_columns", {{8, 512, 256}}, [](const auto& o) { return CumSum(o[0], 1); }},
  };
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

absl::Status RunOnce(const Row& row, const std::vector<TensorOr>& operands, bool backward) {
  const TensorOr y = row.call(operands);
  DT_RETURN_IF_ERROR(y.status());
  if (!backward) return absl::OkStatus();
  std::vector<int> dims;
  for (int d = 0; d < y->spec().ndim(); ++d) dims.push_back(d);
  DT_RETURN_IF_ERROR(Backward(Sum(y, dims)));
  for (const TensorOr& operand : operands) DistributedTensor(*operand).ClearGrad();
  if (row.model == nullptr) return absl::OkStatus();
  for (DistributedTensor& parameter : row.model->Parameters()) parameter.ClearGrad();
  return absl::OkStatus();
}

void BM_Row(benchmark::State& state, size_t number, bool backward) {
  const auto communicator = MakeSimulatedCommunicator(0, 1);
  const auto device = MakeCpuDevice();
  Context context(*communicator, *device);
  const DeviceMesh mesh = *DeviceMesh::Parse("a=1");
  const Row row = Rows()[number];  // its model's tensors are of this Context
  if (row.model != nullptr) DT_CHECK(row.model->Materialize(context, mesh, 1).ok());
  context.set_recording(backward);
  std::vector<TensorOr> operands;
  for (const Dims& shape : row.shapes) {
    TensorOr& x = operands.emplace_back(RandomNormal(context, mesh, {Replicate()}, shape, {}));
    DT_CHECK(x.ok() && x->set_requires_grad(backward).ok());
  }
  DT_CHECK(RunOnce(row, operands, backward).ok());  // a first call takes fresh pages
  double best = 1e9;
  for (auto _ : state) {
    const double start = ThreadSeconds();
    const absl::Status status = RunOnce(row, operands, backward);
    if (!status.ok()) state.SkipWithError(status.ToString().c_str());
    const double seconds = ThreadSeconds() - start;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["ms"] = 1e3 * best;
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  using namespace dtensor;
  const std::vector<Row> rows = Rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const bool backward : {false, true}) {
      benchmark::RegisterBenchmark(
          absl::StrCat(rows[i].name, backward ? "/train" : "/forward").c_str(), BM_Row, i, backward)
          ->UseManualTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
