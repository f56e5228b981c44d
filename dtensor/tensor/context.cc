#include "dtensor/tensor/context.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/layout_digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/lru_cache.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/tensor/collective_results.h"
#include "dtensor/tensor/dispatch_cache.h"
#include "dtensor/tensor/work_scope.h"

namespace dtensor {

namespace {

absl::Status CheckMesh(const DeviceMesh& mesh, int world_size) {
  const absl::Span<const int> ranks = mesh.listed_ranks();
  if (ranks.empty() && mesh.size() != world_size) {
    return InvalidArgument({"mesh ", mesh.ToString(), " has ", absl::StrCat(mesh.size()),
                            " ranks where the world has ", absl::StrCat(world_size),
                            "; choose axis sizes whose product is the number of ranks, or say "
                            "which ranks it lies on (OnRanks, or dp=2@0..1 as text)"});
  }
  for (int rank : ranks) {
    if (rank < world_size) continue;
    return InvalidArgument({"mesh ", mesh.ToString(), " has rank ", absl::StrCat(rank),
                            " where the world has ", absl::StrCat(world_size),
                            " ranks; a tensor's mesh lies on the ranks of its world"});
  }
  return absl::OkStatus();
}

// A hash of the values; faster than absl's hash of a layout, which has many parts.
size_t HashOf(const Layout& layout, absl::Span<const int64_t> shape, DType dtype) {
  Digest digest;
  digest.Add(static_cast<int64_t>(absl::HashOf(layout.mesh())));
  AddLayout(layout, digest);
  for (int64_t size : shape) digest.Add(size);
  digest.Add(static_cast<int64_t>(dtype));
  return digest.value();
}

bool IsSpecOf(const Spec& spec, const Layout& layout, absl::Span<const int64_t> shape,
              DType dtype) {
  return spec.dtype == dtype && absl::MakeConstSpan(spec.shape) == shape && spec.layout == layout;
}

}  // namespace

struct Context::Tables {
  using Options = std::shared_ptr<const RedistributionOptions>;
  // The key of a plan consists of addresses; Plan owns what they point to.
  using PlanKey = std::tuple<const Spec*, const Spec*, const RedistributionOptions*>;
  struct Plan {
    SpecPtr from, to;
    Options options;
    std::shared_ptr<const RankRedistributionPlan> plan;
  };

  explicit Tables(int64_t staging_bytes) : staging_bytes(staging_bytes) {}

  const int64_t staging_bytes;
  HashMap<size_t, absl::InlinedVector<SpecPtr, 1>> specs;  // by hash of the values
  size_t num_specs = 0, most_specs = kSpecs;
  // Specs that were looked up last; all are in `specs`. Every redistribution looks up its target,
  // and computing the hash would take as long as everything else that a view needs.
  std::array<const Spec*, 4> recent = {};
  size_t last_recent = 0;
  std::vector<Options> options;  // few, so searched linearly; most recent use last
  Options usual;                 // the Context's own
  LruCache<PlanKey, Plan> plans{kPlans};
  // By the address of the plan, which the value owns; null chunks: the plan is not split.
  struct Chunks {
    std::shared_ptr<const RankRedistributionPlan> plan;
    std::shared_ptr<const RankChunks> chunks;
  };
  LruCache<const RankRedistributionPlan*, Chunks> chunks{kPlans};
  HashMap<uint64_t, uint64_t> made;               // number of tensors made, by digest of the mesh
  HashMap<const void*, std::string> scope_paths;  // if scopes are noted

  // Replaces staging_bytes by the transport's, whatever the caller has set.
  Options Intern(const RedistributionOptions& wanted) {
    if (wanted.staging_bytes != staging_bytes) {
      RedistributionOptions staged = wanted;
      staged.staging_bytes = staging_bytes;
      return Intern(staged);
    }
    const auto known = std::find_if(options.begin(), options.end(),
                                    [&](const Options& old) { return *old == wanted; });
    if (known != options.end()) {
      std::rotate(known, known + 1, options.end());
      return options.back();
    }
    if (options.size() == kOptions) options.erase(options.begin());
    options.push_back(std::make_shared<const RedistributionOptions>(wanted));
    return options.back();
  }

  SpecPtr KeepRecent(const SpecPtr& spec) {
    last_recent = (last_recent + 1) % recent.size();
    recent[last_recent] = spec;
    return spec;
  }

  // If the table is full, drops the specs that nothing else owns. The table may then grow to twice
  // the number of those that are left.
  void MakeRoomForSpec() {
    if (num_specs < most_specs) return;
    recent.fill(nullptr);
    for (auto bucket = specs.begin(); bucket != specs.end();) {
      auto& found = bucket->second;
      const auto dropped = std::remove_if(found.begin(), found.end(),
                                          [](const SpecPtr& spec) { return spec.is_only_owner(); });
      num_specs -= found.end() - dropped;
      found.erase(dropped, found.end());
      bucket = found.empty() ? specs.erase(bucket) : std::next(bucket);
    }
    most_specs = std::max(kSpecs, 2 * num_specs);
  }
};

std::string Spec::ToString() const {
  return absl::StrCat(DimsToString(shape), " ", dtensor::ToString(dtype), " on ", mesh().ToString(),
                      " as ", layout.ToString());
}

namespace {

// Reads "4" or "4,65536"; any other text, or null, changes nothing.
void ReadOverlap(const char* text, OverlapOptions& overlap) {
  if (text == nullptr) return;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  OverlapOptions read = overlap;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts[0], &read.chunks)) return;
  if (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &read.min_bytes)) return;
  overlap = read;
}

}  // namespace

ContextOptions WithEnvironment(ContextOptions options) {
  if (!std::exchange(options.read_environment, false)) return options;
  const char* const file = std::getenv("DTENSOR_TRACE");
  if (options.trace_file.empty() && file != nullptr) options.trace_file = file;
  const char* const verbose = std::getenv("DTENSOR_VERBOSE");
  if (options.overlap.chunks == 0) ReadOverlap(std::getenv("DTENSOR_OVERLAP"), options.overlap);
  if (options.notice == nullptr && verbose != nullptr && absl::string_view(verbose) == "1") {
    options.notice = [](absl::string_view line) {
      const std::string whole = absl::StrCat("dtensor: ", line, "\n");  // one call
      std::fputs(whole.c_str(), stderr);
    };
  }
  return options;
}

Context::Context(Communicator& communicator, Device& device, const ContextOptions& options)
    : communicator_(communicator),
      device_(device),
      simulated_clock_(ClockOf(device)),
      max_implicit_bytes_(options.max_implicit_bytes),
      notice_(options.notice),
      overlap_(options.overlap),
      tables_(std::make_unique<Tables>(communicator.staging_bytes())),
      dispatch_cache_(std::make_unique<DispatchCache>()) {
  tables_->usual = tables_->Intern({});
  notes_scopes_ = notice_ != nullptr;
  if (!options.trace_file.empty()) StartTrace(options.trace);
}

Context::~Context() = default;

uint64_t Context::NextSeed() {
  // splitmix64 (Steele et al. 2014): consecutive numbers give unrelated seeds.
  uint64_t x = random_.seed + ++random_.drawn * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

absl::StatusOr<SpecPtr> Context::Intern(const Layout& layout, absl::Span<const int64_t> shape,
                                        DType dtype) {
  for (size_t i = 0; i < tables_->recent.size(); ++i) {
    const size_t at = (tables_->last_recent + i) % tables_->recent.size();
    const Spec* const spec = tables_->recent[at];
    if (spec == nullptr || !IsSpecOf(*spec, layout, shape, dtype)) continue;
    tables_->last_recent = at;
    return SpecPtr(spec);
  }
  const size_t hash = HashOf(layout, shape, dtype);
  if (const auto known = tables_->specs.find(hash); known != tables_->specs.end()) {
    for (const SpecPtr& spec : known->second) {
      if (IsSpecOf(*spec, layout, shape, dtype)) return tables_->KeepRecent(spec);
    }
  }
  DT_RETURN_IF_ERROR(CheckedNumElements("tensor", shape).status());
  DT_RETURN_IF_ERROR(CheckMesh(layout.mesh(), world_size()));
  if (shape.size() > Layout::kMaxDims) {
    return InvalidArgument({"a tensor of shape ", DimsToString(shape), " has ",
                            absl::StrCat(shape.size()), " dimensions; at most ",
                            absl::StrCat(Layout::kMaxDims), ": join some of them"});
  }
  if (layout.ndim() != static_cast<int>(shape.size())) {
    return InvalidArgument({"layout ", layout.ToString(), " has ", absl::StrCat(layout.ndim()),
                            " dimensions where the shape ", DimsToString(shape), " has ",
                            absl::StrCat(shape.size())});
  }
  DT_RETURN_IF_ERROR(CheckRegions(layout, shape));
  auto* spec = new Spec;
  SpecPtr interned(spec);
  spec->layout = layout;
  spec->shape.assign(shape.begin(), shape.end());
  spec->dtype = dtype;
  spec->on_mesh = layout.mesh().Contains(rank());
  spec->local_shape = spec->on_mesh ? layout.LocalShape(shape, rank()) : Dims{0};
  spec->local_numel = NumElements(spec->local_shape);
  Digest mesh, all;
  mesh.Add(layout.mesh().ToString());
  spec->mesh_digest = mesh.value();
  all.Add(spec->ToString());
  spec->digest = all.value();
  tables_->MakeRoomForSpec();
  tables_->specs[hash].push_back(interned);
  ++tables_->num_specs;
  return tables_->KeepRecent(interned);
}

const RedistributionOptions& Context::redistribution_options() const { return *tables_->usual; }

const std::shared_ptr<const RedistributionOptions>& Context::kept_redistribution_options() const {
  return tables_->usual;
}

absl::Status Context::set_redistribution_options(const RedistributionOptions& options) {
  if (options.in_place) {
    return InvalidArgument(
        {"set_redistribution_options: in_place destroys what it redistributes, "
         "so no operator does it; give it to one Redistribute"});
  }
  DT_RETURN_IF_ERROR(options.links.Check());
  tables_->usual = tables_->Intern(options);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RankRedistributionPlan>> Context::Plan(
    const Spec* from, const Spec* to, const RedistributionOptions* options) {
  // The Context's own options are not copied here, as counting owners takes measurable time.
  const Tables::Options other = options == nullptr ? nullptr : tables_->Intern(*options);
  const Tables::Options& interned = other == nullptr ? tables_->usual : other;
  const Tables::PlanKey key(from, to, interned.get());
  if (const Tables::Plan* known = tables_->plans.Find(key)) return known->plan;
  RedistributionOptions typed = *interned;
  typed.dtype = to->dtype;
  DT_ASSIGN_OR_RETURN(
      RedistributionPlan plan,
      RedistributionPlan::Create(from->layout, to->layout, from->shape, from->dtype, typed));
  auto rank_plan = std::make_shared<const RankRedistributionPlan>(std::move(plan), rank());
  tables_->plans.Insert(key, {from, to, interned, rank_plan});
  return rank_plan;
}

std::shared_ptr<const RankChunks> Context::ChunksOf(
    const std::shared_ptr<const RankRedistributionPlan>& plan) {
  if (overlap_.chunks < 1 || plan->plan().moves_nothing()) return nullptr;
  if (const Tables::Chunks* known = tables_->chunks.Find(plan.get())) return known->chunks;
  std::shared_ptr<const RankChunks> chunks;
  if (plan->plan().to().mesh().Contains(rank()) &&
      plan->plan().Bytes().busiest >= overlap_.min_bytes) {
    const int count = std::min(overlap_.chunks, ChunkSchedule::kMostChunks);
    auto schedule = ChunkSchedule::Create(plan->plan(), count);
    if (schedule != nullptr) {
      chunks = std::make_shared<const RankChunks>(std::move(schedule), plan, rank());
    }
  }
  tables_->chunks.Insert(plan.get(), {plan, chunks});
  return chunks;
}

Lineage Context::NextLineage(const Spec& spec, const char* maker) {
  if (const auto again = NumberMadeAgain(*this, spec.mesh_digest); again.has_value()) {
    return {MixLineage(spec.digest, *again), maker, 0};
  }
  const uint64_t number = ++tables_->made[spec.mesh_digest];
  return {MixLineage(spec.digest, number), maker, number};
}

Context::CacheSizes Context::cache_sizes() const {
  return {dispatch_cache_->decisions.size(), tables_->plans.size(), tables_->options.size(),
          tables_->num_specs};
}

std::vector<SpecPtr> Context::specs() const {
  std::vector<SpecPtr> all;
  for (const auto& [hash, found] : tables_->specs)
    all.insert(all.end(), found.begin(), found.end());
  return all;
}

void Context::set_scope(const void* scope) {
  if (scope_ == scope) return;
  scope_ = scope;
  if (scope_observer_ != nullptr) scope_observer_->Enter(scope);
  if (tracer_ != nullptr) tracer_->set_path(scope_path());
}

void Context::set_scope_observer(ScopeObserver* observer) {
  scope_observer_ = observer;
  const bool traced = tracer_ != nullptr && tracer_->on();
  notes_scopes_ = observer != nullptr || traced || notice_ != nullptr;
}

void Context::NameScope(const void* scope, absl::string_view path) {
  std::string& known = tables_->scope_paths[scope];
  if (known != path) known.assign(path.data(), path.size());
}

absl::string_view Context::scope_path() const {
  const auto known = tables_->scope_paths.find(scope_);
  return known == tables_->scope_paths.end() ? "" : absl::string_view(known->second);
}

void Context::StartTrace(const TraceOptions& options) {
  if (tracer_ == nullptr) {
    tracer_ = std::make_unique<TraceRecorder>(communicator_, device_, simulated_clock_);
  }
  tracer_->Start(options);
  tracer_->set_path(scope_path());
  set_scope_observer(scope_observer_);
}

void Context::StopTrace() {
  if (tracer_ != nullptr) tracer_->Stop();
  set_scope_observer(scope_observer_);
}

RankTrace Context::trace() const {
  if (tracer_ != nullptr) return tracer_->trace();
  RankTrace none;
  none.rank = rank();
  none.world_size = world_size();
  return none;
}

absl::Status Context::FinishProgram(absl::Status status) {
  if (status.ok()) status = NoThrow([this] { return FinishBegun(); });
  EndProgram();
  return status;
}

void Context::EndProgram() {
  ForgetReads();
  StopTrace();
  if (tracer_ != nullptr) tracer_->Detach();
}

}  // namespace dtensor
