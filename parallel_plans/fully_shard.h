// FullyShard: parameters, gradients and optimizer states are sharded over a data-parallel axis
// (ZeRO, FSDP). A rank stores its shard of each parameter, and holds in full only the parameters
// that it currently computes with.
//
//   ParallelPlan plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
//   plan.Add({"model.layers.*", FullyShard("dp")});
//   plan.Add({"{model.embed_tokens,lm_head}", FullyShard("dp")});
//   plan.Add({"", FullyShard("dp")});  // the rest; and brings the batch to S(0)
//
// Each module that a line names is a unit. Its parameters, and those of its submodules that are not
// in an inner unit, are gathered together when the module is called, one unit ahead, and freed
// afterwards. The same happens in Backward, which reduce-scatters a unit's gradients when they are
// complete. Optimizers work on the shards. At "", the model itself, the style also does what
// DataParallel does.
//
// A parameter is sharded along the dimension for which the largest shard has the fewest elements;
// of several such dimensions, the first that no other line of the plan shards, else the first. If
// the size does not divide, trailing ranks hold less, or nothing. Other lines of the plan still
// apply: with Colwise("tp"), which is S(0) on tp, a weight is stored as S(0) on tp and dp, and used
// as S(0) on tp. A parameter with several paths belongs to the unit of its first path.
//
// Hybrid sharding: FullyShard("shard") together with {"", DataParallel("replicate")} shards over
// one axis and replicates over the other.
//
// ShardLevel says what is sharded (gather_group.h). docs/fully-shard.md says what moves when, how
// much memory is used, and what the limits are.
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

// A style, like those in styles.h. Its text: FullyShard("dp"), FullyShard("dp", 2).
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

// The layout in which a parameter is stored between uses, if it is used in the layout `used` and
// replicated there on `axes`: it is then sharded on `axes` as well. A parameter without dimensions
// keeps its layout. Errors: kInvalidArgument for axes that already shard it, naming them.
absl::StatusOr<Layout> ShardBetweenUses(const Layout& used, absl::Span<const int64_t> shape,
                                        const AxisList& axes);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_FULLY_SHARD_H_
