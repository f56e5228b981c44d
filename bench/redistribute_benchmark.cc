// Redistributions between ranks: bytes moved over the least possible, and time over that of a bare
// copy. Rows, rules and results: bench/README.md.
//
//   moved, bound   bytes that all ranks receive from others, counted; and the least there can be
//   ratio          moved / bound
//   us             median over rounds, from the first rank's start to the last rank's end
//   GB_per_s       what the plan reads and writes on all ranks, over that time
//
// Ranks are threads; started by a launcher (dtrun -n 2 bazel-bin/bench/redistribute) they are
// processes, and rank 0 prints. Of threads:
//
//   limit_us       the same bytes at the speed of BestCopy() on all ranks at once, measured in turn
//                  with the row (median)
//   share          limit_us / us. Below 1 MiB all lies in the caches, and there is no limit
//
// Of processes, each round in turn with the others, medians:
//
//   threads_us     of threads in rank 0's process, while the other ranks sleep
//   over_threads   us / threads_us
//   socket_us      two processes that send each other as many bytes over a bare TCP connection
//   over_socket    us / socket_us
//
// Flags, beside Google Benchmark's: --wide adds the meshes of 8 ranks; --greedy adds the 2x2 rows
// as PyTorch's greedy planner would go, step by step on our transport; --seconds=S is the time for
// each row. Exit status 1 if a result was wrong.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "benchmark/benchmark.h"
#include "dtensor/bench/beside_processes.h"
#include "dtensor/bench/redistribute_grid.h"
#include "dtensor/bench/row_runner.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::bench {
namespace {

struct RowTimes {
  int64_t moved = 0, bound = 0, touched = 0;
  std::vector<double> calls;             // seconds of each round
  std::vector<double> copies;            // on threads
  std::vector<double> threads, sockets;  // on processes

  void SetBytes(const RowRunner& runner) {
    moved = runner.moved();
    bound = runner.bound();
    touched = runner.touched();
  }
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status MeasureOnThreads(const RowTask& task, double seconds, RowTimes& out) {
  const auto run = [&](Context& context) -> absl::Status {
    const std::unique_ptr<RowRunner> runner = MakeRowRunner(context, task);
    DT_RETURN_IF_ERROR(runner->Prepare());
    RowTimes times;
    times.SetBytes(*runner);
    for (int rounds = runner->RoundsFor(seconds); rounds > 0; --rounds) {
      DT_ASSIGN_OR_RETURN(times.calls.emplace_back(), runner->TimeRound());
      if (runner->cached()) continue;
      DT_ASSIGN_OR_RETURN(times.copies.emplace_back(), runner->TimeCopy());
    }
    if (context.rank() == 0) out = std::move(times);  // all ranks have the same
    return runner->CheckResults();
  };
  return RunRanks(task.row.ranks(), run, {.pin_threads = CanPin(task.row.ranks())});
}

absl::Status MeasureOnProcesses(Context& world, const RowTask& task, double seconds,
                                RowTimes& times) {
  const std::unique_ptr<RowRunner> runner = MakeRowRunner(world, task);
  DT_RETURN_IF_ERROR(runner->Prepare());
  times.SetBytes(*runner);
  ThreadsBeside threads(world, [&](Context& context) { return MakeRowRunner(context, task); });
  DT_RETURN_IF_ERROR(threads.Prepare());
  std::optional<BareSocket> socket;
  if (world.world_size() == 2 && runner->moved() > 0) {
    DT_ASSIGN_OR_RETURN(socket, BareSocket::Connect(world, runner->moved() / 2));
  }
  for (int rounds = runner->RoundsFor(seconds / 3); rounds > 0; --rounds) {
    DT_ASSIGN_OR_RETURN(times.calls.emplace_back(), runner->TimeRound());
    DT_ASSIGN_OR_RETURN(times.threads.emplace_back(), threads.TimeRound());
    if (!socket) continue;
    DT_ASSIGN_OR_RETURN(times.sockets.emplace_back(), socket->TimeExchange());
  }
  DT_RETURN_IF_ERROR(threads.CheckResults());
  return AgreeOn(world, runner->CheckResults());
}

void Report(benchmark::State& state, const Row& row, const RowTimes& times) {
  const double seconds = Median(times.calls);
  state.SetIterationTime(seconds);
  state.counters["moved"] = static_cast<double>(times.moved);
  state.counters["bound"] = static_cast<double>(times.bound);
  if (times.bound > 0) {
    state.counters["ratio"] = static_cast<double>(times.moved) / static_cast<double>(times.bound);
  }
  state.counters["us"] = seconds * 1e6;
  const auto beside = [&](const char* name, const std::vector<double>& others) {
    if (others.empty()) return;
    state.counters[std::string(name) + "_us"] = Median(others) * 1e6;
    state.counters[std::string("over_") + name] = seconds / Median(others);
  };
  if (times.touched == 0) return state.SetLabel("view");
  beside("threads", times.threads);
  beside("socket", times.sockets);
  state.counters["GB_per_s"] = static_cast<double>(times.touched) / seconds / 1e9;
  if (times.copies.empty()) return times.threads.empty() ? state.SetLabel("cached") : void();
  const double rate = 2.0 * kCopyBytes * row.ranks() / Median(times.copies);
  const double limit = static_cast<double>(times.touched) / rate;
  state.counters["limit_us"] = limit * 1e6;
  state.counters["share"] = limit / seconds;
}

bool all_right = true;

// `world`: null on threads.
void Measure(benchmark::State& state, Context* world, const Row& row,
             const std::vector<Placements>& path, double seconds) {
  const RowTask task(row, path);
  for (auto _ : state) {
    RowTimes times;
    const absl::Status status = world == nullptr ? MeasureOnThreads(task, seconds, times)
                                                 : MeasureOnProcesses(*world, task, seconds, times);
    if (!status.ok()) {
      all_right = false;
      return state.SkipWithError(std::string(status.message()).c_str());
    }
    Report(state, row, times);
  }
}

struct Options {
  bool wide = false, greedy = false;
  double seconds = 0.2;
};

// Takes our own flags out of the arguments.
Options TakeOptions(int& argc, char** argv) {
  Options options;
  char** const end = std::remove_if(argv + 1, argv + argc, [&](absl::string_view arg) {
    if (arg == "--wide") return options.wide = true;
    if (arg == "--greedy") return options.greedy = true;
    // Not NaN either.
    return absl::ConsumePrefix(&arg, "--seconds=") && absl::SimpleAtod(arg, &options.seconds) &&
           options.seconds >= 0;
  });
  argc = static_cast<int>(end - argv);
  return options;
}

void Register(const std::string& name, Context* world, const Row& row, std::vector<Placements> path,
              double seconds) {
  const auto measure = [=](benchmark::State& state) { Measure(state, world, row, path, seconds); };
  benchmark::RegisterBenchmark(name.c_str(), measure)
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

// Every process runs the same rows. Errors: of JoinWorld; the world's failure.
absl::Status RunAll(const Options& options) {
  std::unique_ptr<JoinedWorld> world;
  if (LaunchedRanks() > 0) {
    DT_ASSIGN_OR_RETURN(world, JoinWorld());
    PinTo(world->context().rank());
  }
  Context* const context = world == nullptr ? nullptr : &world->context();
  for (const Row& row : Grid(options.wide)) {
    if (context != nullptr && row.ranks() != context->world_size()) continue;
    Register(row.Name(), context, row, {row.to}, options.seconds);
    if (options.greedy && row.mesh.size() > 1) {
      Register("greedy/" + row.Name(), context, row, GreedySteps(row.from, row.to),
               options.seconds);
    }
  }
  RunBenchmarks();
  return world == nullptr ? absl::OkStatus() : world->Leave(absl::OkStatus());
}

}  // namespace
}  // namespace dtensor::bench

int main(int argc, char** argv) {
  using namespace dtensor::bench;
  const Options options = TakeOptions(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const absl::Status status = RunAll(options);
  if (!status.ok()) std::fprintf(stderr, "redistribute: %s\n", status.ToString().c_str());
  return status.ok() && all_right ? 0 : 1;
}
