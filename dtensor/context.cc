#include "dtensor/context.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch_cache.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

struct Context::Tables {
  absl::flat_hash_map<size_t, std::vector<std::unique_ptr<Spec>>> specs;  // by hash of the values
  absl::flat_hash_map<std::pair<const Spec*, const Spec*>, std::unique_ptr<RankPlan>> plans;
};

std::string Spec::ToString() const {
  return absl::StrCat(DimsToString(shape), " ", dtensor::ToString(dtype), " on ", mesh().ToString(),
                      " as ", layout.ToString());
}

Context::Context(Communicator& communicator, Device& device)
    : communicator_(communicator),
      device_(device),
      tables_(std::make_unique<Tables>()),
      dispatch_cache_(std::make_unique<DispatchCache>()) {}

Context::~Context() = default;

absl::StatusOr<const Spec*> Context::Intern(const Layout& layout, absl::Span<const int64_t> shape,
                                            DType dtype) {
  const size_t hash = absl::HashOf(layout, shape, dtype);
  auto& bucket = tables_->specs[hash];
  for (const auto& spec : bucket) {
    if (spec->dtype == dtype && absl::MakeConstSpan(spec->shape) == shape && spec->layout == layout)
      return spec.get();
  }
  if (layout.mesh().size() != world_size()) {
    return InvalidArgument({"mesh ", layout.mesh().ToString(), " has ",
                            absl::StrCat(layout.mesh().size()), " ranks where the world has ",
                            absl::StrCat(world_size()),
                            "; choose axis sizes whose product is the number of ranks"});
  }
  for (int rank : layout.mesh().listed_ranks()) {
    if (rank < world_size()) continue;
    return InvalidArgument({"mesh ", layout.mesh().ToString(), " has rank ", absl::StrCat(rank),
                            " where the world has ", absl::StrCat(world_size()),
                            " ranks; a tensor's mesh lies on the ranks of its world"});
  }
  if (layout.rank() != static_cast<int>(shape.size())) {
    return InvalidArgument({"layout ", layout.ToString(), " has ", absl::StrCat(layout.rank()),
                            " dimensions where the shape ", DimsToString(shape), " has ",
                            absl::StrCat(shape.size())});
  }
  auto spec = std::make_unique<Spec>();
  spec->layout = layout;
  spec->shape.assign(shape.begin(), shape.end());
  spec->dtype = dtype;
  spec->local_shape = layout.LocalShape(shape, rank());
  spec->local_numel = NumElements(spec->local_shape);
  bucket.push_back(std::move(spec));
  return bucket.back().get();
}

absl::StatusOr<const RankPlan*> Context::Plan(const Spec* from, const Spec* to) {
  auto& entry = tables_->plans[{from, to}];
  if (entry == nullptr) {
    auto plan = RedistributionPlan::Create(from->layout, to->layout, from->shape, from->dtype);
    if (!plan.ok()) {
      tables_->plans.erase({from, to});
      return plan.status();
    }
    entry = std::make_unique<RankPlan>(*std::move(plan), rank());
  }
  return entry.get();
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
