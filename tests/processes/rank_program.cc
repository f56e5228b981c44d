// A rank's program for the tests of processes: redistributes, reduces and reads values for a while,
// then does what its arguments say.
//
//   rank_program --steps=N [--rank=R --at=STEP --do=exit|return|throw|disagree|abort|stop|sleep]
//   rank_program --uneven: moves boxes whose pieces are long and short in turn, before its steps
//   rank_program --keeps: a tensor outlives the world
//   rank_program --loop=redistribute|barrier|backward|read [--rank=R --after=SECONDS --do=...]
//
// Prints "rank R of N: FINGERPRINT", of all values it saw, or an error, on one line. The form with
// --loop repeats one operation, and after --after seconds, in the middle of it, does what --do
// says. It also prints "ready", "fault at TIME" and "error at TIME: ...", and a line now and then.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/join_world.h"

namespace dtensor {
namespace {

struct Request {
  int steps = 10, size = 100, threads = 4;
  int rank = -1, at = 0;
  std::string marker;  // to be found by
  std::string deed, loop, device = "cpu";
  double timeout = 60, after = 0;
  bool uneven = false, keeps = false;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Say(const char* what) {
  std::printf("%s %.6f\n", what, Now());
  std::fflush(stdout);
}

absl::Status Do(const std::string& deed, Context& context, const DeviceMesh& mesh) {
  if (deed == "exit") std::_Exit(7);
  if (deed == "kill") std::raise(SIGKILL);
  if (deed == "abort") std::abort();
  if (deed == "stop") std::raise(SIGSTOP);
  if (deed == "sleep") std::this_thread::sleep_for(std::chrono::hours(1));
  if (deed == "return") return absl::DataLossError("the dog ate it");
  if (deed == "leave") return absl::CancelledError("leave");
  if (deed == "throw") throw std::runtime_error("thrown");
  if (deed == "disagree") {
    return Full(context, mesh, {Shard(0)}, {3}, DType::kF32, 1)
        ->Redistribute({Replicate()})
        .status();
  }
  return absl::OkStatus();
}

// Adds up what it sees: forward, backward, an exchange in two halves, values.
absl::StatusOr<double> Step(Context& context, const DeviceMesh& mesh, int64_t n, int step) {
  std::vector<double> values(static_cast<size_t>(n * 4));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 97) / (1 + step);
  DT_ASSIGN_OR_RETURN(DistributedTensor x,
                      Distribute<double>(context, mesh, {Shard(0)}, {n, 4}, values));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  DT_ASSIGN_OR_RETURN(const auto columns, x.Redistribute({Shard(1)}, {.async = true}));
  DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute({Replicate()}));
  DT_ASSIGN_OR_RETURN(const auto gram, MatMul(Transpose(x, 0, 1), x));
  const TensorOr loss = Add(Sum(Mul(columns, columns), {0, 1}), Sum(gram, {0, 1}));
  DT_RETURN_IF_ERROR(Backward(loss));
  DT_RETURN_IF_ERROR(ReduceGradients({x}));
  DT_ASSIGN_OR_RETURN(const double sum, Item(*loss));
  DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<double>(x.grad()));
  DT_ASSIGN_OR_RETURN(const auto all, ToGlobal<double>(whole));
  if (all != values) return absl::InternalError("values changed on their way");
  double seen = sum;
  for (const double value : gradient) seen = seen * 0.5 + value;
  return seen;
}

// One turn of --loop.
absl::Status Turn(const std::string& loop, Context& context, const DeviceMesh& mesh) {
  if (loop == "barrier") return context.communicator().Barrier("Barrier");
  const std::vector<float> values(4000, 1);
  DT_ASSIGN_OR_RETURN(DistributedTensor x,
                      Distribute<float>(context, mesh, {Shard(0)}, {100, 40}, values));
  if (loop == "redistribute") {
    DT_ASSIGN_OR_RETURN(const auto columns, x.Redistribute({Shard(1)}, {.async = true}));
    DT_RETURN_IF_ERROR(x.Redistribute({Replicate()}).status());
    return columns.Redistribute({Shard(0)}).status();
  }
  if (loop == "read") return ToGlobal<float>(x).status();
  DT_ASSIGN_OR_RETURN(
      DistributedTensor weight,
      Distribute<float>(context, mesh, {Replicate()}, {40, 30}, std::vector<float>(1200, 1)));
  DT_RETURN_IF_ERROR(weight.set_requires_grad(true));
  DT_RETURN_IF_ERROR(Backward(Sum(MatMul(x, weight), {0, 1})));
  return ReduceGradients({weight});  // which each rank has of its rows
}

// What happens at the same time as what the rank does.
void DoInTheMidst(const Request& request) {
  std::this_thread::sleep_for(std::chrono::duration<double>(request.after));
  Say("fault at");
  if (request.deed == "kill") std::raise(SIGKILL);
  if (request.deed == "abort") std::abort();
  if (request.deed == "stop") kill(getpid(), SIGSTOP);
}

absl::Status Loop(const Request& request, Context& context, const DeviceMesh& mesh) {
  const bool is_mine = request.rank == context.rank();
  const bool is_midst = request.deed == "kill" || request.deed == "abort" || request.deed == "stop";
  DT_RETURN_IF_ERROR(Turn(request.loop, context, mesh));
  Say("ready");
  const double start = Now();
  if (is_mine && is_midst) std::thread([&] { DoInTheMidst(request); }).detach();
  double said = start;
  while (true) {
    if (is_mine && !is_midst && !request.deed.empty() && Now() > start + request.after) {
      Say("fault at");
      const absl::Status status = Do(request.deed, context, mesh);
      return request.deed == "leave" ? absl::OkStatus() : status;
    }
    DT_RETURN_IF_ERROR(Turn(request.loop, context, mesh));
    if (Now() < said + 0.1) continue;
    said = Now();
    Say("at");
  }
}

// The box for a peer is cut into pieces of about 1 MiB, with gaps, and of 4 KiB, without, in turn.
absl::Status MoveUneven(Context& context, const DeviceMesh& mesh) {
  const int64_t n = context.world_size();
  std::vector<float> values(static_cast<size_t>(4 * n * 257 * 1024 * n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 9973);
  DT_ASSIGN_OR_RETURN(DistributedTensor x,
                      Distribute<float>(context, mesh, {Shard(0)}, {4 * n, 257, 1024 * n}, values));
  DT_ASSIGN_OR_RETURN(const auto columns, x.Redistribute({Shard(2)}));
  DT_ASSIGN_OR_RETURN(const auto all, ToGlobal<float>(columns));
  return all == values ? absl::OkStatus() : absl::InternalError("values changed on their way");
}

absl::Status Steps(const Request& request, Context& context, const DeviceMesh& mesh) {
  double seen = 0;
  for (int step = 0; step < request.steps; ++step) {
    if (request.rank == context.rank() && request.at == step) {
      const absl::Status status = Do(request.deed, context, mesh);
      if (request.deed == "leave") return absl::OkStatus();
      DT_RETURN_IF_ERROR(status);
    }
    DT_ASSIGN_OR_RETURN(const double more, Step(context, mesh, request.size, step));
    seen = seen * 0.75 + more;
  }
  if (request.keeps) {
    static DistributedTensor& kept = *new DistributedTensor;
    DT_ASSIGN_OR_RETURN(kept, Full(context, mesh, {Shard(0)}, {100}, DType::kF32, 1));
  }
  std::printf("rank %d of %d: %a\n", context.rank(), context.world_size(), seen);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status RankProgram(const Request& request, Context& context) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse(absl::StrCat("tp=", context.world_size())));
  if (request.uneven) DT_RETURN_IF_ERROR(MoveUneven(context, mesh));
  if (request.loop.empty()) return Steps(request, context, mesh);
  const absl::Status status = Loop(request, context, mesh);
  const double now = Now();
  if (!status.ok()) std::printf("error at %.6f %s\n", now, status.ToString().c_str());
  return status;
}

int Main(int argc, char** argv) {
  CLI::App app;
  Request request;
  app.add_option("--steps", request.steps);
  app.add_option("--size", request.size);
  app.add_option("--threads", request.threads);
  app.add_option("--rank", request.rank);
  app.add_option("--at", request.at);
  app.add_option("--do", request.deed);
  app.add_option("--timeout", request.timeout);
  app.add_option("--loop", request.loop);
  app.add_option("--after", request.after);
  app.add_flag("--uneven", request.uneven);
  app.add_flag("--keeps", request.keeps);
  app.add_option("--marker", request.marker);
  app.add_option("--device", request.device)->check(CLI::IsMember({"cpu", "cuda"}));
  CLI11_PARSE(app, argc, argv);
  RunOptions options = {.timeout_seconds = request.timeout};
  if (request.device == "cuda") options.device = Device::Kind::kCuda;
  const absl::Status status = RunWorld(
      request.threads, [&](Context& context) { return RankProgram(request, context); }, options);
  if (!status.ok()) std::printf("error: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) { return dtensor::Main(argc, argv); }
