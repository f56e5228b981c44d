#include "dtensor/tensor/dispatch.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/collective_results.h"
#include "dtensor/tensor/decide.h"
#include "dtensor/tensor/dispatch_cache.h"
#include "dtensor/tensor/gather_members.h"
#include "dtensor/tensor/implicit_moves.h"
#include "dtensor/tensor/late_values.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tensor_impl.h"
#include "dtensor/trace/trace_recorder.h"

namespace dtensor {
namespace {

using Impls = absl::InlinedVector<const TensorImplPtr*, 4>;
using Locals = absl::InlinedVector<Tensor, 4>;

// What the kernel reads: the operands' own local tensors, or redistributed ones made for this call.
class OperandLocals {
 public:
  explicit OperandLocals(size_t operands) : most_(operands) {}

  void Add(const Tensor* own) { read_.push_back(own); }
  void Keep(Tensor made) {
    made_.reserve(most_);  // they must not move
    made_.push_back(std::move(made));
    Add(&made_.back());
  }
  const Tensor& operator[](size_t i) const { return *read_[i]; }
  TensorRefs refs() const { return TensorRefs(read_); }

 private:
  size_t most_;
  absl::InlinedVector<const Tensor*, 4> read_;
  std::vector<Tensor> made_;
};

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint32_t PinnedMask(const Impls& operands) {
  uint32_t mask = 0;
  for (size_t i = 0; i < operands.size(); ++i) mask |= uint32_t{(*operands[i])->pinned} << i;
  return mask;
}

// Whether a decision depends on the options by which redistributions are planned: it may choose
// layouts by them, and a limit on bytes that move by themselves holds for their plans.
bool DependsOnOptions(const Context& context, const OpDef& op) {
  return op.choose_layouts != nullptr || context.max_implicit_bytes() >= 0;
}

uint64_t KeyHash(const Context& context, const OpDef& op, const Impls& operands, uint32_t pinned,
                 AttrsView attrs) {
  uint64_t hash = Mix(reinterpret_cast<uintptr_t>(&op), pinned);
  for (const TensorImplPtr* operand : operands)
    hash = Mix(hash, reinterpret_cast<uintptr_t>((*operand)->spec.get()));
  if (DependsOnOptions(context, op))
    hash = Mix(hash, reinterpret_cast<uintptr_t>(&context.redistribution_options()));
  return attrs.type() == nullptr ? hash : Mix(hash, attrs.digest());
}

// The lineage of one call: from the operator, its arguments and its operands (lineage.h).
uint64_t CallLineage(const Decision& decision, const Impls& operands, const CallValues& values) {
  uint64_t lineage = decision.lineage ^ std::rotl(values.seed, 1) ^
                     std::rotl(std::bit_cast<uint64_t>(values.scalar), 2) ^
                     std::rotl(static_cast<uint64_t>(values.offset), 3);
  for (const int64_t offset : values.row_offsets) {
    lineage = MixLineage(lineage, static_cast<uint64_t>(offset));
  }
  for (const TensorImplPtr* operand : operands)
    lineage = MixLineage(lineage, (*operand)->lineage.id);
  return lineage;
}

bool Matches(const Context& context, const Decision& decision, const OpDef& op,
             const Impls& operands, uint32_t pinned, AttrsView attrs) {
  if (decision.op != &op || decision.pinned != pinned || decision.given.size() != operands.size())
    return false;
  if (DependsOnOptions(context, op) && decision.options != context.kept_redistribution_options())
    return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (decision.given[i] != (*operands[i])->spec) return false;
  }
  return AttrsView(decision.attrs) == attrs;
}

absl::Status Find(Context& context, const OpDef& op, const Impls& operands, AttrsView attrs,
                  DecisionPtr& decision) {
  const uint32_t pinned = PinnedMask(operands);
  const uint64_t key = KeyHash(context, op, operands, pinned, attrs);
  auto& decisions = context.dispatch_cache().decisions;
  if (const auto* entries = decisions.Find(key); entries != nullptr) {
    for (const DecisionPtr& entry : *entries) {
      if (!Matches(context, *entry, op, operands, pinned, attrs)) continue;
      decision = entry;
      return absl::OkStatus();
    }
  }
  absl::InlinedVector<SpecPtr, 4> given;
  for (const TensorImplPtr* operand : operands) given.push_back((*operand)->spec);
  DT_ASSIGN_OR_RETURN(decision, MakeDecision(context, op, given, pinned, attrs));
  NoticeImplicit(context, *decision);
  // Looks the entry up again, because making the decision may have called other operators.
  if (auto* entries = decisions.Find(key); entries != nullptr) {
    entries->push_back(decision);
  } else {
    decisions.Insert(key, {decision}, decision->state == nullptr ? 0 : decision->state->bytes());
  }
  return absl::OkStatus();
}

absl::Status CheckOperand(const OpDef& op, size_t i, const TensorOr& operand,
                          const Context* context) {
  if (!operand.ok()) return operand.status();
  if (!operand->defined())
    return InvalidArgument({op.name, ": operand ", absl::StrCat(i), " is undefined"});
  if (context != nullptr && operand->impl()->context != context) {
    return InvalidArgument(
        {op.name, ": operand ", absl::StrCat(i), ", ", operand->ToString(),
         ", belongs to another Context than operand 0: it was made by another rank, or in a world "
         "of before; make it, or the model that it is of, in this one"});
  }
  return absl::OkStatus();
}

// The version of saved operand i, which may have been redistributed from `source`.
uint64_t NoteVersion(Node& node, const TensorImpl& source, int i) {
  const Tensor& root = AliasRoot(source);
  const bool moved = node.decision->operands[i] != source.spec && !node.decision->is_alias;
  if (moved || &root == &source.local) return node.operands[i].version();
  node.bases.emplace_back(i, root);
  return root.version();
}

// Saves, instead of operand i, the tensor that it was gathered from: a leaf in a group, which may
// be the operand itself, or TensorImpl::source. Returns false if there is no such tensor; if it was
// read in the layout in which it is stored, so there is nothing to gather; or if one of the two was
// written to since, so that only the operand has the values that were read.
bool SaveSource(Node& node, const TensorImpl& operand, int i) {
  const bool in_group = operand.gather != nullptr;
  TensorImplPtr source = in_group ? operand.gather->leaf.lock() : operand.source;
  if (source == nullptr) return false;
  const Spec* const as_it_rests = in_group ? node.decision->operands[i] : operand.spec.get();
  if (source->spec == as_it_rests) return false;
  const bool is_itself = source.get() == &operand;
  if (!is_itself && !StillEqual(operand, *source, operand.source_version)) return false;
  const uint64_t version = AliasRoot(*source).version();
  node.saved_sources.push_back({i, std::move(source), version});
  return true;
}

// Saves what backward reads, and links the results to the operands' edges.
std::shared_ptr<Node> Record(Context& context, const Decision& decision, const Impls& operands,
                             const OperandLocals& operand_locals,
                             absl::Span<const Tensor> result_locals) {
  const OpDef& op = *decision.op;
  auto node = std::make_shared_for_overwrite<Node>();  // does not clear it first
  node->sequence = context.NextSequence();
  node->decision = DecisionPtr(&decision);
  node->scope = context.scope();
  for (const TensorImplPtr* operand : operands) node->edges.push_back(EdgeOf(*operand));
  const auto saved_operands = static_cast<size_t>(std::bit_width(op.saved_operands));
  node->operands.resize(std::min(saved_operands, operands.size()));
  node->versions.resize(node->operands.size());
  for (size_t i = 0; i < node->operands.size(); ++i) {
    if ((op.saved_operands >> i & 1) == 0) continue;
    const TensorImpl& operand = **operands[i];
    const bool gathered = operand.gather != nullptr || operand.source != nullptr;
    if (gathered && SaveSource(*node, operand, static_cast<int>(i))) continue;
    node->operands[i] = operand_locals[i];
    node->versions[i] = NoteVersion(*node, **operands[i], static_cast<int>(i));
  }
  const auto saved_results = static_cast<size_t>(std::bit_width(op.saved_results));
  node->results.resize(std::min(saved_results, result_locals.size()));
  for (size_t r = 0; r < node->results.size(); ++r) {
    if (op.saved_results >> r & 1) node->results[r] = result_locals[r];
  }
  return node;
}

// Refuses a call that would be recorded but that Backward could not walk.
absl::Status CheckRecordable(Context& context, const Decision& decision, const Impls& operands) {
  uint32_t wanted = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    wanted |= uint32_t{WantsGradient(**operands[i])} << i;
  }
  if (wanted == 0) return absl::OkStatus();
  DT_RETURN_IF_ERROR(CheckHasBackward(decision, context.device().kind()));
  return CheckGradientsPass(decision, wanted);
}

// Whether its kernel communicates: it merges over a sharded dimension, streams one, sends its
// shards to those of another, or says so.
bool ExchangesInside(const Decision& decision) {
  if (decision.state != nullptr && decision.state->exchanges()) return true;
  const absl::Span<const RuleLetter> letters = decision.rule.rule().letters();
  for (size_t i = 0; i < letters.size(); ++i) {
    const bool exchanges = letters[i].merged || letters[i].past >= 0;
    if (exchanges && IsSplit(decision.assignment.letters[i])) return true;
    if (!SentAxes(decision.rule.rule(), decision.assignment, i).empty()) return true;
  }
  return false;
}

// Brings operand i to the layout that the kernel wants. Sets `gather` if this is operand 0 and the
// kernel may read its rows while others arrive.
absl::Status FindOperand(Context& context, const Decision& decision, size_t i, uint64_t lineage,
                         const TensorImplPtr& impl, OperandLocals& operand_locals,
                         std::shared_ptr<LateGather>& gather) {
  const bool stays = decision.operands[i] == impl->spec || (decision.is_alias && i == 0);
  const bool by_rows = i == 0 && decision.op->rows.has != nullptr;
  TensorImplPtr operand = impl;
  if (!stays) {
    const TraceReason reason(context.tracer(), TraceCause::kOperand, static_cast<int>(i),
                             !decision.moves_asked_for);
    const ExchangeCaller caller(decision.op->name, lineage + i, impl->lineage);
    DT_ASSIGN_OR_RETURN(operand, by_rows ? RedistributeLate(impl, decision.operands[i], caller)
                                         : RedistributeTo(impl, decision.operands[i], caller));
  }
  if (by_rows) gather = LateGatherOf(*operand);
  if (gather != nullptr && !ReadsRows(decision, gather->dim())) gather = nullptr;
  if (i > 0 || gather == nullptr) DT_RETURN_IF_ERROR(Settle(*operand));
  if (stays) {
    operand_locals.Add(&impl->local);
  } else {
    // A view's result is a value here: borrowing keeps writes to it away from `operand`.
    operand_locals.Keep(decision.op->view ? operand->local.Borrow() : operand->local);
  }
  return absl::OkStatus();
}

// Runs the kernel, if possible while its operand is being gathered; or puts it off until its result
// is used.
absl::Status RunKernel(Context& context, const OpCall& call, LateGather* gather, bool may_be_late,
                       LateValuesPtr& late) {
  const Decision& decision = call.decision;
  if (gather != nullptr && !gather->made()) {  // it is made if another operand is the same tensor
    const auto rows = [&](const RowRange& range, bool only_asks) {
      return decision.op->rows.forward(call, gather->dim(), range, only_asks);
    };
    const auto all = [&] { return decision.functions.forward(call); };
    return gather->MakeBeside({rows, all});
  }
  if (!may_be_late || !MakesResultLate(context, decision)) return decision.functions.forward(call);
  std::vector<Tensor> operands;
  for (size_t i = 0; i < call.operands.size(); ++i) operands.push_back(call.operands[i]);
  late = LateResult(context, DecisionPtr(&decision), std::move(operands), call.results[0],
                    call.values, call.lineage);
  return absl::OkStatus();
}

absl::Status MakeResults(Context& context, const Decision& decision, Locals& result_locals) {
  for (const Spec* result : decision.results) {
    if (decision.op->view) {
      result_locals.emplace_back();
      continue;
    }
    DT_ASSIGN_OR_RETURN(Tensor local, internal::NewLocal(context, result));
    result_locals.push_back(std::move(local));
  }
  return absl::OkStatus();
}

// On a rank that is not on the mesh. What shares memory on the ranks of the mesh shares the storage
// of no elements here, so that each write is seen by the same tensors, and refused for the same
// reasons, on all ranks.
absl::Status RunWithoutElements(Context& context, const Decision& decision, const Impls& operands,
                                OperandLocals& operand_locals, Locals& result_locals) {
  for (size_t i = 0; i < operands.size(); ++i) {
    TensorImpl& operand = **operands[i];
    DT_RETURN_IF_ERROR(Settle(operand));
    const bool stays = decision.operands[i] == operand.spec || (decision.is_alias && i == 0);
    if (stays) {
      operand_locals.Add(&operand.local);
    } else {
      operand_locals.Keep(operand.local.Borrow());
    }
  }
  DT_RETURN_IF_ERROR(MakeResults(context, decision, result_locals));
  for (Tensor& result : result_locals) {
    if (decision.op->view) result = operand_locals[0];
  }
  return absl::OkStatus();
}

absl::Status RunForward(Context& context, const Decision& decision, const CallValues& values,
                        uint64_t lineage, const Impls& operands, OperandLocals& operand_locals,
                        Locals& result_locals, LateValuesPtr& late) {
  if (!decision.on_mesh) {
    return RunWithoutElements(context, decision, operands, operand_locals, result_locals);
  }
  std::shared_ptr<LateGather> gather;
  for (size_t i = 0; i < operands.size(); ++i) {
    DT_RETURN_IF_ERROR(
        FindOperand(context, decision, i, lineage, *operands[i], operand_locals, gather));
  }
  const bool kept = context.recomputed_run() != nullptr && ExchangesInside(decision);
  const CollectiveCall collective{lineage, decision.results[0]};
  if (kept) {
    result_locals.resize(decision.results.size());
    if (TakeResults(context, collective, absl::MakeSpan(result_locals))) return absl::OkStatus();
    result_locals.clear();
  }
  DT_RETURN_IF_ERROR(MakeResults(context, decision, result_locals));
  const OpCall call{
      {context, decision, values, lineage}, operand_locals.refs(), absl::MakeSpan(result_locals)};
  absl::Status status = RunKernel(context, call, gather.get(), !kept, late);
  for (size_t r = 0; status.ok() && decision.op->view && r < result_locals.size(); ++r) {
    status = CheckSet(*decision.op, "forward", r, result_locals[r], *decision.results[r]);
  }
  if (!status.ok()) return FailIn(context, *decision.op, status);
  if (kept) KeepResults(context, collective, result_locals);
  return absl::OkStatus();
}

// Records in a view what it needs so that writes to it or to `source` are seen in the other.
absl::Status LinkView(const TensorImpl& source, const Decision& decision, const CallValues& values,
                      int result, TensorImpl& view) {
  constexpr size_t kMostSteps = 1000;
  const OpDef& op = *decision.op;
  view.is_expanded =
      source.is_expanded || NumElements(view.spec->shape) > NumElements(source.spec->shape);
  if (!decision.is_alias) return absl::OkStatus();
  const bool copied = &AliasRoot(source) != &source.local;
  if (!copied && (!op.reshapes || source.row_major)) {
    view.row_major = op.reshapes;
    return absl::OkStatus();
  }
  CopiedView made = copied ? *source.unsettled->view : CopiedView{source.local, {}, 0};
  if (made.steps.size() == kMostSteps) {
    return InvalidArgument({op.name, ": ", source.spec->ToString(), " is a view of a view, ",
                            absl::StrCat(kMostSteps), " times over; compute with it in between"});
  }
  made.steps.push_back({DecisionPtr(&decision), values, result});
  made.version = made.base.version();
  view.unsettled = std::make_unique<Unsettled>();
  view.unsettled->view = std::make_unique<CopiedView>(std::move(made));
  return absl::OkStatus();
}

// Where recording stops, at this operator or before: TensorImpl::stopped_by.
struct Stop {
  bool wants_gradient = false;  // some operand wants one
  const OpDef* by = nullptr;
  bool loses_gradient = false;
};
Stop StopOf(const OpDef& op, bool has_backward, const Impls& operands) {
  Stop stop;
  for (const TensorImplPtr* const impl : operands) {
    const TensorImpl& operand = **impl;
    stop.wants_gradient = stop.wants_gradient || WantsGradient(operand);
    if (operand.stopped_by == nullptr || stop.loses_gradient) continue;
    stop.by = operand.stopped_by;
    stop.loses_gradient = operand.loses_gradient;
  }
  if (stop.wants_gradient && !has_backward && !stop.loses_gradient) {
    stop.by = &op;
    stop.loses_gradient = true;
  }
  return stop;
}

absl::Status Perform(const OpDef& op, absl::Span<const TensorOr* const> tensors, AttrsView attrs,
                     const CallValues& values, absl::InlinedVector<DistributedTensor, 2>& out) {
  DT_RETURN_IF_ERROR(CheckOperandCount(op, tensors.size()));
  Impls operands;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Context* first = operands.empty() ? nullptr : (*operands[0])->context;
    DT_RETURN_IF_ERROR(CheckOperand(op, i, *tensors[i], first));
    operands.push_back(&(*tensors[i])->impl());
  }
  Context& context = *(*operands[0])->context;
  const bool on_mesh = (*operands[0])->spec->on_mesh;
  const TraceSpan span(on_mesh ? context.tracer() : nullptr, TraceKind::kOperator, op.name);
  DecisionPtr decision;
  DT_RETURN_IF_ERROR(Find(context, op, operands, attrs, decision));
  const bool has_backward = decision->functions.backward != nullptr;
  const bool is_odd = decision->reduces != 0 || !has_backward;
  if (is_odd && context.recording() && op.differentiable()) {
    DT_RETURN_IF_ERROR(CheckRecordable(context, *decision, operands));
  }
  OperandLocals operand_locals(operands.size());
  Locals result_locals;
  const uint64_t lineage = CallLineage(*decision, operands, values);
  LateValuesPtr late;
  DT_RETURN_IF_ERROR(RunForward(context, *decision, values, lineage, operands, operand_locals,
                                result_locals, late));

  std::shared_ptr<Node> node;
  Stop stop;
  if (context.recording()) {
    stop = StopOf(op, has_backward, operands);
    if (stop.wants_gradient && has_backward) {
      node = Record(context, *decision, operands, operand_locals, result_locals);
      node->values = values;
      node->lineage = lineage;
    }
  }
  for (size_t r = 0; r < decision->results.size(); ++r) {
    TensorImplPtr impl =
        MakeImpl(context, decision->results[r], std::move(result_locals[r]), !op.view);
    impl->lineage = {MixLineage(lineage, r), op.name, 0};
    if (late != nullptr) {
      impl->unsettled = std::make_unique<Unsettled>();
      impl->unsettled->late = late;
      impl->put_off = decision;
    }
    if (op.view) {
      DT_RETURN_IF_ERROR(LinkView(**operands[0], *decision, values, static_cast<int>(r), *impl));
    }
    if (decision->returned[r] != impl->spec) {
      const ExchangeCaller caller(op.name, impl->lineage.id, impl->lineage);
      const TraceReason reason(context.tracer(), TraceCause::kResult, static_cast<int>(r),
                               !decision->moves_asked_for);
      DT_ASSIGN_OR_RETURN(impl, RedistributeTo(impl, decision->returned[r], caller));
    }
    const bool is_float = IsFloat(impl->spec->dtype);  // others have no gradient
    if (is_float) impl->edge.node = node;
    impl->edge.index = static_cast<int>(r);
    impl->loses_gradient = stop.loses_gradient && is_float;
    if (impl->edge.node == nullptr || impl->loses_gradient) {
      impl->stopped_by = stop.by == nullptr && node != nullptr ? &op : stop.by;
    }
    out.emplace_back(std::move(impl));
  }
  return absl::OkStatus();
}

}  // namespace

TensorOr Dispatch(const OpDef& op, absl::Span<const TensorOr* const> operands, AttrsView attrs,
                  const CallValues& values) {
  absl::InlinedVector<DistributedTensor, 2> out;
  DT_RETURN_IF_ERROR(Perform(op, operands, attrs, values, out));
  return std::move(out[0]);
}

absl::StatusOr<absl::InlinedVector<DistributedTensor, 2>> DispatchAll(
    const OpDef& op, absl::Span<const TensorOr* const> operands, AttrsView attrs,
    const CallValues& values) {
  absl::InlinedVector<DistributedTensor, 2> out;
  DT_RETURN_IF_ERROR(Perform(op, operands, attrs, values, out));
  return out;
}

absl::StatusOr<DecisionPtr> Decide(const OpDef& op, absl::Span<const DistributedTensor> operands,
                                   AttrsView attrs) {
  DT_RETURN_IF_ERROR(CheckOperandCount(op, operands.size()));
  Impls impls;
  for (const DistributedTensor& operand : operands) {
    DT_CHECK(operand.defined());
    impls.push_back(&operand.impl());
  }
  DecisionPtr decision;
  DT_RETURN_IF_ERROR(Find(*(*impls[0])->context, op, impls, attrs, decision));
  return decision;
}

}  // namespace dtensor
