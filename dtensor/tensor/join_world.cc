#include "dtensor/tensor/join_world.h"

#include <utility>

#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/comm/process/world_joiner.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/rank_context.h"
#include "dtensor/trace/trace_file.h"

namespace dtensor {

JoinedWorld::JoinedWorld(std::unique_ptr<ProcessWorld> world, int local_rank,
                         const ContextOptions& contexts)
    : world_(std::move(world)), local_rank_(local_rank) {
  const ContextOptions options = WithEnvironment(contexts);
  trace_ = std::make_unique<TraceFile>(
      TracePathOfRank(options.trace_file, world_->rank(), world_->size()));
  context_ =
      std::make_unique<RankContext>(world_->communicator(), world_->device(), options, *trace_);
}

JoinedWorld::~JoinedWorld() {
  Leave(exceptions_.status()).IgnoreError();
  context_ = nullptr;
  LetGo(std::move(world_));
}

Context& JoinedWorld::context() { return **context_; }

absl::Status JoinedWorld::CheckTraceFile() const { return trace_->Check(); }

absl::Status JoinedWorld::Leave(const absl::Status& status) {
  if (std::exchange(left_, true)) return result_;
  result_ = world_->Leave(context_->Finish(status));
  result_.Update(trace_->Write());
  return result_;
}

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorldBy(RankJoiner join,
                                                         const ContextOptions& contexts) {
  DT_ASSIGN_OR_RETURN(JoinedRank joined, join());
  auto world = std::make_unique<JoinedWorld>(std::move(joined.world), joined.local_rank, contexts);
  const absl::Status traces = world->CheckTraceFile();
  if (!traces.ok()) return world->Leave(traces);
  return world;
}

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(const JoinOptions& options,
                                                       const ContextOptions& contexts) {
  const auto join = [&]() -> absl::StatusOr<JoinedRank> {
    if (const WorldJoiner joiner = world_joiner(); joiner != nullptr) {
      DT_ASSIGN_OR_RETURN(JoinedRank joined, joiner(options));
      if (joined.world != nullptr) return joined;
    }
    DT_ASSIGN_OR_RETURN(const LaunchedRank rank, ReadLaunch(options));
    DT_ASSIGN_OR_RETURN(auto world, ProcessWorld::Join(rank));
    return JoinedRank{std::move(world), rank.local_rank};
  };
  return JoinWorldBy(join, contexts);
}

absl::Status RunWorld(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options, const ContextOptions& contexts) {
  DT_ASSIGN_OR_RETURN(const LaunchedRank rank, ReadLaunch());
  if (rank.launcher == "nobody") return RunRanks(n, fn, options, contexts);
  if (!fn) return InvalidArgument({"RunWorld: the function that ranks run is null"});
  if (options.device != Device::Kind::kCpu && options.device != Device::Kind::kCuda) {
    return InvalidArgument({"RunWorld: RunOptions::device is ", ToString(options.device),
                            ", and this process is a rank that ", rank.launcher,
                            " started; such ranks compute on the cpu or on a GPU. Start the "
                            "program by itself: its ranks are threads then"});
  }
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<JoinedWorld> world,
                      JoinWorld({.timeout_seconds = options.timeout_seconds,
                                 .device = options.device,
                                 .cuda_device = options.cuda_device,
                                 .report = options.report},
                                contexts));
  return world->Leave(NoThrow([&] { return fn(world->context()); }));
}

}  // namespace dtensor
