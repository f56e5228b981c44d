// FullyShard: parameters, gradients and optimizer states sharded over a data-parallel axis (ZeRO,
// FSDP). A rank holds its shard of each, and whole the parameters that it computes with just now.
//
//   ParallelPlan plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
//   plan.Add({"model.layers.*", FullyShard("dp")});
//   plan.Add({"{model.embed_tokens,lm_head}", FullyShard("dp")});
//   plan.Add({"", FullyShard("dp")});  // the rest; and brings the batch to S(0)
//
// Each module that a line names is a unit: its parameters, and those of modules in it that no unit
// inside has, are gathered together when it is called, one unit ahead, and freed afterwards; so are
// they in Backward, which reduce-scatters a unit's gradients when they are complete. Optimizers
// work on the shards. At "", the model itself, the style also does what DataParallel does.
//
// A parameter is sharded along the dimension for which the largest shard has the fewest elements;
// of several such dimensions, the first that no other line of the plan shards, else the first. If
// the size does not divide, trailing ranks hold less, or nothing. Other lines of the plan still
// apply: with Colwise("tp"), which is S(0) on tp, a weight is stored as S(0) on tp and dp, and used
// as S(0) on tp. A parameter with several paths belongs to the unit of its first path.
//
// Hybrid: FullyShard("shard") with {"", DataParallel("replicate")} shards over one axis and
// replicates over the other.
//
// ShardLevel says what is sharded (gather_group.h). docs/fully-shard.md: what moves when, memory,
// limits.
#ifndef DTENSOR_PARALLEL_PLANS_FULLY_SHARD_H_
#define DTENSOR_PARALLEL_PLANS_FULLY_SHARD_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The style, as others in styles.h. Its text: FullyShard("dp"), FullyShard("dp", 2).
struct FullyShard {
  // The level is 1, 2 or 3, as in ZeRO-1 to ZeRO-3; WishesAt refuses others.
  explicit FullyShard(std::string axis, int64_t level = 3) : axis(std::move(axis)), level(level) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<FullyShard> Read(const StyleText& text);
  friend bool operator==(const FullyShard&, const FullyShard&) = default;

  std::string axis;
  int64_t level;
};

// Where a parameter rests that is used in the layout `used`, replicated on `axes`: sharded on these
// as well. One without dimensions stays as it is. Errors: kInvalidArgument for axes that split it
// already, naming them.
absl::StatusOr<Layout> ShardBetweenUses(const Layout& used, absl::Span<const int64_t> shape,
                                        const AxisList& axes);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_FULLY_SHARD_H_
