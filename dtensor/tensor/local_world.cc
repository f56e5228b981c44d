#include "dtensor/tensor/local_world.h"

#include <utility>
#include <vector>

#include "dtensor/runtime/comm/local/local_ranks.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/rank_context.h"
#include "dtensor/trace/trace_file.h"

namespace dtensor {
namespace {

// What the ranks of a world share.
struct RankOptions {
  RankOptions(const ContextOptions& given, std::function<void(const absl::Status&)> report)
      : contexts(WithEnvironment(given)), report(std::move(report)), traces(contexts.trace_file) {}
  const ContextOptions contexts;
  const std::function<void(const absl::Status&)> report;
  TraceFile traces;
};

}  // namespace

struct LocalRank::State {
  State(std::shared_ptr<LocalRanks> ranks, Communicator& communicator,
        std::shared_ptr<RankOptions> options_in)
      : ranks(std::move(ranks)),
        options(std::move(options_in)),
        rank(communicator.rank()),
        context(communicator, this->ranks->device(rank), options->contexts, options->traces) {}
  ~State() { Leave(exceptions.status()).IgnoreError(); }

  absl::Status Leave(const absl::Status& status) {
    if (left) return result;
    left = true;
    const absl::Status finished = context.Finish(status);
    result = NoThrow([&] { return ranks->Leave(rank, finished); });
    result.Update(options->traces.Write());
    return result;
  }

  const std::shared_ptr<LocalRanks> ranks;
  const std::shared_ptr<RankOptions> options;
  const int rank;
  RankContext context;
  const ExceptionWatch exceptions;
  bool left = false;
  absl::Status result;
};

LocalRank::LocalRank(std::unique_ptr<State> state) : state_(std::move(state)) {}
LocalRank::LocalRank(LocalRank&&) noexcept = default;
LocalRank& LocalRank::operator=(LocalRank&&) noexcept = default;
LocalRank::~LocalRank() = default;

Context& LocalRank::context() {
  DT_REQUIRE(state_ != nullptr, "LocalRank::context() of one that was moved from");
  return *state_->context;
}

absl::Status LocalRank::Leave(const absl::Status& status) {
  DT_REQUIRE(state_ != nullptr, "LocalRank::Leave() of one that was moved from");
  return state_->Leave(status);
}

struct LocalWorld::State {
  State(std::shared_ptr<LocalRanks> made, std::shared_ptr<RankOptions> options)
      : ranks(std::move(made)), options(std::move(options)), contexts(ranks->size()) {}
  ~State() {
    DT_REQUIRE(
        !ranks->runs(),
        "LocalWorld: one that goes while Run is on its way; let Run return first, in fn too");
    contexts.clear();  // this keeps their traces
    NoThrow([&] {
      const absl::Status written = options->traces.Write();
      if (!written.ok() && options->report != nullptr) options->report(written);
      return absl::OkStatus();
    }).IgnoreError();
  }

  const std::shared_ptr<LocalRanks> ranks;
  const std::shared_ptr<RankOptions> options;
  std::vector<std::unique_ptr<RankContext>> contexts;  // for Run: each is made by its rank
};

LocalWorld::LocalWorld(std::unique_ptr<State> state) : state_(std::move(state)) {}
LocalWorld::LocalWorld(LocalWorld&&) noexcept = default;
LocalWorld& LocalWorld::operator=(LocalWorld&&) noexcept = default;
LocalWorld::~LocalWorld() = default;

absl::StatusOr<LocalWorld> LocalWorld::Create(int n, const RunOptions& options,
                                              const ContextOptions& contexts) {
  auto for_ranks = std::make_shared<RankOptions>(contexts, options.report);
  DT_RETURN_IF_ERROR(for_ranks->traces.Check());
  DT_ASSIGN_OR_RETURN(std::shared_ptr<LocalRanks> ranks, LocalRanks::Create(n, options));
  return LocalWorld(std::make_unique<State>(std::move(ranks), std::move(for_ranks)));
}

LocalWorld::State& LocalWorld::state() const {
  DT_REQUIRE(state_ != nullptr, "LocalWorld: a call of one that was moved from");
  return *state_;
}

int LocalWorld::size() const { return state().ranks->size(); }

absl::Status LocalWorld::failure() const { return state().ranks->failure(); }

absl::Status LocalWorld::Run(const std::function<absl::Status(Context&)>& fn) {
  RankFunction with_context;
  if (fn) {
    with_context = [&state = state(), &fn](Communicator& communicator, Device& device) {
      std::unique_ptr<RankContext>& held = state.contexts[communicator.rank()];
      if (held == nullptr) {
        held = std::make_unique<RankContext>(communicator, device, state.options->contexts,
                                             state.options->traces);
      }
      Context& context = **held;
      DT_RETURN_IF_ERROR(fn(context));
      return context.FinishBegun();
    };
  }
  return state().ranks->Run(with_context);
}

absl::StatusOr<LocalRank> LocalWorld::Take(int rank) {
  const std::shared_ptr<LocalRanks>& ranks = state().ranks;
  DT_ASSIGN_OR_RETURN(Communicator* const communicator, ranks->Take(rank));
  return LocalRank(std::make_unique<LocalRank::State>(ranks, *communicator, state().options));
}

absl::StatusOr<LocalRank> SingleRank(const RunOptions& options, const ContextOptions& contexts) {
  DT_ASSIGN_OR_RETURN(LocalWorld world, LocalWorld::Create(1, options, contexts));
  return world.Take(0);
}

}  // namespace dtensor
