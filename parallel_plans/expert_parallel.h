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
// a Partial sum. Under sequence parallelism each block has three all-gathers for its experts: of
// the tokens, of the ids and of the weights.
//
// What ExpertParallel moves, with t tokens on each of n ranks, and k picks of each token:
//
//   * Tokens that are sent: a token goes to at most min(k, n) ranks. If experts are picked evenly,
//     a rank receives at most t min(k, n) (n - 1) / n rows of tokens from others, and as many of
//     results. In the worst case, if all tokens pick its experts, it receives t (n - 1) rows of
//     tokens, for which it needs memory. The weights go with the tokens.
//   * Tokens that are gathered (`in` R): t (n - 1) rows of tokens, and as many of results. The
//     weights are gathered, too.
//   * In both cases the ids of all ranks are gathered besides.
//
// Where tokens are sent, backward gathers the ids and sends the tokens again, together with the
// results' gradients, and the tokens' gradients come back.
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
