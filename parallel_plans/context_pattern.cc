#include "dtensor/parallel_plans/context_pattern.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

struct ContextPattern::Row {
  absl::string_view name;
  int least_axes, most_axes;
  ShardOrder order;         // of the ring's axes, or of all
  bool all_to_all = false;  // over the first axis of two, or over all
};

const ContextPattern::Row ContextPattern::kRows[] = {
    {"ring", 1, 1, ShardOrder::Contiguous()},
    {"zigzag", 1, 1, ShardOrder::Zigzag()},
    {"striped", 1, 1, ShardOrder::Block(1)},
    {"double_ring", 2, 2, ShardOrder::Zigzag()},
    {"ulysses", 1, 2, ShardOrder::Contiguous(), true},
    {"ulysses+ring", 2, 2, ShardOrder::Contiguous(), true},
    {"ulysses+zigzag", 2, 2, ShardOrder::Zigzag(), true},
    {"ulysses+striped", 2, 2, ShardOrder::Block(1), true},
};

absl::StatusOr<ContextPattern> ContextPattern::Parse(absl::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return ContextPattern(row);
  }
  return InvalidArgument({"there is no pattern \"", name, "\" of context parallelism; choose ",
                          absl::StrJoin(kRows, ", ", [](std::string* out, const Row& row) {
                            absl::StrAppend(out, row.name);
                          })});
}

bool ContextPattern::both() const { return row_->all_to_all && row_->least_axes == 2; }

absl::StatusOr<std::vector<ModuleEdge>> ContextPattern::EdgesOn(const DeviceMesh& mesh,
                                                                absl::string_view axis,
                                                                bool allow_uneven) const {
  auto axes = mesh.Find(axis);
  if (!axes.ok()) return InvalidArgument({axes.status().message()});
  const int count = static_cast<int>(axes->size());
  if (count < row_->least_axes || count > row_->most_axes) {
    return InvalidArgument(
        {"the pattern \"", row_->name, "\" takes ",
         row_->most_axes == 1    ? "one axis"
         : row_->least_axes == 1 ? "one axis or a group of two"
                                 : "a group of two axes",
         ", and \"", axis, "\" of the mesh ", mesh.ToString(), " is ", absl::StrCat(count),
         row_->most_axes == 1
             ? "; name one axis, or choose double_ring, ulysses or ulysses+zigzag"
             : "; choose ring, zigzag, striped or ulysses for one axis, or name a group of the "
               "mesh, as outer=2,inner=2;cp=outer*inner"});
  }
  // Each edge becomes the major split, so the last one is outermost.
  std::vector<ModuleEdge> edges;
  const auto split = [&](AxisList some, ShardOrder order) {
    edges.push_back({mesh, std::move(some), Shard(1, order), std::nullopt, allow_uneven,
                     SplitPosition::kMajor});
  };
  if (both()) split({(*axes)[0]}, ShardOrder::Contiguous());
  split(both() ? AxisList{(*axes)[1]} : *axes, row_->order);
  return edges;
}

void ContextPattern::Pin(const DeviceMesh& mesh, absl::string_view axis,
                         AttentionOptions& options) const {
  AxisList axes = mesh.Find(axis).value();
  if (both()) axes.pop_back();
  if (!row_->all_to_all) axes.clear();
  std::vector<std::string> names;  // without axes of size 1: they shard nothing that could move
  for (int moved : axes) {
    if (mesh.axis_size(moved) > 1) names.push_back(mesh.axis_name(moved));
  }
  options.plan = names.empty() ? AttentionPlanKind::kRing : AttentionPlanKind::kAllToAll;
  options.all_to_all = absl::StrJoin(names, ",");
}

AxisList ContextPattern::RingAxes(const DeviceMesh& mesh, absl::string_view axis) const {
  const AxisList axes = mesh.Find(axis).value();
  if (both()) return {axes[1]};
  return row_->all_to_all ? AxisList() : axes;
}

}  // namespace dtensor
