#include "dtensor/dispatch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/dispatch_cache.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor_impl.h"

namespace dtensor {
namespace {

using Impls = absl::InlinedVector<const TensorImplPtr*, 4>;
using Locals = absl::InlinedVector<Tensor, 4>;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint32_t PinnedMask(const Impls& operands) {
  uint32_t mask = 0;
  for (size_t i = 0; i < operands.size(); ++i) mask |= uint32_t{(*operands[i])->pinned} << i;
  return mask;
}

uint64_t KeyHash(const OpDef& op, const Impls& operands, uint32_t pinned, const Attrs& attrs) {
  uint64_t hash = Mix(reinterpret_cast<uintptr_t>(&op), pinned);
  for (const TensorImplPtr* operand : operands)
    hash = Mix(hash, reinterpret_cast<uintptr_t>((*operand)->spec));
  for (int64_t value : attrs.ints) hash = Mix(hash, value);
  for (double value : attrs.reals) hash = Mix(hash, absl::bit_cast<uint64_t>(value));
  return hash;
}

bool Matches(const Context& context, const Decision& decision, const OpDef& op,
             const Impls& operands, uint32_t pinned, const Attrs& attrs) {
  if (decision.op != &op || decision.pinned != pinned || decision.sources.size() != operands.size())
    return false;
  if (op.route != nullptr && decision.options != &context.redistribution_options()) return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (decision.sources[i] != (*operands[i])->spec) return false;
  }
  return decision.attrs == attrs;
}

absl::Status CheckTypes(const OpDef& op, absl::Span<const Spec* const> operands,
                        const Attrs& attrs) {
  if (op.check != nullptr) return op.check(operands, attrs);
  for (const Spec* operand : operands) {
    if (operand->dtype != operands[0]->dtype) {
      return InvalidArgument(
          {op.name, ": operands have unlike types (", SpecsText(operands), "); Cast one of them"});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BoundRule> BindRule(const OpDef& op, absl::Span<const Spec* const> operands,
                                   const Attrs& attrs) {
  std::vector<Dims> shapes;
  for (const Spec* operand : operands) shapes.push_back(operand->shape);
  RuleText text;
  if (op.describe != nullptr) {
    DT_ASSIGN_OR_RETURN(text, op.describe(shapes, attrs));
  } else {
    text.text = op.rule;
  }
  DT_ASSIGN_OR_RETURN(const OpRule rule, OpRule::Parse(text.text));
  return BoundRule::Bind(op.name, rule, shapes, text.sizes);
}

// The specs of operands, gradients and results, from the assignment.
absl::Status InternSpecs(Context& context, const Route& route, Decision& decision) {
  const OpDef& op = *decision.op;
  const Assignment& assignment = decision.assignment;
  for (size_t i = 0; i < decision.sources.size(); ++i) {
    const Spec* source = decision.sources[i];
    DT_ASSIGN_OR_RETURN(const Spec* spec,
                        context.Intern(assignment.operands[i], source->shape, source->dtype));
    DT_ASSIGN_OR_RETURN(const Spec* gradient,
                        context.Intern(assignment.gradients[i], source->shape, source->dtype));
    decision.operands.push_back(spec);
    decision.gradients.push_back(gradient);
  }
  for (size_t r = 0; r < assignment.results.size(); ++r) {
    const DType dtype = op.result_dtype != nullptr
                            ? op.result_dtype(decision.sources, decision.attrs, static_cast<int>(r))
                            : decision.sources[0]->dtype;
    const Dims& shape = decision.rule.result_shapes()[r];
    DT_ASSIGN_OR_RETURN(const Spec* spec, context.Intern(assignment.results[r], shape, dtype));
    DT_ASSIGN_OR_RETURN(const Spec* dual,
                        context.Intern(assignment.results[r].Dual(), shape, dtype));
    decision.results.push_back(spec);
    decision.duals.push_back(dual);
    decision.delivered.push_back(spec);
    if (r >= route.results.size() || !route.results[r]) continue;
    DT_ASSIGN_OR_RETURN(decision.delivered[r], context.Intern(*route.results[r], shape, dtype));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Decision>> MakeDecision(Context& context, const OpDef& op,
                                                       const Impls& operands, uint32_t pinned,
                                                       const Attrs& attrs) {
  auto decision = std::make_unique<Decision>();
  decision->op = &op;
  decision->attrs = attrs;
  decision->pinned = pinned;
  for (const TensorImplPtr* operand : operands) decision->sources.push_back((*operand)->spec);
  for (const Spec* source : decision->sources) {
    if (source->on_mesh) continue;
    return InvalidArgument({op.name, ": rank ", absl::StrCat(context.rank()),
                            " is not on the mesh of ", source->ToString(),
                            "; call it on the ranks of that mesh alone"});
  }
  DT_RETURN_IF_ERROR(CheckTypes(op, decision->sources, attrs));
  DT_ASSIGN_OR_RETURN(decision->rule, BindRule(op, decision->sources, attrs));
  Route route;
  if (op.route != nullptr) {
    decision->options = &context.redistribution_options();
    DT_ASSIGN_OR_RETURN(route, op.route(context, *decision));
  }
  std::vector<RuleOperand> rule_operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Spec* spec = decision->sources[i];
    const Layout& layout = route.operands.empty() ? spec->layout : route.operands[i];
    rule_operands.push_back({layout, spec->dtype, (pinned >> i & 1) != 0});
  }
  DT_ASSIGN_OR_RETURN(decision->assignment,
                      Solve(op.name, decision->rule, op.linearity, rule_operands));
  DT_RETURN_IF_ERROR(InternSpecs(context, route, *decision));
  if (op.prepare != nullptr) {
    DT_ASSIGN_OR_RETURN(decision->state, op.prepare(context, *decision));
  }
  return decision;
}

absl::StatusOr<const Decision*> Find(Context& context, const OpDef& op, const Impls& operands,
                                     const Attrs& attrs) {
  const uint32_t pinned = PinnedMask(operands);
  auto& entries = context.dispatch_cache().decisions[KeyHash(op, operands, pinned, attrs)];
  for (const auto& entry : entries) {
    if (Matches(context, *entry, op, operands, pinned, attrs)) return entry.get();
  }
  DT_ASSIGN_OR_RETURN(auto decision, MakeDecision(context, op, operands, pinned, attrs));
  entries.push_back(std::move(decision));
  return entries.back().get();
}

absl::Status CheckOperand(const OpDef& op, size_t i, const TensorOr& operand,
                          const Context* context) {
  if (!operand.ok()) return operand.status();
  if (!operand->defined())
    return InvalidArgument({op.name, ": operand ", absl::StrCat(i), " is undefined"});
  if (context != nullptr && operand->impl()->context != context) {
    return InvalidArgument(
        {op.name, ": operand ", absl::StrCat(i), " belongs to another Context than operand 0"});
  }
  return absl::OkStatus();
}

// Saves what backward reads, and links the results to the operands' edges.
std::shared_ptr<Node> Record(Context& context, const Decision& decision, const Impls& operands,
                             absl::Span<const Tensor> operand_locals,
                             absl::Span<const Tensor> result_locals) {
  const OpDef& op = *decision.op;
  auto node = std::make_shared<Node>();
  node->sequence = context.NextSequence();
  node->decision = &decision;
  for (size_t i = 0; i < operands.size(); ++i) {
    node->edges.push_back(EdgeOf(*operands[i]));
    node->versions.push_back(node->edges[i].leaf ? node->edges[i].leaf->version : 0);
    node->operands.push_back(op.saved_operands >> i & 1 ? operand_locals[i] : Tensor());
  }
  for (size_t r = 0; r < result_locals.size(); ++r) {
    node->results.push_back(op.saved_results >> r & 1 ? result_locals[r] : Tensor());
  }
  return node;
}

bool WantsGradient(const TensorImplPtr& impl) { return impl->requires_grad || impl->edge.wanted(); }

absl::Status RunForward(Context& context, const Decision& decision, uint64_t seed,
                        const Impls& operands, Locals& operand_locals, Locals& result_locals) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const TensorImplPtr& impl = *operands[i];
    DT_RETURN_IF_ERROR(Settle(*impl));
    if (decision.operands[i] == impl->spec) {
      operand_locals.push_back(impl->local);
    } else {
      DT_ASSIGN_OR_RETURN(const TensorImplPtr moved,
                          RedistributeTo(impl, decision.operands[i], decision.op->name));
      operand_locals.push_back(moved->local);
    }
  }
  for (const Spec* result : decision.results) {
    if (decision.op->view) {
      result_locals.emplace_back();
      continue;
    }
    auto local = Tensor::Empty(context.device(), result->dtype, result->local_shape);
    if (!local.ok()) return context.communicator().Fail(local.status());
    result_locals.push_back(*std::move(local));
  }
  const OpCall call{context, decision, operand_locals, absl::MakeSpan(result_locals), seed};
  if (absl::Status status = decision.op->forward(call); !status.ok())
    return context.communicator().Fail(status);
  return absl::OkStatus();
}

absl::Status Perform(const OpDef& op, absl::Span<const TensorOr* const> tensors, const Attrs& attrs,
                     absl::InlinedVector<DistributedTensor, 2>& out) {
  Impls operands;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Context* first = operands.empty() ? nullptr : (*operands[0])->context;
    DT_RETURN_IF_ERROR(CheckOperand(op, i, *tensors[i], first));
    operands.push_back(&(*tensors[i])->impl());
  }
  Context& context = *(*operands[0])->context;
  DT_ASSIGN_OR_RETURN(const Decision* decision, Find(context, op, operands, attrs));
  Locals operand_locals, result_locals;
  DT_RETURN_IF_ERROR(
      RunForward(context, *decision, attrs.seed, operands, operand_locals, result_locals));

  std::shared_ptr<Node> node;
  if (context.recording() && op.backward != nullptr) {
    for (const TensorImplPtr* operand : operands) {
      if (!WantsGradient(*operand)) continue;
      node = Record(context, *decision, operands, operand_locals, result_locals);
      node->seed = attrs.seed;
      break;
    }
  }
  for (size_t r = 0; r < decision->results.size(); ++r) {
    TensorImplPtr impl = MakeImpl(context, decision->results[r], std::move(result_locals[r]));
    impl->edge.node = node;
    impl->edge.index = static_cast<int>(r);
    if (decision->delivered[r] != impl->spec) {
      DT_ASSIGN_OR_RETURN(impl, RedistributeTo(impl, decision->delivered[r], op.name));
    }
    out.emplace_back(std::move(impl));
  }
  return absl::OkStatus();
}

IndexSet Indices(const Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                 int dim) {
  return DimRegion(layout, dim, shape[dim], layout.mesh().Coordinate(context.rank()));
}

}  // namespace

TensorOr Dispatch(const OpDef& op, absl::Span<const TensorOr* const> operands, const Attrs& attrs) {
  absl::InlinedVector<DistributedTensor, 2> out;
  DT_RETURN_IF_ERROR(Perform(op, operands, attrs, out));
  return std::move(out[0]);
}

absl::StatusOr<absl::InlinedVector<DistributedTensor, 2>> DispatchAll(
    const OpDef& op, absl::Span<const TensorOr* const> operands, const Attrs& attrs) {
  absl::InlinedVector<DistributedTensor, 2> out;
  DT_RETURN_IF_ERROR(Perform(op, operands, attrs, out));
  return out;
}

absl::StatusOr<const Decision*> Decide(const OpDef& op,
                                       absl::Span<const DistributedTensor> operands,
                                       const Attrs& attrs) {
  Impls impls;
  for (const DistributedTensor& operand : operands) {
    DT_CHECK(operand.defined());
    impls.push_back(&operand.impl());
  }
  return Find(*(*impls[0])->context, op, impls, attrs);
}

std::string SpecsText(absl::Span<const Spec* const> specs) {
  return absl::StrJoin(specs, ", ", [](std::string* out, const Spec* spec) {
    absl::StrAppend(out, spec->ToString());
  });
}

IndexSet OpCall::OperandIndices(int i, int dim) const {
  return Indices(context, decision.assignment.operands[i], decision.operands[i]->shape, dim);
}

IndexSet GradCall::OperandIndices(int i, int dim) const {
  return Indices(context, decision.assignment.operands[i], decision.operands[i]->shape, dim);
}

absl::StatusOr<Tensor> OpCall::GatherShards(absl::string_view letter, const Tensor& local) const {
  const DimLayout& split = decision.assignment.letters[decision.rule.LetterIndex(letter)];
  const DeviceMesh& mesh = decision.operands[0]->mesh();
  Factor shards;
  int64_t count = 1;
  for (int axis : AxesOf(split)) {
    shards.splits.push_back({axis, false});
    count *= mesh.axis_size(axis);
  }
  Dims one(local.shape().begin(), local.shape().end()), all = one;
  one.insert(one.begin(), 1);
  all.insert(all.begin(), count);
  DT_ASSIGN_OR_RETURN(const Tensor mine, local.Reshape(one));
  if (count == 1) return mine;
  std::vector<DimLayout> dims(all.size());
  dims[0].push_back(std::move(shards));
  DT_ASSIGN_OR_RETURN(const Layout from, Layout::Create(mesh, dims));
  DT_ASSIGN_OR_RETURN(const Spec* from_spec, context.Intern(from, all, local.dtype()));
  DT_ASSIGN_OR_RETURN(
      const Spec* to_spec,
      context.Intern(Layout::Replicated(mesh, static_cast<int>(all.size())), all, local.dtype()));
  RedistributionOptions options = context.redistribution_options();
  options.max_extra_bytes = -1;
  DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(from_spec, to_spec, &options));
  return Execute(*plan, mine, context.communicator(), decision.op->name);
}

}  // namespace dtensor
