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

struct DispatchCache;     // dispatch_cache.h
class DistributedTensor;  // distributed_tensor.h
class LateSend;           // late_send.h
class LateValues;         // late_values.h
class RecomputedRun;      // collective_results.h
class ScopeObserver;      // work_scope.h

// (mesh, layout, shape, dtype), interned in a Context: equal Specs have one address as long as
// something besides the Context owns the Spec, so Specs are compared by address.
struct Spec : Counted {
  Layout layout;
  Dims shape;  // global
  DType dtype = DType::kF32;
  Dims local_shape;     // of this rank's shard; [0] if this rank is not on the mesh
  bool on_mesh = true;  // this rank is on the mesh

  const DeviceMesh& mesh() const { return layout.mesh(); }
  int ndim() const { return static_cast<int>(shape.size()); }
  int64_t local_numel = 0;
  // Digests of the mesh and of the whole Spec: equal values have equal digests in every process.
  uint64_t mesh_digest = 0, digest = 0;
  // "[8, 4] f32 on ["tp"=2] as [tp] []"
  std::string ToString() const;
};
using SpecPtr = CountedPtr<const Spec>;

// The state from which random operators draw their seeds. Equal on all ranks that run the same
// program; stages of a pipeline may have drawn different numbers of seeds.
struct RandomState {
  uint64_t seed = 0;
  uint64_t drawn = 0;  // number of seeds drawn so far
};

// Overlaps matrix products with the all-gathers before them and the reduce-scatters after them
// (docs/overlap.md). Must be equal on all ranks, else the first overlapped exchange fails the
// world.
struct OverlapOptions {
  // Into how many exchanges an all-gather before a product, or a reduce-scatter after one, is
  // split; at most ChunkSchedule::kMostChunks. 0: no overlap.
  int chunks = 0;
  // Collectives in which the busiest rank receives fewer bytes than this are not overlapped.
  int64_t min_bytes = int64_t{4} << 20;
};

// How a Context traces its program, and how it reports and bounds implicit communication
// (docs/tracing.md).
struct ContextOptions {
  // The world that makes the Context writes its trace to this file when the program is over, even
  // if it failed (trace_file.h has the names and formats). A relative path is relative to the
  // working directory at the time when the world is made. Empty: nothing is traced before
  // StartTrace is called.
  std::string trace_file = {};
  TraceOptions trace = {};  // used if trace_file is set
  // An operator is refused if the redistributions that it would insert by itself (those that
  // neither Redistribute(), nor a plan, nor an argument of the operator asked for) would make some
  // rank receive more bytes than this. For several operands and results, the bytes of each one's
  // busiest rank are added; a tensor passed as two operands counts twice. Communication of Backward
  // follows from forward and is not bounded. Must be the same on all ranks. -1: no bound.
  int64_t max_implicit_bytes = -1;
  // Called with one line of text for each such redistribution when its dispatch decision is made,
  // so not for calls whose decision is cached. Only the first rank of the tensors' mesh calls it,
  // on its own thread; with tensors on several meshes, several threads may call it at once. Null:
  // nothing is reported.
  std::function<void(absl::string_view line)> notice = nullptr;
  OverlapOptions overlap = {};
  bool read_environment = true;  // whether WithEnvironment has an effect
};

// Returns `options`, with members that are not set taken from environment variables:
// DTENSOR_TRACE=file sets trace_file, DTENSOR_VERBOSE=1 a notice that prints to stderr,
// DTENSOR_OVERLAP=4 the number of chunks, DTENSOR_OVERLAP=4,65536 also min_bytes (a value that is
// not of this form is ignored). Worlds call this once, when they are made.
ContextOptions WithEnvironment(ContextOptions options);

class Context {
 public:
  // Both must outlive the Context.
  Context(Communicator& communicator, Device& device, const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // --- For programs.

  int rank() const { return communicator_.rank(); }
  int world_size() const { return communicator_.size(); }
  Communicator& communicator() { return communicator_; }
  Device& device() { return device_; }
  // How long this rank would have taken so far, and for what; null unless the rank is simulated.
  const SimulatedClock* simulated_clock() const { return simulated_clock_; }

  // Operators record for Backward() while this is on (the default) and an operand requires
  // gradients.
  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }

  // The random state, which may be set, saved and restored. NextSeed() draws from it: the n-th seed
  // depends on random().seed and n alone.
  RandomState& random() { return random_; }
  uint64_t NextSeed();

  // The options for redistributions whose call gives none. Must be the same on all ranks. Errors:
  // kInvalidArgument for in_place, because operators would destroy their operands: only a single
  // call can ask for it; and for `links` that are not valid (CostModel::Check).
  const RedistributionOptions& redistribution_options() const;
  absl::Status set_redistribution_options(const RedistributionOptions& options);
  const OverlapOptions& overlap() const { return overlap_; }

  // Begins tracing; StopTrace ends it, and a later StartTrace appends to the same trace. If several
  // Contexts share a communicator, only the one started last sees exchanges; traces of the others
  // continue without them.
  void StartTrace(const TraceOptions& options = {});
  void StopTrace();
  RankTrace trace() const;  // so far
  // Records the trace; null until the first StartTrace. Programs can name parts of their own:
  //   const TraceSpan span(context.tracer(), TraceKind::kSpan, "step 3");
  TraceRecorder* tracer() { return tracer_.get(); }

  // Finishes what the program has begun: makes values that were put off until their first use, and
  // waits for redistributions, kept or dropped. Afterwards a rank can read its tensors without the
  // other ranks. Collective. Errors: failures.
  absl::Status FinishBegun();

  // Numbers of entries in the Context's caches. All are bounded, and evict what was used least
  // recently. What was evicted is worked out again when needed; communication does not change.
  struct CacheSizes {
    size_t decisions = 0;  // by operator, specs and attributes: at most kDecisions
    size_t plans = 0;      // at most kPlans
    size_t options = 0;    // sets of RedistributionOptions: at most kOptions
    size_t specs = 0;      // at most kSpecs, or twice as many as tensors, decisions and plans use
  };
  static constexpr size_t kDecisions = 4096, kPlans = 4096, kOptions = 64, kSpecs = 4096;
  CacheSizes cache_sizes() const;
  // The Specs that are interned now, in no particular order.
  std::vector<SpecPtr> specs() const;

  // --- For operators, dispatch, autograd and worlds. Programs do not need what follows.

  // The one Spec with these values. Errors: kInvalidArgument, with the remedy, if the mesh has
  // another number of ranks than the world and does not list its ranks (DeviceMesh::OnRanks); if
  // the mesh lists ranks that the world does not have; if layout and shape have different numbers
  // of dimensions, or more than Layout::kMaxDims; for a shape that no tensor may have (dims.h).
  absl::StatusOr<SpecPtr> Intern(const Layout& layout, absl::Span<const int64_t> shape,
                                 DType dtype);

  // The plan from one spec to the other, cached. With null `options`, the Context's are used. The
  // types are those of the specs.
  // Requires: specs of this Context. Errors: as RedistributionPlan::Create.
  absl::StatusOr<std::shared_ptr<const RankRedistributionPlan>> Plan(
      const Spec* from, const Spec* to, const RedistributionOptions* options = nullptr);
  // redistribution_options(), for code that keeps them: while in use, equal options have one
  // address.
  const std::shared_ptr<const RedistributionOptions>& kept_redistribution_options() const;
  // The plan split into chunks; null if overlap() does not ask for that, or the plan cannot be
  // split. Cached like plans.
  std::shared_ptr<const RankChunks> ChunksOf(
      const std::shared_ptr<const RankRedistributionPlan>& plan);

  // The lineage of a newly made tensor. Each call advances the count of the spec's mesh or, while a
  // function of Recompute() runs again, one of that run. Counts are kept for good: some 55 bytes
  // for each mesh that tensors were made on.
  Lineage NextLineage(const Spec& spec, const char* maker);
  // Advances when a tensor is redistributed to another mesh and ranks exchange something for it or
  // for its gradient, or it is read from a copy that is kept there.
  uint64_t mesh_changes() const { return mesh_changes_; }
  void NoteMeshChange() { ++mesh_changes_; }
  uint64_t NextSequence() { return ++sequence_; }  // creation order of autograd nodes

  // AddRead() notes that the pending redistribution `reader` still reads `source` on this rank (an
  // undefined `source`: it reads nothing that could be written to). FinishReads() is called before
  // memory is written: it finishes all noted redistributions that read the storage of `root`, in
  // the order in which they were noted, and those that were dropped before they were finished.
  // Errors: the world's failure.
  void AddRead(const Tensor& source, const std::shared_ptr<PendingRedistribution>& reader);
  absl::Status FinishReads(const Tensor& root);
  // Notes that LateValues which are not made yet will read `source`: FinishReads() makes them.
  void AddLateRead(const Tensor& source, const std::shared_ptr<LateValues>& reader);
  void ForgetReads();
  // While this is on, redistributions (not async ones) by which this rank only sends to another
  // mesh are put off (late_send.h): until FinishLateSends() for these meshes or, with null, for
  // all; until their source is written to; or until FinishBegun().
  bool defers_sends() const { return defers_sends_; }
  void set_defers_sends(bool on) { defers_sends_ = on; }
  void AddLateSend(std::shared_ptr<LateSend> send) { late_sends_.push_back(std::move(send)); }
  void ForgetLateSends() { late_sends_.clear(); }
  absl::Status FinishLateSends(const Spec* from = nullptr, const Spec* to = nullptr);
  // The stages of the pipeline that runs now: the axis whose coordinates they are, and the mesh of
  // each. Without an axis none runs. Operands of modules go from each stage to the next one alone,
  // and no stage sends another what it has of an operand in parts: all have other work.
  struct Stages {
    std::string axis;
    std::vector<DeviceMesh> meshes;
  };
  const Stages& stages() const { return stages_; }
  void set_stages(Stages stages) { stages_ = std::move(stages); }
  // The lengths that KeyLengths (key_lengths.h) has set; null: none.
  const std::shared_ptr<const DistributedTensor>& key_lengths() const { return key_lengths_; }
  void set_key_lengths(std::shared_ptr<const DistributedTensor> lengths) {
    key_lengths_ = std::move(lengths);
  }
  // Called at the end of the Context's program, which returned `status`. If that is OK, calls
  // FinishBegun(), which is still traced; then EndProgram(). Returns the first error of the two.
  absl::Status FinishProgram(absl::Status status);
  // Ends tracing and forgets pending reads, without communication: for a Context whose world may be
  // over.
  void EndProgram();

  // The part of the program for which the rank works now (work_scope.h). The observer, which may be
  // null, is told when it changes; it must live until another one is set.
  const void* scope() const { return scope_; }
  void set_scope(const void* scope);
  void set_scope_observer(ScopeObserver* observer);
  // Whether scopes are entered at all: only if an observer, a trace or a notice needs them.
  bool notes_scopes() const { return notes_scopes_; }
  // Names a scope from here on, by the module's path.
  void NameScope(const void* scope, absl::string_view path);
  absl::string_view scope_path() const;  // of scope(); "" if it has no name

  int64_t max_implicit_bytes() const { return max_implicit_bytes_; }
  const std::function<void(absl::string_view)>& notice() const { return notice_; }
  DispatchCache& dispatch_cache() { return *dispatch_cache_; }

  // The innermost function of Recompute() that is running now; null if there is none.
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
    std::weak_ptr<const void> unfinished;  // alive until it is finished, even if it was dropped
  };
  std::vector<Read> reads_;  // few or none
  struct LateRead {
    std::weak_ptr<const void> storage;
    std::weak_ptr<LateValues> reader;
  };
  std::vector<LateRead> late_reads_;  // few or none
  uint64_t mesh_changes_ = 0;
  bool defers_sends_ = false;
  Stages stages_;
  std::shared_ptr<const DistributedTensor> key_lengths_;
  std::vector<std::shared_ptr<LateSend>> late_sends_;  // in order
  absl::Status FinishLateReads(const std::weak_ptr<const void>& storage);
  const OverlapOptions overlap_;
  std::unique_ptr<Tables> tables_;
  std::unique_ptr<DispatchCache> dispatch_cache_;
};

// Turns recording off while it lives, as torch.no_grad: for evaluation and optimizers.
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

// Runs fn on one thread per rank, each with its own Context. An exception that leaves fn is its
// rank's error. Errors: see RunLocalRanks; kUnavailable if the trace cannot be written.
absl::Status RunRanks(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options = {}, const ContextOptions& contexts = {});

struct SimulationOptions {
  CostModel cost = {};  // prices the simulated time; it changes nothing else
  // Of the simulated rank. The environment is never read, whatever read_environment says.
  ContextOptions contexts = {};
};

// Runs fn once, as rank `rank` of `size`, on a meta device with a simulated communicator: the same
// program runs on shapes, without data. What it would communicate is in
// context.communicator().traffic(), what it would hold in context.device().memory(), and how long
// it would take in context.simulated_clock(). Errors: see RunSimulatedRank; kUnavailable if the
// trace cannot be written; the error with which the rank made its world fail (Communicator::Fail),
// even if fn did not return it.
absl::Status Simulate(int rank, int size, const std::function<absl::Status(Context&)>& fn,
                      const SimulationOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_CONTEXT_H_
