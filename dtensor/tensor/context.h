// Context: what one rank has. Its place in the world, device, communicator, and the caches that
// make a dispatch one look-up. Handed in, never global: two of them in one process work side by
// side.
//
// A Context and everything made with it belong to one thread (the rank's), and the Context must
// outlive its tensors; that of RunRanks, RunWorld and Simulate, of a LocalWorld, a LocalRank and a
// JoinedWorld stays while they do: a tensor that was taken out of them can be looked at and
// dropped, and whatever needs other ranks fails.
// Operators refuse operands of two Contexts.
#ifndef DTENSOR_TENSOR_CONTEXT_H_
#define DTENSOR_TENSOR_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/simulated_clock.h"
#include "dtensor/tensor/counted.h"

namespace dtensor {

struct DispatchCache;  // dispatch_cache.h
class RecomputedRun;   // collective_results.h
class ScopeObserver;   // work_scope.h

// (mesh, layout, shape, dtype), interned in a Context: as long as a Spec has an owner besides the
// Context, equal Specs have its address.
struct Spec : Counted {
  Layout layout;
  Dims shape;  // global
  DType dtype = DType::kF32;
  // This rank's; [0] if it is not on the mesh.
  Dims local_shape;
  bool on_mesh = true;  // this rank is

  const DeviceMesh& mesh() const { return layout.mesh(); }
  int ndim() const { return static_cast<int>(shape.size()); }
  int64_t local_numel = 0;
  uint64_t mesh_digest = 0;  // equal for equal meshes, in every process
  // "[8, 4] f32 on ["tp"=2] as [tp] []"
  std::string ToString() const;
};
using SpecPtr = CountedPtr<const Spec>;

// What random operators draw their seeds from. Equal on all ranks, as their programs are.
struct RandomState {
  uint64_t seed = 0;
  uint64_t drawn = 0;  // seeds so far
};

class Context {
 public:
  // Both must outlive the Context.
  Context(Communicator& communicator, Device& device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int rank() const { return communicator_.rank(); }
  int world_size() const { return communicator_.size(); }
  Communicator& communicator() { return communicator_; }
  Device& device() { return device_; }
  // How long this rank would have taken so far, and what it would have done; null unless it is
  // simulated.
  const SimulatedClock* simulated_clock() const { return simulated_clock_; }

  // The one Spec with these values. Errors: kInvalidArgument when the mesh has not as many ranks as
  // the world and does not say which it lies on (DeviceMesh::OnRanks), naming both and the remedy;
  // when it lies on ranks that the world lacks; when layout and shape differ in rank; for a shape
  // that no tensor has (dims.h), or of more than Layout::kMaxDims dimensions.
  absl::StatusOr<SpecPtr> Intern(const Layout& layout, absl::Span<const int64_t> shape,
                                 DType dtype);

  // How plans are chosen where a call does not say. The same on all ranks. Errors: kInvalidArgument
  // for in_place, which a call may say alone: operators would destroy their operands.
  const RedistributionOptions& redistribution_options() const;
  absl::Status set_redistribution_options(const RedistributionOptions& options);
  // The same, for who keeps them: equal options have one address while they are in use.
  const std::shared_ptr<const RedistributionOptions>& kept_redistribution_options() const;

  // The cached plan, of the Context's options or others; the types are those of the specs.
  // Requires: specs of this Context. Errors: as RedistributionPlan::Create.
  absl::StatusOr<std::shared_ptr<const RankRedistributionPlan>> Plan(
      const Spec* from, const Spec* to, const RedistributionOptions* options = nullptr);

  // The lineage of a tensor that is made now: counts those of its mesh.
  Lineage NextLineage(const Spec& spec, const char* maker);

  // How much the Context remembers. All of it is bounded, and what was used least recently goes
  // first; what was forgotten is worked out anew, with the same communication.
  struct CacheSizes {
    size_t decisions = 0;  // by operator, specs and attributes: at most kDecisions
    size_t plans = 0;      // at most kPlans
    size_t options = 0;    // sets of RedistributionOptions: at most kOptions
    size_t specs = 0;      // at most kSpecs, or twice as many as tensors, decisions and plans use
  };
  static constexpr size_t kDecisions = 4096, kPlans = 4096, kOptions = 64, kSpecs = 4096;
  CacheSizes cache_sizes() const;
  // Those that are remembered now, in no order.
  std::vector<SpecPtr> specs() const;

  // Operators record for Backward() while this is on (the default) and an operand requires
  // gradients.
  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }
  uint64_t NextSequence() { return ++sequence_; }  // creation order of autograd nodes

  // To be set, saved and put back; NextSeed() draws from it: the n-th seed depends on random().seed
  // and n alone.
  RandomState& random() { return random_; }
  uint64_t NextSeed();

  // A redistribution that is on its way reads `source` of this rank. Aliases are not written to
  // before it is over: FinishReads() waits for those of the storage of `root`, in the order in
  // which they were added, and for what was dropped unread. Errors: the world's failure.
  void AddRead(const Tensor& source, const std::shared_ptr<PendingRedistribution>& reader);
  absl::Status FinishReads(const Tensor& root);
  void ForgetReads() { reads_.clear(); }  // by who ends the Context's program

  // For which part of the program the rank works now, and who is told when that changes: nobody, or
  // an observer that outlives its time here (work_scope.h).
  const void* scope() const { return scope_; }
  void set_scope(const void* scope);
  ScopeObserver* scope_observer() const { return scope_observer_; }
  void set_scope_observer(ScopeObserver* observer) { scope_observer_ = observer; }

  DispatchCache& dispatch_cache() { return *dispatch_cache_; }

  // The innermost function of Recompute() that runs now; null: none.
  RecomputedRun* recomputed_run() const { return recomputed_run_; }
  void set_recomputed_run(RecomputedRun* run) { recomputed_run_ = run; }

 private:
  struct Tables;  // specs, options, plans
  Communicator& communicator_;
  Device& device_;
  const SimulatedClock* const simulated_clock_;
  bool recording_ = true;
  RecomputedRun* recomputed_run_ = nullptr;
  const void* scope_ = nullptr;
  ScopeObserver* scope_observer_ = nullptr;
  uint64_t sequence_ = 0;
  RandomState random_;
  struct Read {
    Tensor source;
    std::weak_ptr<PendingRedistribution> reader;
    std::weak_ptr<const void> unfinished;  // also while it is dropped
  };
  std::vector<Read> reads_;  // few or none
  std::unique_ptr<Tables> tables_;
  std::unique_ptr<DispatchCache> dispatch_cache_;
};

// Turns recording off while it lives: evaluation, optimizers.
class NoGrad {
 public:
  explicit NoGrad(Context& context) : context_(context), before_(context.recording()) {
    context_.set_recording(false);
  }
  ~NoGrad() { context_.set_recording(before_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Context& context_;
  bool before_;
};

// Runs fn on one thread per rank, each with its own Context: the world of a laptop. Errors: see
// RunLocalRanks; an exception that leaves fn is its rank's error.
absl::Status RunRanks(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options = {});

struct SimulationOptions {
  CostModel cost;  // by which time passes; it changes nothing else
};

// Runs fn once, as rank `rank` of `size`, on a meta device with a simulated communicator: the same
// program, with shapes and no bytes. What it would communicate is in
// context.communicator().traffic(), what it would hold in context.device().memory(), and how long
// it would take in context.simulated_clock(). Errors: see RunSimulatedRank.
absl::Status Simulate(int rank, int size, const std::function<absl::Status(Context&)>& fn,
                      const SimulationOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_CONTEXT_H_
