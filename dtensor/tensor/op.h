// OpDef: everything the library knows about an operator: its rule, and for each kind of device the
// functions that compute on one rank's shards.
//
// dispatch.h does the rest: it solves the rule, redistributes operands, allocates results, runs
// `forward` on local tensors, and records the call. Backward() brings the results' gradients to the
// layouts that the forward implies, and runs `backward` on local tensors; placements of gradients
// follow from the rule (op_rule.h). So neither function needs to know of meshes or communication.
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
  // Further offsets of Rope and Attention, one for each batch entry, by its global index; empty:
  // none. Only for calls that are not recorded, so the memory need not outlive the call.
  absl::Span<const int64_t> row_offsets = {};
};

// "[8, 4] f32 on ["tp"=2] as [tp] [], [4] f32 on ...": for messages.
std::string SpecsText(absl::Span<const Spec* const> specs);

// The rule of a call, for operators whose rule depends on shapes or attributes, and the sizes of
// letters that no operand determines.
struct RuleText {
  std::string text;
  LetterSizes sizes;
};

// For operators that can be carried out in other layouts than those the rule finds. `operands`: the
// layouts to which operands are redistributed before the rule is solved again; empty: the layouts
// that the rule found stay. `results`: the layouts to which results are redistributed afterwards;
// unset: they stay.
struct LayoutChoice {
  absl::InlinedVector<Layout, 4> operands;
  absl::InlinedVector<std::optional<Layout>, 2> results;
  // The caller asked for this choice by an argument, so its redistributions do not count as
  // implicit (ContextOptions::max_implicit_bytes).
  bool asked_for = false;
};
struct LayoutChoiceRequest {
  absl::Span<const Spec* const> operands;  // as they came
  AttrsView attrs;
  const RuleAssignment& assignment;  // what happens if nothing else is chosen
  const RedistributionOptions& options;
};

// What an operator derives from a decision, once, for use in its forward and backward (as a ring's
// schedule).
struct OpState {
  virtual ~OpState() = default;
  // The memory that it takes, approximately. Counts against the dispatch cache's limit
  // (DispatchCache::kStateBytes).
  virtual int64_t bytes() const { return 0; }
  // Whether forward communicates although no mark of the rule says so. The same on all ranks of a
  // group that communicates.
  virtual bool exchanges() const { return false; }
};
struct OpStateRequest {
  absl::Span<const Spec* const> operands;  // as the kernel sees them
  const BoundRule& rule;
  const RuleAssignment& assignment;
  AttrsView attrs;
  int rank;
};

struct Decision;
struct OpCall;
struct GradCall;
struct OpDef;

// What an operator does on one kind of device. A call on a device without a forward is refused. A
// recorded call on a device without a backward is refused too, unless the operator has no backward
// on any device: then it is not differentiable.
struct OpFunctions {
  absl::Status (*forward)(const OpCall& call) = nullptr;
  // Writes call.gradients[i] for every wanted i. The gradients that it reads may have any strides,
  // including 0: see GradCall.
  absl::Status (*backward)(const GradCall& call) = nullptr;
};

// How an operator computes some rows only, so that they can be computed while other rows are still
// being received or sent (late_values.h). Rows are indices of dimension `dim`, which must be a
// dimension of operand 0 and result 0, at the same position in both, and of no other operand. The
// rows must get the same bits as in one call for all rows. If that cannot be promised
// (GemmProblem::whole_rows), or operands are not row-major, the functions return kUnimplemented;
// this may happen on one rank alone.
struct RowFunctions {
  bool (*has)(const Decision& decision, int dim) = nullptr;  // the same on all ranks
  // Computes rows of result 0. With `only_asks` it computes nothing and returns the same status.
  absl::Status (*forward)(const OpCall& call, int dim, const RowRange& rows,
                          bool only_asks) = nullptr;
  // Computes rows of the gradient of operand 0 from rows of the gradient of result 0.
  absl::Status (*backward)(const GradCall& call, int dim, const RowRange& rows,
                           bool only_asks) = nullptr;
};

// What dispatch has worked out, once, for (operator, specs, attributes). Constant afterwards. The
// dispatch cache may evict it; running calls and recorded operators own it too.
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
  // For view operators: the results are views of operand 0 as the caller gave it, because no
  // redistribution was needed (its layout is the one that the rule wants, or another layout with
  // the same shards). If false, operand 0 was redistributed, and the results are values.
  bool is_alias = false;
  // Bit i: operand i is reduced by max, min or product on its way to the kernel. All bits: a result
  // is, on its way to the caller. No gradient passes such a reduction (op_checks.h).
  uint32_t reduces = 0;
  bool moves_asked_for = false;  // LayoutChoice::asked_for
  // Whether this rank is on the operands' mesh. If not, a call has no kernel to run: it only says
  // what the results are, and is recorded like any other.
  bool on_mesh = true;
  // The Context's when this was worked out.
  std::shared_ptr<const RedistributionOptions> options;
  std::shared_ptr<const OpState> state;
  absl::InlinedVector<SpecPtr, 8> kept;  // owns all the above
  uint64_t lineage = 0;                  // of the operator and the attributes: equal on all ranks
};
using DecisionPtr = CountedPtr<const Decision>;

// The operands of a call, by reference.
class TensorRefs {
 public:
  explicit TensorRefs(absl::Span<const Tensor* const> tensors) : tensors_(tensors) {}
  const Tensor& operator[](size_t i) const { return *tensors_[i]; }
  size_t size() const { return tensors_.size(); }

 private:
  absl::Span<const Tensor* const> tensors_;
};

// One rank's part of a call, forward or backward. Tensors are local; empty shards are ordinary
// tensors with no elements.
struct RankCall {
  Context& context;
  const Decision& decision;
  const CallValues& values;  // of the forward call
  uint64_t lineage;          // of this call (lineage.h): for collectives of the operator's own

  Device& device() const { return context.device(); }
  // Requires: kAttrsType<T> is the operator's.
  template <typename T>
  const T& attrs() const {
    return AttrsView(decision.attrs).as<T>();
  }
  // Which global indices of dimension `dim` of operand `i` this rank holds.
  IndexSet OperandIndices(int i, int dim) const;
  // For merged letters, written as in the rule ("v", "d0 d2"). NumShards: the number P of shards
  // into which all of them together are split; 1 if they are whole. GatherShards: the values of
  // `local` on the P shards, as a tensor [P, local shape...], ascending along the axes that split
  // the letters (P = 1: a view). It makes one all-gather, to which the cap of the Context's options
  // does not apply: it is too late to refuse. All ranks must gather, or none; a backward may decide
  // that by `wanted`, which is the same on all ranks.
  int64_t NumShards(absl::string_view letters) const;
  absl::StatusOr<Tensor> GatherShards(absl::string_view letters, const Tensor& local) const;
  // The same for the ranks that differ from this one on `axes` only, in the order of
  // DeviceMesh::Group. `local` has one shape on all of them.
  absl::StatusOr<Tensor> GatherOver(const AxisList& axes, const Tensor& local) const;
};

struct OpCall : RankCall {
  TensorRefs operands;
  // Allocated, row-major; undefined for a view operator, which sets them.
  absl::Span<Tensor> results;
};

// Operands or results of a forward, saved for its backward: those that the OpDef declares. If
// backward reads another one, it gets zeros, and Backward() fails, naming the operator.
class SavedTensors {
 public:
  SavedTensors(Device& device, absl::Span<const Tensor> tensors,
               absl::Span<const Spec* const> specs)
      : device_(device), tensors_(tensors), specs_(specs) {}

  const Tensor& operator[](size_t i) const {
    return i < tensors_.size() && tensors_[i].defined() ? tensors_[i] : StandIn(i);
  }
  // One that was read although it was not saved; -1: none.
  int missed() const { return missed_; }

 private:
  const Tensor& StandIn(size_t i) const;

  Device& device_;
  absl::Span<const Tensor> tensors_;
  absl::Span<const Spec* const> specs_;
  mutable int missed_ = -1;
  mutable std::vector<std::unique_ptr<Tensor>> stand_ins_;
};

// The tensors to which backward writes the operands' gradients. If backward never accesses one that
// is wanted, Backward() fails, naming the operator.
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

struct GradCall : RankCall {
  SavedTensors operands;  // as the forward saw them
  SavedTensors results;
  // In the layouts decision.result_gradient_specs, with any strides, including 0 (as for the
  // gradient of a sum's operand). Undefined where op.optional_result_gradients allows it.
  absl::Span<const Tensor> result_gradients;
  OperandGradients gradients;  // allocated, row-major, where wanted (unless op.sets_gradients)
  uint32_t wanted = 0;         // bit i: the gradient of operand i is wanted
  bool wants(int i) const { return wanted >> i & 1; }
};

// An operator. Checked at its first call: kInvalidArgument, naming the operator, if something is
// missing, the rule cannot be parsed, or it contradicts the operands.
struct OpDef {
  const char* name = "(an operator without a name)";
  // The rule's text; or null if it depends on shapes or attributes: then `describe` returns it.
  const char* rule = nullptr;
  absl::StatusOr<RuleText> (*describe)(absl::Span<const Dims> shapes, AttrsView attrs) = nullptr;
  RuleLinearity linearity = RuleLinearity::kNone;
  const AttrsType* attrs = nullptr;  // null: it has none

  // The types of operands. All operands have the same type, one of `types`. If any operand_types is
  // not empty, operand i has instead a type of operand_types[i], or any type if that set is empty.
  // `check` finds everything else that is wrong with operands or attributes; its errors are
  // kInvalidArgument with operator, shapes and remedy. Results have the type of operand 0, or the
  // one that `result_dtype` returns.
  TypeSet types = TypeSet::All();
  std::array<TypeSet, 7> operand_types = {};
  absl::Status (*check)(absl::Span<const Spec* const> operands, AttrsView attrs) = nullptr;
  DType (*result_dtype)(absl::Span<const Spec* const> operands, AttrsView attrs,
                        int result) = nullptr;

  // Either the functions for every kind of device, which use kernels that all of them have
  // (runtime/kernels);
  OpFunctions every_device = {};
  // or functions for some kinds.
  OpFunctions host = {};  // for cpu and deferred; also for meta, where launches do nothing
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
  // separate_gradients[i] = kAlone | bits: backward computes the gradient of operand i by itself,
  // from the result's gradient and the saved operands that the bits name. A call for it alone costs
  // what it adds to a call for all, so gradients of weights can be put off (BackwardForInputs,
  // autograd.h). 0: no promise. Not together with sets_gradients.
  static constexpr uint32_t kAlone = uint32_t{1} << 31;
  std::array<uint32_t, 3> separate_gradients = {};
  // Bit i: where no gradient arrives for result i, backward gets an undefined tensor; else zeros.
  // For a result that few programs use, as Attention's lse.
  uint32_t optional_result_gradients = 0;
  // A view operator: results are not allocated; forward sets them, with the decision's local shapes
  // and types. They may share the operands' storage.
  bool view = false;
  // For view operators. True (as for Reshape): of a row-major operand the results are row-major
  // views; other operands may have to be copied. False: any operand can be viewed as it is.
  bool reshapes = false;
  // Gradients are not allocated; backward sets them, with the operands' local shapes and types.
  // They may share storage.
  bool sets_gradients = false;
  // Backward is cheap and does not change sizes (add, views). So a gradient that arrives Partial is
  // passed on Partial, and reduced only when its values are needed.
  bool passes_partial_gradients = false;

  // If it has no functions, all rows are computed at once.
  RowFunctions rows = {};

  // Null: the layouts are those that the rule finds. Errors: kInvalidArgument.
  absl::StatusOr<LayoutChoice> (*choose_layouts)(const LayoutChoiceRequest& request) = nullptr;
  // Null: no state. Errors: kInvalidArgument.
  absl::StatusOr<std::shared_ptr<const OpState>> (*prepare)(const OpStateRequest& request) =
      nullptr;

  // Errors: kInvalidArgument for operands of types that the operator does not take, naming them and
  // the remedy.
  absl::Status CheckTypes(absl::Span<const Spec* const> operands) const;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_OP_H_
