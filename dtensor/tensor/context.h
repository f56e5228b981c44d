// Context: the state of one rank: its rank number, its device, its communicator, and the caches
// that reduce the dispatch of an operator to one look-up. A Context is passed explicitly, never
// global, so several can be used side by side in one process.
//
// A Context and everything made with it belong to one thread (the rank's), and a Context must
// outlive its tensors. You need to see to that only for Contexts that you construct yourself: those
// of RunRanks, RunWorld, Simulate, LocalWorld, LocalRank and JoinedWorld are kept alive by their
// tensors. A tensor that outlives its world can still be read and destroyed; operations that need
// other ranks return an error. Operators refuse operands of two Contexts.
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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/chunked_move.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/simulated_clock.h"
#include "dtensor/tensor/counted.h"
#include "dtensor/trace/trace.h"
#include "dtensor/trace/trace_recorder.h"

namespace DTENSOR_EXPORT dtensor {

struct DispatchCache;  // dispatch_cache.h
class LateValues;      // late_values.h
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
  // Of the mesh, and of all of it: equal for equal ones, in every process.
  uint64_t mesh_digest = 0, digest = 0;
  // "[8, 4] f32 on ["tp"=2] as [tp] []"
  std::string ToString() const;
};
using SpecPtr = CountedPtr<const Spec>;

// What random operators draw their seeds from. Equal on all ranks, as their programs are.
struct RandomState {
  uint64_t seed = 0;
  uint64_t drawn = 0;  // seeds so far
};

// Overlaps matrix products with the all-gathers before them and the reduce-scatters after them
// (docs/overlap.md). Must be equal on all ranks, else the first overlapped exchange fails the
// world.
struct OverlapOptions {
  // In how many exchanges an all-gather before a product, or a reduce-scatter behind one, is made;
  // at most ChunkSchedule::kMostChunks. 0: at once, and nothing runs beside it.
  int chunks = 0;
  // What is smaller is made at once: bytes that the busiest rank receives.
  int64_t min_bytes = int64_t{4} << 20;
};

// What is written down of a Context's program, and what it may not do by itself (docs/tracing.md).
struct ContextOptions {
  // The world that makes the Context writes its trace here when the program is over, also when it
  // failed (trace_file.h has the names and formats); a relative path is one of the folder in which
  // the process runs when the world is made. Empty: nothing is traced, unless StartTrace
  // says so.
  std::string trace_file = {};
  TraceOptions trace = {};  // with trace_file
  // An operator is refused if the redistributions that it would insert by itself (those that
  // neither Redistribute(), nor a plan, nor an argument of the operator asked for) would make some
  // rank receive more bytes than this. For several operands and results, the bytes of each one's
  // busiest rank are added; a tensor passed as two operands counts twice. Communication of Backward
  // follows from forward and is not bounded. The same on all ranks. -1: no bound.
  int64_t max_implicit_bytes = -1;
  // Told of each such redistribution on the mesh's first rank, when the dispatch cache meets it
  // first: one line. On that rank's thread: tensors of several meshes have it called by several
  // threads at once. Null: nobody.
  std::function<void(absl::string_view line)> notice = nullptr;
  OverlapOptions overlap = {};
  bool read_environment = true;  // WithEnvironment
};

// With what the environment says, where `options` say nothing: DTENSOR_TRACE is a trace_file,
// DTENSOR_VERBOSE=1 a notice on stderr, DTENSOR_OVERLAP=4 an overlap in so many chunks,
// DTENSOR_OVERLAP=4,65536 of what has so many bytes (what is no number is not read). Worlds ask
// once, when they are made.
ContextOptions WithEnvironment(ContextOptions options);

class Context {
 public:
  // Both must outlive the Context.
  Context(Communicator& communicator, Device& device, const ContextOptions& options = {});
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

  const OverlapOptions& overlap() const { return overlap_; }
  // The plan in chunks, if overlap() says so and its schedule can; else null. Remembered with
  // plans.
  std::shared_ptr<const RankChunks> ChunksOf(
      const std::shared_ptr<const RankRedistributionPlan>& plan);

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

  // AddRead() notes that the pending redistribution `reader` still reads `source` on this rank (an
  // undefined `source`: it reads nothing that could be written to). FinishReads() is called before
  // memory is written: it finishes all noted redistributions that read the storage of `root`, in
  // the order in which they were noted, and those that were dropped before they were finished.
  // Errors: the world's failure.
  void AddRead(const Tensor& source, const std::shared_ptr<PendingRedistribution>& reader);
  absl::Status FinishReads(const Tensor& root);
  // Values that are made later read `source`: FinishReads() has them made before.
  void AddLateRead(const Tensor& source, const std::shared_ptr<LateValues>& reader);
  void ForgetReads();
  // Finishes what the program has begun: makes what is made by its first use, and waits for
  // redistributions, kept or dropped. So whoever looks at tensors afterwards, without the other
  // ranks, finds their values. Collective. Errors: failures.
  absl::Status FinishBegun();
  // By who ends the Context's program, which returned `status`: FinishBegun() after OK, while that
  // is traced. Returns what came of both.
  absl::Status FinishProgram(absl::Status status);
  // Nothing is traced any more. By who lets go of a Context whose world may be over.
  void EndProgram();

  // For which part of the program the rank works now, and who is told when that changes: nobody, or
  // an observer that outlives its time here (work_scope.h).
  const void* scope() const { return scope_; }
  void set_scope(const void* scope);
  void set_scope_observer(ScopeObserver* observer);
  // Somebody wants to know; else there are no scopes.
  bool notes_scopes() const { return notes_scopes_; }
  // What a scope is called from here on: a module's path.
  void NameScope(const void* scope, absl::string_view path);
  absl::string_view scope_path() const;  // "" where it has no name

  // What happens from here on is traced, until StopTrace; a later Start goes on behind it. Of
  // several Contexts on one communicator the last that was started learns of exchanges; traces of
  // the others go on without these.
  void StartTrace(const TraceOptions& options = {});
  void StopTrace();
  RankTrace trace() const;  // so far
  // Who writes it down; null until there was a StartTrace. Programs name parts of their own:
  //   const TraceSpan span(context.tracer(), TraceKind::kSpan, "step 3");
  TraceRecorder* tracer() { return tracer_.get(); }

  int64_t max_implicit_bytes() const { return max_implicit_bytes_; }
  const std::function<void(absl::string_view)>& notice() const { return notice_; }

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
  bool notes_scopes_ = false;
  std::unique_ptr<TraceRecorder> tracer_;
  const int64_t max_implicit_bytes_;
  const std::function<void(absl::string_view)> notice_;
  uint64_t sequence_ = 0;
  RandomState random_;
  struct Read {
    std::weak_ptr<const void> storage;
    std::weak_ptr<PendingRedistribution> reader;
    std::weak_ptr<const void> unfinished;  // also while it is dropped
  };
  std::vector<Read> reads_;  // few or none
  struct LateRead {
    std::weak_ptr<const void> storage;
    std::weak_ptr<LateValues> reader;
  };
  std::vector<LateRead> late_reads_;  // the same
  absl::Status FinishLateReads(const std::weak_ptr<const void>& storage);
  const OverlapOptions overlap_;
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
// RunLocalRanks; an exception that leaves fn is its rank's error; kUnavailable where the trace
// cannot be written.
absl::Status RunRanks(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options = {}, const ContextOptions& contexts = {});

struct SimulationOptions {
  CostModel cost = {};  // by which time passes; it changes nothing else
  // Of the one rank. The environment is not read, whatever they say.
  ContextOptions contexts = {};
};

// Runs fn once, as rank `rank` of `size`, on a meta device with a simulated communicator: the same
// program, with shapes and no bytes. What it would communicate is in
// context.communicator().traffic(), what it would hold in context.device().memory(), and how long
// it would take in context.simulated_clock(). Errors: see RunSimulatedRank; kUnavailable where the
// trace cannot be written; what the rank made its world fail with (Communicator::Fail), even where
// fn hid it.
absl::Status Simulate(int rank, int size, const std::function<absl::Status(Context&)>& fn,
                      const SimulationOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_CONTEXT_H_
