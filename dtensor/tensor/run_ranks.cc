// RunRanks and Simulate: worlds whose ranks run one function from beginning to end.
#include "dtensor/runtime/comm/local/run_ranks.h"

#include <functional>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/rank_context.h"
#include "dtensor/trace/trace_file.h"

namespace dtensor {
namespace {

// Calls run(rank_function), where rank_function makes a rank's Context and calls fn with it.
// Returns its status if that is an error, else whether the trace was written.
template <typename Run>
absl::Status RunTraced(const std::function<absl::Status(Context&)>& fn,
                       const ContextOptions& options, const Run& run) {
  TraceFile traces(options.trace_file);
  DT_RETURN_IF_ERROR(traces.Check());
  RankFunction with_context;
  if (fn) {
    with_context = [&](Communicator& communicator, Device& device) {
      RankContext context(communicator, device, options, traces);
      return context.Finish(NoThrow([&] { return fn(*context); }));
    };
  }
  absl::Status status = run(with_context);
  status.Update(traces.Write());
  return status;
}

}  // namespace

absl::Status RunRanks(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options, const ContextOptions& contexts) {
  return RunTraced(fn, WithEnvironment(contexts),
                   [&](const RankFunction& run) { return RunLocalRanks(n, run, options); });
}

absl::Status Simulate(int rank, int size, const std::function<absl::Status(Context&)>& fn,
                      const SimulationOptions& options) {
  return RunTraced(fn, options.contexts, [&](const RankFunction& run) {
    return RunSimulatedRank(rank, size, run, options.cost.rates());
  });
}

}  // namespace dtensor
