// OpDef: everything the library knows of an operator: a rule, and what one rank does with its
// shards, on each kind of device.
//
// dispatch.h does the rest: it solves the rule, redistributes operands, allocates results, runs
// `forward` on local tensors, and records. Backward() brings the results' gradients to the layouts
// that the forward implies, and runs `backward` on local tensors; placements of gradients follow
// from the rule (op_rule.h). So neither function knows of meshes or communication.
#ifndef DTENSOR_TENSOR_OP_H_
#define DTENSOR_TENSOR_OP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/chunk_schedule.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/attrs.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/counted.h"
#include "dtensor/tensor/type_set.h"

namespace DTENSOR_EXPORT dtensor {

// Arguments that may change from call to call without a new dispatch decision, because no layout,
// shape or type depends on them. All other non-tensor arguments are attributes (attrs.h).
struct CallValues {
  uint64_t seed = 0;   // of random operators
  double scalar = 0;   // of Scale, AddScalar and Pow; the probability of Dropout
  int64_t offset = 0;  // of Slice, Rope and Attention's queries
  // More of Rope and Attention, for each batch entry, by its global index; or none. Of calls that
  // are not recorded: they need not outlive the call.
  absl::Span<const int64_t> row_offsets = {};
};

// "[8, 4] f32 on ["tp"=2] as [tp] [], [4] f32 on ...": for messages.
std::string SpecsText(absl::Span<const Spec* const> specs);

// The rule of a call whose text depends on shapes or attributes, and the sizes of letters that no
// operand has.
struct RuleText {
  std::string text;
  LetterSizes sizes;
};

// For operators that can be carried out in other layouts than the rule finds: where operands go
// before the rule is asked once more (none: they stay), and where results go afterwards (unset:
// they stay).
struct LayoutChoice {
  absl::InlinedVector<Layout, 4> operands;
  absl::InlinedVector<std::optional<Layout>, 2> results;
  // The caller wants that, by an argument: then nothing that moves is implicit
  // (ContextOptions::max_implicit_bytes).
  bool asked_for = false;
};
struct LayoutChoiceRequest {
  absl::Span<const Spec* const> operands;  // as they came
  AttrsView attrs;
  const RuleAssignment& assignment;  // what happens without another choice
  const RedistributionOptions& options;
};

// What an operator makes of a decision, once, for its forward and backward.
struct OpState {
  virtual ~OpState() = default;
  // That it holds in memory, or about as many: the more, the sooner it is forgotten.
  virtual int64_t bytes() const { return 0; }
};
struct OpStateRequest {
  absl::Span<const Spec* const> operands;  // as the kernel sees them
  AttrsView attrs;
  int rank;
};

struct Decision;
struct OpCall;
struct GradCall;
struct OpDef;

// What an operator does on one kind of device. A call on a device without a forward is refused; so
// is one that is recorded, on a device without a backward, unless no device has one: then the
// operator is not differentiable.
struct OpFunctions {
  absl::Status (*forward)(const OpCall& call) = nullptr;
  // Writes call.gradients[i] for every wanted i. The gradients that it reads may have any strides,
  // also 0: see GradCall.
  absl::Status (*backward)(const GradCall& call) = nullptr;
};

// How an operator computes some rows only, so that they can be computed while other rows are still
// being received or sent (late_values.h). Rows are indices of dimension `dim`, which must be a
// dimension of operand 0 and result 0, at the same position in both, and of no other operand. The
// rows must get the same bits as in one call for all rows. If that cannot be promised
// (GemmProblem::whole_rows), or operands are not row-major, the functions return kUnimplemented;
// this may happen on one rank alone.
struct RowFunctions {
  bool (*has)(const Decision& decision, int dim) = nullptr;  // alike on all ranks
  // Rows of result 0. `only_asks`: nothing is done, the same status.
  absl::Status (*forward)(const OpCall& call, int dim, const RowRange& rows,
                          bool only_asks) = nullptr;
  // Rows of the gradient of operand 0, of those of result 0.
  absl::Status (*backward)(const GradCall& call, int dim, const RowRange& rows,
                           bool only_asks) = nullptr;
};

// What the dispatcher worked out for (operator, specs, attributes), once. Constant afterwards. The
// Context forgets it in time; calls under way and recorded operators are owners too.
struct Decision : Counted {
  const OpDef* op = nullptr;
  OpFunctions functions;  // of the Context's device
  Attrs attrs;            // of op->attrs
  BoundRule rule;
  RuleAssignment assignment;
  absl::InlinedVector<const Spec*, 4> given;     // operands as they came
  absl::InlinedVector<const Spec*, 4> operands;  // operands as the kernel sees them
  absl::InlinedVector<const Spec*, 2> results;
  absl::InlinedVector<const Spec*, 4> gradients;  // of the operands
  absl::InlinedVector<const Spec*, 2>
      result_gradient_specs;  // layouts in which the results' gradients are wanted
  absl::InlinedVector<const Spec*, 2> returned;  // results as the caller gets them
  uint32_t pinned = 0;                           // bit i: operand i was pinned
  // Of a view operator: its results are views of operand 0 as it came, which lies where the rule
  // wants it, or lies there under another name. Otherwise it was redistributed: a value.
  bool is_alias = false;
  // Bit i: operand i is reduced by max, min or product on its way to the kernel, or a result on its
  // way to the caller (all bits). No gradient passes such a reduction (op_checks.h).
  uint32_t reduces = 0;
  bool moves_asked_for = false;  // LayoutChoice::asked_for
  // Of the Context, where op->choose_layouts looked at them.
  std::shared_ptr<const RedistributionOptions> options;
  std::shared_ptr<const OpState> state;
  absl::InlinedVector<SpecPtr, 8> kept;  // owns all the above
  uint64_t lineage = 0;                  // of the operator and the attributes, on every rank alike
};
using DecisionPtr = CountedPtr<const Decision>;

// The operands of a call, wherever they lie.
class TensorRefs {
 public:
  explicit TensorRefs(absl::Span<const Tensor* const> tensors) : tensors_(tensors) {}
  const Tensor& operator[](size_t i) const { return *tensors_[i]; }
  size_t size() const { return tensors_.size(); }

 private:
  absl::Span<const Tensor* const> tensors_;
};

// One rank's part of a call. Tensors are local; empty shards are ordinary tensors with no elements.
struct OpCall {
  Context& context;
  const Decision& decision;
  TensorRefs operands;
  // Allocated, row-major; undefined for a view operator, which sets them.
  absl::Span<Tensor> results;
  const CallValues& values;  // of this call
  uint64_t lineage;          // of this call (lineage.h): for collectives of the operator's own

  Device& device() const { return context.device(); }
  // Requires: kAttrsType<T> is the operator's.
  template <typename T>
  const T& attrs() const {
    return AttrsView(decision.attrs).as<T>();
  }
  // Which global indices of dimension `dim` of operand `i` this rank holds.
  IndexSet OperandIndices(int i, int dim) const;
  // For merged letters, as in the rule ("v", "d0 d2"). Into how many shards P they are split
  // together, 1 where they are whole; and the P shards' values of `local`, [P, local shape...],
  // ascending along the axes that split the letters (P = 1: a view). One all-gather, which the cap
  // of the Context's options does not bound: it is too late to refuse.
  int64_t NumShards(absl::string_view letters) const;
  absl::StatusOr<Tensor> GatherShards(absl::string_view letters, const Tensor& local) const;
};

// Operands or results of a forward, for its backward: those that OpDef says it reads. Reading
// another gives zeros, and Backward() fails, naming the operator.
class SavedTensors {
 public:
  SavedTensors(Device& device, absl::Span<const Tensor> tensors,
               absl::Span<const Spec* const> specs)
      : device_(device), tensors_(tensors), specs_(specs) {}

  const Tensor& operator[](size_t i) const {
    return i < tensors_.size() && tensors_[i].defined() ? tensors_[i] : StandIn(i);
  }
  // Which was read and not saved; -1: none.
  int missed() const { return missed_; }

 private:
  const Tensor& StandIn(size_t i) const;

  Device& device_;
  absl::Span<const Tensor> tensors_;
  absl::Span<const Spec* const> specs_;
  mutable int missed_ = -1;
  mutable std::vector<std::unique_ptr<Tensor>> stand_ins_;
};

// Where backward puts the operands' gradients. One that is wanted and that backward never asks for
// is an error of the operator: Backward() fails, naming it.
class OperandGradients {
 public:
  explicit OperandGradients(absl::Span<Tensor> tensors) : tensors_(tensors) {}

  Tensor& operator[](size_t i) const {
    touched_ |= uint32_t{1} << i;
    return tensors_[i];
  }
  size_t size() const { return tensors_.size(); }
  Tensor* begin() const {
    touched_ = ~uint32_t{0};
    return tensors_.begin();
  }
  Tensor* end() const { return tensors_.end(); }
  bool touched(int i) const { return touched_ >> i & 1; }

 private:
  absl::Span<Tensor> tensors_;
  mutable uint32_t touched_ = 0;
};

struct GradCall {
  Context& context;
  const Decision& decision;
  SavedTensors operands;  // as the forward saw them
  SavedTensors results;
  // In layouts `result_gradient_specs`, with any strides: of a sum's operand they are 0.
  absl::Span<const Tensor> result_gradients;
  OperandGradients gradients;  // allocated, row-major, where wanted (unless op.sets_gradients)
  const CallValues& values;    // as in the forward call
  uint64_t lineage;            // of this call (lineage.h)
  uint32_t wanted = 0;         // bit i: the gradient of operand i is wanted
  bool wants(int i) const { return wanted >> i & 1; }

  Device& device() const { return context.device(); }
  template <typename T>
  const T& attrs() const {  // as OpCall's
    return AttrsView(decision.attrs).as<T>();
  }
  // As OpCall's. Every rank gathers or none: `wanted` is the same on all.
  IndexSet OperandIndices(int i, int dim) const;
  int64_t NumShards(absl::string_view letters) const;
  absl::StatusOr<Tensor> GatherShards(absl::string_view letters, const Tensor& local) const;
};

// The first call checks it: what is missing, cannot be read or contradicts the operands is
// kInvalidArgument, naming the operator.
struct OpDef {
  const char* name = "(an operator without a name)";
  // The rule's text; or null, and `describe` writes it from shapes and attributes.
  const char* rule = nullptr;
  absl::StatusOr<RuleText> (*describe)(absl::Span<const Dims> shapes, AttrsView attrs) = nullptr;
  RuleLinearity linearity = RuleLinearity::kNone;
  const AttrsType* attrs = nullptr;  // null: it has none

  // All operands have one type, of these; or, where any operand_types is given, operand i has a
  // type of operand_types[i], and those whose set is empty have any. What else is wrong with
  // operands or attributes is found by `check`. Results have the type of operand 0, or that which
  // `result_dtype` says. Errors of `check`: kInvalidArgument with op, shapes, remedy.
  TypeSet types = TypeSet::All();
  std::array<TypeSet, 4> operand_types = {};
  absl::Status (*check)(absl::Span<const Spec* const> operands, AttrsView attrs) = nullptr;
  DType (*result_dtype)(absl::Span<const Spec* const> operands, AttrsView attrs,
                        int result) = nullptr;

  // Either functions that work through kernels which every kind of device has (runtime/kernels);
  OpFunctions every_device = {};
  // or those for some.
  OpFunctions host = {};  // on cpu and deferred; and on meta, where launches do nothing
  OpFunctions cuda = {};
  const OpFunctions& On(Device::Kind kind) const {
    if (every_device.forward != nullptr) return every_device;
    return kind == Device::Kind::kCuda ? cuda : host;
  }
  bool differentiable() const {
    return every_device.backward != nullptr || host.backward != nullptr || cuda.backward != nullptr;
  }
  uint32_t saved_operands = 0;  // bit i: backward reads operands[i]
  uint32_t saved_results = 0;
  // Forward sets the results, of the decision's local shapes and types, which may share the
  // operands' storage; nothing is allocated.
  bool view = false;
  // Of a view operator: from a row-major operand it makes row-major views, and others it may have
  // to copy. Elsewhere all operands are viewed as they are.
  bool reshapes = false;
  // Backward sets the gradients, of the operands' local shapes and types, which may share storage;
  // nothing is allocated.
  bool sets_gradients = false;
  // Backward is cheap and leaves sizes as they are (add, views): a gradient that arrives Partial is
  // passed on Partial, to be reduced where something needs its values.
  bool passes_partial_gradients = false;

  // Without functions: all rows are made at once.
  RowFunctions rows = {};

  // Null: what the rule finds. Errors: kInvalidArgument.
  absl::StatusOr<LayoutChoice> (*choose_layouts)(const LayoutChoiceRequest& request) = nullptr;
  // Null: no state. Errors: kInvalidArgument.
  absl::StatusOr<std::shared_ptr<const OpState>> (*prepare)(const OpStateRequest& request) =
      nullptr;

  // Errors: kInvalidArgument for operands of types that it does not take, naming them and the
  // remedy.
  absl::Status CheckTypes(absl::Span<const Spec* const> operands) const;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_OP_H_
