// Context parallelism: activations are sharded along the sequence everywhere, also in attention.
//
// For a whole model, use it as a style. At "" it shards the tokens [batch, sequence] once, and all
// activations computed from them stay sharded along the sequence. At an attention module it also
// fixes the algorithm (ring, all-to-all, ...) to the one of the pattern. Without that, Attention
// chooses one by its operands' layouts and the Context's link speeds.
//
//   ParallelPlan plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
//   plan.Add({"", ContextParallel("cp", "zigzag")});
//   plan.Add({"model.layers.*.self_attn", ContextParallel("cp", "zigzag")});
//
// For a single attention, wrap it in a module that takes operands in any layout:
//
//   DT_ASSIGN_OR_RETURN(std::unique_ptr<Module> attention, ContextParallel::Wrap(
//       std::make_unique<GroupedQueryAttention>(config), "cp", "zigzag", /*causal=*/true));
//   TensorOr y = (*attention)(x);  // [b, s, dim] -> [b, s, dim]
//
// The patterns are those of context_pattern.h: ring, zigzag, striped, double_ring, ulysses,
// ulysses+zigzag and so on.
#ifndef DTENSOR_PARALLEL_PLANS_CONTEXT_PARALLEL_H_
#define DTENSOR_PARALLEL_PLANS_CONTEXT_PARALLEL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/attention_module.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A style, like those in styles.h.
struct ContextParallel {
  // WishesAt looks up both names. It refuses an unknown pattern, and one that does not fit the
  // axis.
  ContextParallel(std::string axis, std::string pattern)
      : axis(std::move(axis)), pattern(std::move(pattern)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<ContextParallel> Read(const StyleText& text);
  friend bool operator==(const ContextParallel&, const ContextParallel&) = default;

  std::string axis, pattern;

  // Returns a module that redistributes x to the pattern's layout on `axis`, runs the inner module,
  // and returns y in that layout. `axis` is the name of an axis or group of the mesh that x lies
  // on. Placements on other axes stay as they are. The mask of the inner attention (causal or full)
  // and its algorithm are set. A sequence that the axes do not split evenly is refused unless
  // `allow_uneven`.
  //
  // The wrapper has the same path as the inner module. So parameters keep their names and initial
  // values, and a plan's line that names that path applies to both modules. Errors:
  // kInvalidArgument for an unknown pattern, or if there is no module. A call refuses an axis that
  // x's mesh lacks or that the pattern does not fit.
  static absl::StatusOr<std::unique_ptr<Module>> Wrap(
      std::unique_ptr<AttentionModule> inner_attention, std::string axis, absl::string_view pattern,
      bool causal, bool allow_uneven = false);
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_CONTEXT_PARALLEL_H_
