#include "dtensor/parallel_plans/context_parallel.h"

#include <optional>
#include <utility>
#include <vector>

#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

class WrappedAttention : public Module {
 public:
  WrappedAttention(std::unique_ptr<AttentionModule> inner, std::string axis,
                   const ContextPattern& pattern, bool allow_uneven)
      : inner_(std::move(inner)),
        axis_(std::move(axis)),
        pattern_(pattern),
        allow_uneven_(allow_uneven) {
    AddChild("", inner_.get());
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    DT_ASSIGN_OR_RETURN(const std::vector<ModuleEdge> edges,
                        pattern_.EdgesOn(x.mesh(), axis_, allow_uneven_));
    pattern_.Pin(x.mesh(), axis_, inner_->attention_options());
    const TensorOr y = (*inner_)(AtEdges(x, edges, &ModuleEdge::input));
    return y.ok() ? AtEdges(*y, edges, &ModuleEdge::input) : y;
  }

 private:
  const std::unique_ptr<AttentionModule> inner_;
  const std::string axis_;
  const ContextPattern pattern_;
  const bool allow_uneven_;
};

}  // namespace

absl::StatusOr<StyleWishes> ContextParallel::WishesAt(const StyleSite& site) const {
  DT_ASSIGN_OR_RETURN(const ContextPattern parsed, ContextPattern::Parse(pattern));
  StyleWishes wishes;
  DT_ASSIGN_OR_RETURN(wishes.edges, parsed.EdgesOn(site.mesh, axis, site.allow_uneven));
  wishes.attention = [parsed, mesh = site.mesh, axis = axis](AttentionOptions& options) {
    parsed.Pin(mesh, axis, options);
  };
  return wishes;
}

std::string ContextParallel::ToString() const {
  return StyleText{"ContextParallel", axis, {{"", pattern}}}.ToString();
}

absl::StatusOr<ContextParallel> ContextParallel::Read(const StyleText& text) {
  ArgumentReader arguments(text);
  std::optional<std::string> pattern = arguments.TakeString("");
  DT_RETURN_IF_ERROR(arguments.Done());
  if (pattern) return ContextParallel(text.axis, *std::move(pattern));
  return InvalidArgument(
      {"ContextParallel needs a pattern, such as ContextParallel(\"cp\", \"zigzag\")"});
}

absl::StatusOr<std::unique_ptr<Module>> ContextParallel::Wrap(
    std::unique_ptr<AttentionModule> inner_attention, std::string axis, absl::string_view pattern,
    bool causal, bool allow_uneven) {
  if (inner_attention == nullptr) {
    return InvalidArgument({"ContextParallel: no module to wrap; give it an AttentionModule"});
  }
  DT_ASSIGN_OR_RETURN(const ContextPattern parsed, ContextPattern::Parse(pattern));
  inner_attention->attention_options().mask =
      causal ? AttentionMask::Causal() : AttentionMask::Full();
  return std::make_unique<WrappedAttention>(std::move(inner_attention), std::move(axis), parsed,
                                            allow_uneven);
}

}  // namespace dtensor
