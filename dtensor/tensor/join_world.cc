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
namespace {

LaunchOptions ToLaunchOptions(const JoinOptions& options) {
  std::optional<RankGpu> gpu;
  if (options.device == Device::Kind::kCuda)
    gpu = RankGpu{options.gpu, options.nccl, options.nccl_is_gone, options.cuda_device};
  return {.rank = options.rank,
          .size = options.size,
          .local_rank = options.local_rank,
          .address = options.address,
          .job = options.job,
          .secret = options.secret,
          .timeout_seconds = options.timeout_seconds,
          .gpu = gpu,
          .report = options.report};
}

}  // namespace

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
  if (std::exchange(left_, true)) return world_->Leave(status);  // returns the same as before
  absl::Status result = world_->Leave(context_->Finish(status));
  result.Update(trace_->Write());
  return result;
}

namespace {

absl::Status CheckDevice(const JoinOptions& options) {
  if (options.device != Device::Kind::kCpu && options.device != Device::Kind::kCuda) {
    return InvalidArgument({"JoinWorld: JoinOptions::device is ", ToString(options.device),
                            "; processes compute on the cpu or on a GPU (cuda)"});
  }
  const char* const of_gpus = options.gpu               ? "gpu"
                              : options.cuda_device     ? "cuda_device"
                              : options.nccl != nullptr ? "nccl"
                                                        : nullptr;
  if (options.device == Device::Kind::kCuda || of_gpus == nullptr) return absl::OkStatus();
  return InvalidArgument(
      {"JoinWorld: options give ", of_gpus, ", and JoinOptions::device is cpu; set it to kCuda"});
}

absl::StatusOr<JoinedRank> JoinAsLaunched(const LaunchOptions& launch,
                                          const absl::Status& refusal) {
  DT_RETURN_IF_ERROR(refusal);
  JoinedRank joined;
  if (const WorldJoiner joiner = world_joiner(); joiner != nullptr) {
    DT_ASSIGN_OR_RETURN(joined, joiner(launch));
  }
  if (joined.world != nullptr) return joined;
  DT_ASSIGN_OR_RETURN(const LaunchedRank rank, ReadLaunch(launch));
  DT_ASSIGN_OR_RETURN(joined.world, ProcessWorld::Join(rank));
  joined.local_rank = rank.local_rank;
  return joined;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorldBy(const JoinOptions& options,
                                                         RankJoiner join) {
  DT_ASSIGN_OR_RETURN(JoinedRank joined, join(ToLaunchOptions(options), CheckDevice(options)));
  auto world =
      std::make_unique<JoinedWorld>(std::move(joined.world), joined.local_rank, options.contexts);
  const absl::Status traces = world->CheckTraceFile();
  if (!traces.ok()) return world->Leave(traces);
  return world;
}

absl::StatusOr<std::unique_ptr<JoinedWorld>> JoinWorld(const JoinOptions& options) {
  return JoinWorldBy(options, JoinAsLaunched);
}

absl::Status RunWorld(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& threads, const JoinOptions& join) {
  LaunchOptions launch = ToLaunchOptions(join);
  launch.may_lack_address = true;  // JoinWorld returns that error, if it finds no address
  DT_ASSIGN_OR_RETURN(const LaunchedRank rank, ReadLaunch(launch));
  if (rank.launcher == "nobody") return RunRanks(n, fn, threads, join.contexts);
  if (!fn) return InvalidArgument({"RunWorld: the function that ranks run is null"});
  if (threads.device != Device::Kind::kCpu && threads.device != Device::Kind::kCuda) {
    return InvalidArgument({"RunWorld: RunOptions::device is ", ToString(threads.device),
                            ", and this process is a rank that ", rank.launcher,
                            " started; such ranks compute on the cpu or on a GPU. Start the "
                            "program by itself: its ranks are threads then"});
  }
  JoinOptions options = join;
  if (options.device == Device::Kind::kCpu) options.device = threads.device;
  if (!options.cuda_device) options.cuda_device = threads.cuda_device;
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<JoinedWorld> world, JoinWorld(options));
  return world->Leave(NoThrow([&] { return fn(world->context()); }));
}

}  // namespace dtensor
