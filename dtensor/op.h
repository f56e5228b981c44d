// OpDef: everything the library knows of an operator: a rule, and what one rank does with its
// shards.
//
// dispatch.h does the rest: it solves the rule, redistributes operands, allocates results, runs
// `forward` on local tensors, and records. Backward() brings the results' gradients to the layouts
// that the forward implies, and runs `backward` on local tensors; placements of gradients follow
// from the rule (op_rule.h). So neither function knows of meshes or communication.
#ifndef DTENSOR_OP_H_
#define DTENSOR_OP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/context.h"
#include "dtensor/op_rule.h"
#include "dtensor/regions.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// An operator's arguments that are not tensors. But for the seed, which random operators have and
// which may be another one in each call, they are part of the key of the dispatch cache.
struct Attrs {
  absl::InlinedVector<int64_t, 6> ints;
  absl::InlinedVector<double, 2> reals;
  uint64_t seed = 0;
  friend bool operator==(const Attrs& a, const Attrs& b) {
    return a.ints == b.ints && a.reals == b.reals;
  }
};

// "[8, 4] f32 on ["tp"=2] as [tp] [], [4] f32 on ...": for messages.
std::string SpecsText(absl::Span<const Spec* const> specs);

// The rule of a call whose text depends on shapes or attributes, and the sizes of letters that no
// operand has.
struct RuleText {
  std::string text;
  LetterSizes sizes;
};

// For operators that can be carried out in several ways: where operands go before the rule is
// solved, and where results go afterwards (unset: they stay).
struct Route {
  absl::InlinedVector<Layout, 4> operands;
  absl::InlinedVector<std::optional<Layout>, 2> results;
};

// What an operator makes of a decision, once, for its forward and backward.
struct OpState {
  virtual ~OpState() = default;
};

struct OpDef;

// What the dispatcher worked out for (operator, specs, attributes), once. Constant afterwards.
struct Decision {
  const OpDef* op = nullptr;
  Attrs attrs;
  BoundRule rule;
  Assignment assignment;
  absl::InlinedVector<const Spec*, 4> sources;   // operands as they came
  absl::InlinedVector<const Spec*, 4> operands;  // operands as the kernel sees them
  absl::InlinedVector<const Spec*, 2> results;
  absl::InlinedVector<const Spec*, 4> gradients;  // of the operands
  absl::InlinedVector<const Spec*, 2> duals;  // layouts in which the results' gradients are wanted
  absl::InlinedVector<const Spec*, 2> delivered;   // results as the caller gets them
  uint32_t pinned = 0;                             // bit i: operand i was pinned
  const RedistributionOptions* options = nullptr;  // of the Context, by which `route` chose
  std::shared_ptr<const OpState> state;
};

// One rank's part of a call. Tensors are local; empty shards are ordinary tensors with no elements.
struct OpCall {
  Context& context;
  const Decision& decision;
  absl::Span<const Tensor> operands;
  // Allocated, row-major; undefined for a view operator, which sets them.
  absl::Span<Tensor> results;
  uint64_t seed = 0;  // of this call's Attrs; attrs() are those of the first call alike

  Device& device() const { return context.device(); }
  const Attrs& attrs() const { return decision.attrs; }
  // Which global indices of dimension `dim` of operand `i` this rank holds.
  IndexSet OperandIndices(int i, int dim) const;
  // For a staged letter ("v^"): the P shards' values of `local`, [P, local shape...], ascending
  // along the axes that split the letter (P = 1: a view). One all-gather, which the cap of the
  // Context's options does not bound: it is too late to refuse.
  absl::StatusOr<Tensor> GatherShards(absl::string_view letter, const Tensor& local) const;
};

struct GradCall {
  Context& context;
  const Decision& decision;
  absl::Span<const Tensor> operands;          // as the forward saw them; undefined unless saved
  absl::Span<const Tensor> results;           // undefined unless saved
  absl::Span<const Tensor> result_gradients;  // in layouts `duals`
  absl::Span<Tensor> gradients;  // allocated, row-major, where wanted (unless op.sets_gradients)
  uint64_t seed = 0;             // as in the forward call
  uint32_t wanted = 0;           // bit i: the gradient of operand i is wanted
  bool wants(int i) const { return wanted >> i & 1; }

  Device& device() const { return context.device(); }
  const Attrs& attrs() const { return decision.attrs; }
  IndexSet OperandIndices(int i, int dim) const;
};

struct OpDef {
  const char* name;
  // The rule's text; or null, and `describe` writes it from shapes and attributes.
  const char* rule = nullptr;
  absl::StatusOr<RuleText> (*describe)(absl::Span<const Dims> shapes, const Attrs& attrs) = nullptr;
  Linearity linearity = Linearity::kNone;

  absl::Status (*forward)(const OpCall& call) = nullptr;
  // Null: not differentiable. Writes call.gradients[i] for wanted i.
  absl::Status (*backward)(const GradCall& call) = nullptr;
  uint32_t saved_operands = 0;  // bit i: backward reads operands[i]
  uint32_t saved_results = 0;
  // Forward sets the results, which may share the operands' storage; nothing is allocated.
  bool view = false;
  // Backward sets the gradients, which may share storage; nothing is allocated.
  bool sets_gradients = false;
  // Backward is cheap and leaves sizes as they are (add, views): a gradient that arrives Partial is
  // passed on Partial, to be reduced where something needs its values.
  bool passes_partial_gradients = false;

  // Null: operands start where they are. Reads the decision's sources, attrs and rule, all that
  // there is of it yet, and the Context's options. Errors: kInvalidArgument.
  absl::StatusOr<Route> (*route)(const Context& context, const Decision& decision) = nullptr;
  // Null: no state. Errors: kInvalidArgument.
  absl::StatusOr<std::shared_ptr<const OpState>> (*prepare)(const Context& context,
                                                            const Decision& decision) = nullptr;
  // Checks operands and attributes beyond the rule; result types. Without `check` all operands must
  // have one type; without `result_dtype` results have the type of operand 0. Errors:
  // kInvalidArgument with op, shapes, remedy.
  absl::Status (*check)(absl::Span<const Spec* const> operands, const Attrs& attrs) = nullptr;
  DType (*result_dtype)(absl::Span<const Spec* const> operands, const Attrs& attrs,
                        int result) = nullptr;
};

}  // namespace dtensor

#endif  // DTENSOR_OP_H_
