#include "dtensor/context.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch_cache.h"
#include "dtensor/plan_cache.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

namespace {

// A plan takes about a kilobyte, or what its boxes do: some for each peer.
constexpr size_t kPlans = 4096;

absl::Status CheckMesh(const DeviceMesh& mesh, int world_size) {
  const absl::Span<const int> ranks = mesh.listed_ranks();
  if (ranks.empty() && mesh.size() != world_size) {
    return InvalidArgument({"mesh ", mesh.ToString(), " has ", absl::StrCat(mesh.size()),
                            " ranks where the world has ", absl::StrCat(world_size),
                            "; choose axis sizes whose product is the number of ranks, or say "
                            "which ranks it lies on (OnRanks)"});
  }
  for (int rank : ranks) {
    if (rank < world_size) continue;
    return InvalidArgument({"mesh ", mesh.ToString(), " has rank ", absl::StrCat(rank),
                            " where the world has ", absl::StrCat(world_size),
                            " ranks; a tensor's mesh lies on the ranks of its world"});
  }
  return absl::OkStatus();
}

}  // namespace

struct Context::Tables {
  absl::flat_hash_map<size_t, std::vector<std::unique_ptr<Spec>>> specs;  // by hash of the values
  std::vector<std::unique_ptr<const RedistributionOptions>> options;      // few: searched
  const RedistributionOptions* usual = nullptr;                           // of this Context
  PlanCache plans{kPlans};

  const RedistributionOptions* Intern(const RedistributionOptions& wanted) {
    for (const auto& known : options) {
      if (*known == wanted) return known.get();
    }
    options.push_back(std::make_unique<const RedistributionOptions>(wanted));
    return options.back().get();
  }
};

std::string Spec::ToString() const {
  return absl::StrCat(DimsToString(shape), " ", dtensor::ToString(dtype), " on ", mesh().ToString(),
                      " as ", layout.ToString());
}

Context::Context(Communicator& communicator, Device& device)
    : communicator_(communicator),
      device_(device),
      tables_(std::make_unique<Tables>()),
      dispatch_cache_(std::make_unique<DispatchCache>()) {
  set_redistribution_options({});
}

Context::~Context() = default;

absl::StatusOr<const Spec*> Context::Intern(const Layout& layout, absl::Span<const int64_t> shape,
                                            DType dtype) {
  const size_t hash = absl::HashOf(layout, shape, dtype);
  auto& bucket = tables_->specs[hash];
  for (const auto& spec : bucket) {
    if (spec->dtype == dtype && absl::MakeConstSpan(spec->shape) == shape && spec->layout == layout)
      return spec.get();
  }
  DT_RETURN_IF_ERROR(CheckMesh(layout.mesh(), world_size()));
  if (layout.rank() != static_cast<int>(shape.size())) {
    return InvalidArgument({"layout ", layout.ToString(), " has ", absl::StrCat(layout.rank()),
                            " dimensions where the shape ", DimsToString(shape), " has ",
                            absl::StrCat(shape.size())});
  }
  auto spec = std::make_unique<Spec>();
  spec->layout = layout;
  spec->shape.assign(shape.begin(), shape.end());
  spec->dtype = dtype;
  spec->on_mesh = layout.mesh().Contains(rank());
  spec->local_shape = spec->on_mesh ? layout.LocalShape(shape, rank()) : Dims{0};
  spec->local_numel = NumElements(spec->local_shape);
  bucket.push_back(std::move(spec));
  return bucket.back().get();
}

const RedistributionOptions& Context::redistribution_options() const { return *tables_->usual; }

void Context::set_redistribution_options(const RedistributionOptions& options) {
  tables_->usual = tables_->Intern(options);
}

absl::StatusOr<std::shared_ptr<const RankPlan>> Context::Plan(
    const Spec* from, const Spec* to, const RedistributionOptions* options) {
  options = options == nullptr ? tables_->usual : tables_->Intern(*options);
  const PlanCache::Key key(from, to, options);
  if (std::shared_ptr<const RankPlan> known = tables_->plans.Find(key)) return known;
  RedistributionOptions typed = *options;
  typed.dtype = to->dtype;
  DT_ASSIGN_OR_RETURN(
      RedistributionPlan plan,
      RedistributionPlan::Create(from->layout, to->layout, from->shape, from->dtype, typed));
  auto rank_plan = std::make_shared<const RankPlan>(std::move(plan), rank());
  tables_->plans.Insert(key, rank_plan);
  return rank_plan;
}

absl::Status RunRanks(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options) {
  return RunLocalRanks(
      n,
      [&fn](Communicator& communicator, Device& device) {
        Context context(communicator, device);
        return fn(context);
      },
      options);
}

absl::Status Simulate(int rank, int size, const std::function<absl::Status(Context&)>& fn) {
  if (size < 1 || rank < 0 || rank >= size) {
    return InvalidArgument(
        {"Simulate: there is no rank ", absl::StrCat(rank), " of ", absl::StrCat(size)});
  }
  const std::unique_ptr<Communicator> communicator = MakeSimulatedCommunicator(rank, size);
  const std::unique_ptr<Device> device = MakeMetaDevice();
  Context context(*communicator, *device);
  return fn(context);
}

}  // namespace dtensor
