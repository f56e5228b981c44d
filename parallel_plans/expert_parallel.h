// Styles for the experts of a mixture (nn/mixture.h, or a module of yours that says which dimensions
// are experts and hidden features: DimRole in module.h). On the style's axis `a`:
//
//   style                         parameters                       input         output
//   ExpertParallel(a, out)        experts S, others R              R             out (R unless given)
//   ExpertTensorParallel(a, out)  hidden features S, others R      R             out (R unless given)
//
// The input edge applies to each operand: the tokens, the experts that they pick, and the weights.
// The module's result is a Partial sum, which the output edge reduces. So, on an axis that shards
// the tokens outside of the experts, as S(0) or S(1), tokens are all-gathered and results
// reduce-scattered; the router works on each rank's own tokens before that.
//
//   plan.Add({"", DataParallel("ep")});
//   plan.Add({"model.layers.*.mlp.experts", ExpertParallel("ep", Shard(0))});
//
// ExpertParallel leaves each expert in one piece, and its work depends on how many tokens pick the
// rank's experts. ExpertTensorParallel gives all ranks the same work, in narrower products. Both
// move the same: with t tokens on each of n ranks, (n - 1) t dim elements in and as many out of each
// rank, in forward and again in backward. That is what an all-to-all of the tokens would move if
// each token picked experts on all n ranks; with k picks it would move k/n of it, at most.
#ifndef DTENSOR_PARALLEL_PLANS_EXPERT_PARALLEL_H_
#define DTENSOR_PARALLEL_PLANS_EXPERT_PARALLEL_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/layout/placement.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct ExpertParallel {
  explicit ExpertParallel(std::string axis, Placement output = Replicate())
      : axis(std::move(axis)), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<ExpertParallel> Read(const StyleText& text);
  friend bool operator==(const ExpertParallel&, const ExpertParallel&) = default;

  std::string axis;
  Placement output;
};

struct ExpertTensorParallel {
  explicit ExpertTensorParallel(std::string axis, Placement output = Replicate())
      : axis(std::move(axis)), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<ExpertTensorParallel> Read(const StyleText& text);
  friend bool operator==(const ExpertTensorParallel&, const ExpertTensorParallel&) = default;

  std::string axis;
  Placement output;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPERT_PARALLEL_H_
