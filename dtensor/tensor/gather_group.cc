#include "dtensor/tensor/gather_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_members.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

absl::Status GatherGroup::Add(const DistributedTensor& leaf, const Layout& used) {
  if (!leaf.defined()) return InvalidArgument({"GatherGroup: the leaf is undefined"});
  TensorImpl& impl = *leaf.impl();
  if (impl.gather != nullptr || impl.edge.wanted()) {
    return InvalidArgument({"GatherGroup: ", leaf.ToString(),
                            impl.gather != nullptr ? " is in a group already; leave it there"
                                                   : " is no leaf; Detach() it first"});
  }
  if (used.mesh() != leaf.mesh() || used.is_partial()) {
    return InvalidArgument({"GatherGroup: ", leaf.ToString(), " cannot be used as ",
                            used.ToString(), " on ", used.mesh().ToString(),
                            "; give a layout of its mesh that is not Partial"});
  }
  for (const GatherMember& member : members_) {
    const TensorImplPtr other = member.leaf.lock();
    if (other == nullptr || other->context == impl.context) continue;
    return InvalidArgument({"GatherGroup: ", leaf.ToString(), " belongs to another Context than ",
                            other->spec->ToString(), " of the group, which one exchange gathers; ",
                            "give each Context a group of its own"});
  }
  DT_ASSIGN_OR_RETURN(SpecPtr spec, impl.context->Intern(used, leaf.shape(), leaf.dtype()));
  if (spec == impl.spec) return absl::OkStatus();  // nothing to gather
  members_.push_back({this, leaf.impl(), std::move(spec), {}, 0});
  impl.gather = std::shared_ptr<GatherMember>(groups_.shared_from_this(), &members_.back());
  return absl::OkStatus();
}

absl::Status GatherGroup::Hold() {
  std::vector<GatherMember*> members;
  for (GatherMember& member : members_) {
    if (!member.leaf.expired()) members.push_back(&member);
  }
  // Frees stale tensors before new memory is allocated.
  std::erase_if(held_, [&](const TensorImplPtr& held) {
    return std::none_of(members.begin(), members.end(),
                        [&](const GatherMember* member) { return member->Current() == held; });
  });
  DT_ASSIGN_OR_RETURN(held_, BeginGather(members));
  return absl::OkStatus();
}

absl::Status GatherGroup::Enter() {
  groups_.Enter(*this);
  ++entered_;
  DT_RETURN_IF_ERROR(Hold());
  for (const TensorImplPtr& held : held_) DT_RETURN_IF_ERROR(Settle(*held));
  GatherGroup* const next = groups_.expected();
  return next == nullptr ? absl::OkStatus() : next->Hold();
}

void GatherGroup::Leave() {
  --entered_;
  const bool is_next = groups_.expected() == this;
  if (entered_ == 0 && level_ == ShardLevel::kParameters && !is_next) held_.clear();
  groups_.Leave();
}

std::shared_ptr<GatherGroup> GatherGroups::Add(ShardLevel level) {
  groups_.emplace_back(*this, level);
  order_.push_back(&groups_.back());
  return {shared_from_this(), &groups_.back()};
}

void GatherGroups::Enter(GatherGroup& group) {
  if (entered_++ == 0) {
    in_first_ = &group == &groups_.front();
    at_ = 0;
  }
  if (!in_first_) return;
  if (GatherGroup* const next = expected(); next != nullptr && next != &group) {
    // The order differs from the previous pass: learn the rest of it again.
    if (next->entered_ == 0 && next->level_ == ShardLevel::kParameters) next->held_.clear();
    order_.resize(at_);
  }
  if (at_ == order_.size()) order_.push_back(&group);
  ++at_;
}

void GatherGroups::Leave() {
  if (--entered_ > 0) return;
  if (in_first_) order_.resize(at_);
  in_first_ = false;
  for (GatherGroup& group : groups_) {  // were prefetched, but not entered
    if (group.level_ == ShardLevel::kParameters) group.held_.clear();
  }
}

GatherScope::GatherScope(GatherGroup* group) : group_(group) {
  if (group_ != nullptr) status_ = group_->Enter();
}

GatherScope::~GatherScope() {
  if (group_ != nullptr) group_->Leave();
}

TensorOr ForUse(const DistributedTensor& leaf) {
  if (!leaf.defined()) return InvalidArgument({"ForUse: the tensor is undefined"});
  const TensorImplPtr& impl = leaf.impl();
  if (impl->gather == nullptr) return leaf;
  GatherMember* const member = impl->gather.get();
  DT_ASSIGN_OR_RETURN(const std::vector<TensorImplPtr> gathered, BeginGather({&member, 1}));
  DT_RETURN_IF_ERROR(Settle(*gathered[0]));
  // Returns another TensorImpl, which has an edge and keeps the group alive. The one that the group
  // holds does neither.
  TensorImplPtr handle =
      MakeImpl(*impl->context, member->used, gathered[0]->local, gathered[0]->row_major);
  handle->lineage = gathered[0]->lineage;
  handle->pinned = impl->pinned;
  handle->edge = EdgeOf(impl);
  handle->gather = impl->gather;
  handle->source_version = member->version;
  return DistributedTensor(std::move(handle));
}

const Layout& UsedLayout(const DistributedTensor& leaf) {
  DT_REQUIRE_DEFINED(leaf.defined(), "UsedLayout()");
  const auto& gather = leaf.impl()->gather;
  return gather == nullptr ? leaf.layout() : gather->used->layout;
}

}  // namespace dtensor
