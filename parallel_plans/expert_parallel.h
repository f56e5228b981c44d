// Styles for the experts of a mixture (nn/mixture.h, or a module of yours that says which
// dimensions are experts and hidden features: DimRole in module.h). On the style's axis `a`:
//
//   style                         parameters                    input            output
//   ExpertParallel(a, out, in)    experts S, others R           as it comes, or  out (R unless
//                                                               in               given)
//   ExpertTensorParallel(a, out)  hidden features S, others R   R                the same
//
// The input edge applies to each operand: the tokens, the experts that they pick, and the weights.
//
// ExpertParallel: if `a` shards the tokens outside of the experts, as S(0) or S(1), each token is
// sent to the ranks that have experts of its picks, and the results come back (ExpertMlp in ops.h);
// with `in` R, all tokens are gathered and the results reduce-scattered instead. If `a` does not
// shard the tokens, each rank computes its experts' part of a Partial sum, which the output edge
// reduces. Each expert stays in one piece, and a rank's work depends on how many tokens pick its
// experts.
//
//   plan.Add({"", DataParallel("ep")});
//   plan.Add({"model.layers.*.mlp.experts", ExpertParallel("ep", Shard(0))});
//
// ExpertTensorParallel: all ranks have the same work, in narrower products. The module's result is
// a Partial sum.
//
// With t tokens on each of n ranks that pick k experts each, a rank receives at most t k (n - 1) /
// n rows of tokens, and as many of results, if tokens are sent; t (n - 1) rows of each if they are
// gathered. Backward moves the tokens once more.
#ifndef DTENSOR_PARALLEL_PLANS_EXPERT_PARALLEL_H_
#define DTENSOR_PARALLEL_PLANS_EXPERT_PARALLEL_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/layout/placement.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct ExpertParallel {
  explicit ExpertParallel(std::string axis, Placement output = Replicate(),
                          std::optional<Placement> input = std::nullopt)
      : axis(std::move(axis)), output(output), input(input) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<ExpertParallel> Read(const StyleText& text);
  friend bool operator==(const ExpertParallel&, const ExpertParallel&) = default;

  std::string axis;
  Placement output;
  std::optional<Placement> input;
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
