// GatherGroups: parameters that are stored sharded and gathered for use, for fully sharded data
// parallelism (FSDP).
//
// A leaf in a group is stored in the layout that it was made in; so are its gradient and its
// optimizer states. Operators use it in another layout, `used`: ForUse() returns the gathered
// tensor, whose gradient is that of the leaf. Entering a group gathers all of its leaves in one
// exchange and begins to gather the next group (prefetch); leaving it frees what was gathered. A
// recorded operator saves the leaf and not the gathered tensor. Backward gathers again, also one
// group ahead, frees each gathered tensor after the last operator that reads it, and
// reduce-scatters the gradients of a group to the leaves' layouts when the last of them has
// arrived.
//
//   const std::shared_ptr<GatherGroups> groups = GatherGroups::New();
//   const std::shared_ptr<GatherGroup> block = groups->Add(ShardLevel::kParameters);
//   DT_RETURN_IF_ERROR(block->Add(weight, Layout::Replicated(mesh, 2)));  // stored as S(0)
//   ...
//   const GatherScope scope(block.get());  // gathers; frees what it gathered at the end
//   DT_RETURN_IF_ERROR(scope.status());
//   TensorOr y = Linear(x, ForUse(weight));
//
// Modules do this for the group that they have (Module::set_gather_group), and plans give it to
// them (parallel_plans/fully_shard.h). docs/fully-shard.md says what moves when.
//
// All communication follows from the order of calls, which must be the same on every rank.
#ifndef DTENSOR_TENSOR_GATHER_GROUP_H_
#define DTENSOR_TENSOR_GATHER_GROUP_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct TensorImpl;
class GatherGroups;

// What is kept sharded between uses: the stages of ZeRO (Rajbhandari et al. 2020).
enum class ShardLevel : uint8_t {
  // Only optimizer states. A gathered parameter is kept until it is used again after the parameter
  // was written to. Gradients are not sharded before ReduceGradients.
  kOptimizer = 1,
  kGradients = 2,   // Also gradients: reduce-scattered in Backward. Parameters as above.
  kParameters = 3,  // Also parameters: gathered for each use.
};

class GatherGroup;

// A leaf in its group.
struct GatherMember {
  GatherGroup* group;
  std::weak_ptr<TensorImpl> leaf;
  SpecPtr used;
  std::weak_ptr<TensorImpl> gathered;  // without an edge; may still be in flight
  uint64_t version = 0;                // of the leaf, when `gathered` was begun

  // `gathered`, if it is alive and has the leaf's present values; else null.
  std::shared_ptr<TensorImpl> Current() const;
};

class GatherGroup {
 public:
  GatherGroup(GatherGroups& groups, ShardLevel level) : groups_(groups), level_(level) {}
  GatherGroup(const GatherGroup&) = delete;
  GatherGroup& operator=(const GatherGroup&) = delete;

  ShardLevel level() const { return level_; }
  // The scope to which the group's communication is attributed (work_scope.h), and its name. Null:
  // the scope that is current when the communication happens.
  const void* scope() const { return scope_; }
  void set_scope(const void* scope, absl::string_view path = "") {
    scope_ = scope;
    scope_path_.assign(path.data(), path.size());
  }
  // scope(), or the Context's present scope if that is null.
  const void* ScopeIn(Context& context) const {
    if (scope_ == nullptr) return context.scope();
    if (context.notes_scopes()) context.NameScope(scope_, scope_path_);
    return scope_;
  }
  // Adds `leaf`, which operators use in the layout `used` of its mesh from now on. Errors:
  // kInvalidArgument for an undefined tensor, one that is no leaf, is in a group already or belongs
  // to another Context than the group's leaves, and for a layout that is on another mesh, Partial,
  // or does not fit.
  absl::Status Add(const DistributedTensor& leaf, const Layout& used);

 private:
  friend class GatherGroups;
  friend class GatherScope;
  // Begins to gather the members whose present values are not gathered yet.
  absl::Status Hold();
  absl::Status Enter();
  void Leave();

  GatherGroups& groups_;
  const ShardLevel level_;
  const void* scope_ = nullptr;
  std::string scope_path_;
  std::deque<GatherMember> members_;               // a deque, as members must not move in memory
  std::vector<std::shared_ptr<TensorImpl>> held_;  // the gathered members; may be empty
  int entered_ = 0;
};

// The groups of one model. It is kept alive by its groups and by their leaves.
class GatherGroups : public std::enable_shared_from_this<GatherGroups> {
 public:
  static std::shared_ptr<GatherGroups> New() {
    return std::shared_ptr<GatherGroups>(new GatherGroups());
  }
  GatherGroups(const GatherGroups&) = delete;
  GatherGroups& operator=(const GatherGroups&) = delete;

  // Adds a group. The first one added is the model's root: only while it is entered are groups
  // gathered ahead. The group gathered ahead is the one that came next in the previous pass, and in
  // the first pass the one that was added next.
  std::shared_ptr<GatherGroup> Add(ShardLevel level);

 private:
  friend class GatherGroup;
  GatherGroups() = default;
  void Enter(GatherGroup& group);
  void Leave();
  // While the first group (the root) is entered: the group expected to be entered next. Else null.
  GatherGroup* expected() const { return in_first_ && at_ < order_.size() ? order_[at_] : nullptr; }

  std::deque<GatherGroup> groups_;
  // The order in which groups were entered in the previous pass, within the first group (the root);
  // and how many of them have been entered in this pass.
  std::vector<GatherGroup*> order_;
  size_t at_ = 0;
  int entered_ = 0;
  bool in_first_ = false;
};

// Enters a group, and leaves it at the end of the scope. Does nothing for null. Collective over the
// ranks that share the leaves. Groups may be nested, and a group may be entered again while it is
// entered.
class GatherScope {
 public:
  explicit GatherScope(GatherGroup* group);
  ~GatherScope();
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;
  // Errors: failures.
  const absl::Status& status() const { return status_; }

 private:
  GatherGroup* group_;
  absl::Status status_;
};

// Returns the leaf as operators use it: gathered, if it is in a group, else the leaf itself. If the
// group is not entered, this call gathers the leaf (unless it is gathered already), so the call is
// collective; the gathered memory lives as long as the result is held. Errors: failures.
// Requires: defined.
TensorOr ForUse(const DistributedTensor& leaf);

// The layout of ForUse(leaf).
const Layout& UsedLayout(const DistributedTensor& leaf);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_GROUP_H_
