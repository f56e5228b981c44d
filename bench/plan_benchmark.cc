// How long it takes to plan a redistribution, and to find its plan again.
//
//   cold     RedistributionPlan::Create: what the rounds are
//   boxes    RankRedistributionPlan: that, and what one rank receives
//   cached   Context::Plan, of specs it has seen
#include <memory>
#include <string>

#include "benchmark/benchmark.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/tensor/context.h"

namespace dtensor {
namespace {

struct Request {
  Layout from, to;
  Dims shape;
};

Request Parse(const char* mesh_text, const char* from, const char* to, Dims shape) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text).value();
  return {Layout::Parse(mesh, from).value(), Layout::Parse(mesh, to).value(), std::move(shape)};
}

void Cold(benchmark::State& state, const Request& request, const RedistributionOptions& options) {
  for (auto _ : state) {
    auto plan =
        RedistributionPlan::Create(request.from, request.to, request.shape, DType::kF32, options);
    benchmark::DoNotOptimize(plan);
  }
}

void Boxes(benchmark::State& state, const Request& request) {
  const int rank = request.from.mesh().size() / 2;
  for (auto _ : state) {
    auto plan = RedistributionPlan::Create(request.from, request.to, request.shape, DType::kF32);
    const RankRedistributionPlan rank_plan(*std::move(plan), rank);
    benchmark::DoNotOptimize(rank_plan.rounds().data());
  }
}

void Cached(benchmark::State& state, const Request& request) {
  const auto communicator = MakeSimulatedCommunicator(0, request.from.mesh().size());
  const auto device = MakeCpuDevice();
  Context context(*communicator, *device);
  const SpecPtr from = context.Intern(request.from, request.shape, DType::kF32).value();
  const SpecPtr to = context.Intern(request.to, request.shape, DType::kF32).value();
  for (auto _ : state) {
    auto plan = context.Plan(from, to);
    benchmark::DoNotOptimize(plan);
  }
}

void Register(const std::string& name, const Request& request) {
  const RedistributionOptions usual, busiest{.objective = RedistributionObjective::kBusiest};
  benchmark::RegisterBenchmark((name + "/cold").c_str(), Cold, request, usual);
  benchmark::RegisterBenchmark((name + "/cold/busiest").c_str(), Cold, request, busiest);
  benchmark::RegisterBenchmark((name + "/boxes").c_str(), Boxes, request);
  benchmark::RegisterBenchmark((name + "/cached").c_str(), Cached, request);
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  using dtensor::Parse;
  dtensor::Register("8/S0->R", Parse("a=8", "[a] []", "[] []", {64, 64}));
  dtensor::Register("2x2x2/P,S0,S1->S0,S1,R",
                    Parse("a=2,b=2,c=2", "[b] [c] P(sum: a)", "[a] [b]", {64, 64}));
  dtensor::Register("2x4x8/S0,S0,R->R,S1,S0",
                    Parse("a=2,b=4,c=8", "[a,b] []", "[c] [b]", {640, 640}));
  dtensor::Register("100x1000/S0,S1->S1,S0",
                    Parse("a=100,b=1000", "[a] [b]", "[b] [a]", {100000, 100000}));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
