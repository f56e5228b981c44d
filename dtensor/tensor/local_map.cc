#include "dtensor/tensor/local_map.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

// A recorded call has two nodes, for which the tape needs no function: `entry`, whose operands are
// the call's and whose results are the shards, and `exit`, whose operands are the shards that fn
// returned. Between them are those that fn recorded. An edge leads from exit to entry, so that all
// ranks bring the operands' gradients to other layouts in the same order, whether or not fn's
// results depend on the operands on each rank.
const OpDef kLocalMap = {.name = "LocalMap", .sets_gradients = true};

// A shard has the same elements as this rank's part of its tensor, and so have their gradients.
absl::Status PassGradients(const GradCall& call) {
  for (size_t i = 0; i < call.gradients.size(); ++i) {
    if (call.wants(static_cast<int>(i))) call.gradients[i] = call.result_gradients[i];
  }
  return absl::OkStatus();
}

absl::Status CheckCount(absl::string_view what, size_t count) {
  if (count > 0 && count <= OpRule::kMaxOperands) return absl::OkStatus();
  return InvalidArgument({"LocalMap: got ", absl::StrCat(count), " ", what, "; give 1 to ",
                          absl::StrCat(OpRule::kMaxOperands)});
}

absl::Status CheckOperands(absl::Span<const DistributedTensor> operands) {
  DT_RETURN_IF_ERROR(CheckCount("operands", operands.size()));
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string operand = absl::StrCat("LocalMap: operand ", i);
    if (!operands[i].defined()) return InvalidArgument({operand, " is undefined"});
    if (&operands[i].context() != &operands[0].context()) {
      return InvalidArgument({operand, " belongs to another Context than operand 0"});
    }
    if (operands[i].mesh() != operands[0].mesh()) {
      return InvalidArgument({operand, ", ", operands[i].ToString(),
                              ", is on another mesh than operand 0, ", operands[0].ToString(),
                              "; Redistribute one of them to the other's mesh"});
    }
  }
  return absl::OkStatus();
}

// The layouts in which fn gets the operands.
absl::StatusOr<std::vector<Layout>> OperandLayouts(absl::Span<const DistributedTensor> operands,
                                                   const LocalMapOptions& options) {
  std::vector<Layout> layouts;
  const auto& given = options.operand_layouts;
  if (!given.empty() && given.size() != operands.size()) {
    return InvalidArgument({"LocalMap: got ", absl::StrCat(operands.size()), " operands and ",
                            absl::StrCat(given.size()), " operand_layouts; give one for each, or ",
                            "none"});
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    layouts.push_back(given.empty() ? operands[i].layout()
                                    : given[i].value_or(operands[i].layout()));
    const bool fits =
        layouts[i].mesh() == operands[i].mesh() && layouts[i].ndim() == operands[i].ndim();
    if (fits) continue;
    return InvalidArgument({"LocalMap: operand ", absl::StrCat(i), ", ", operands[i].ToString(),
                            ", does not fit its operand_layouts, ", layouts[i].ToString(), " on ",
                            layouts[i].mesh().ToString(),
                            "; take its mesh and number of dimensions"});
  }
  return layouts;
}

absl::Status CheckResults(Context& context, const DeviceMesh& mesh,
                          absl::Span<const LocalMapResult> results) {
  DT_RETURN_IF_ERROR(CheckCount("results", results.size()));
  for (size_t r = 0; r < results.size(); ++r) {
    if (results[r].layout.mesh() != mesh) {
      return InvalidArgument({"LocalMap: result ", absl::StrCat(r), " is on ",
                              results[r].layout.mesh().ToString(), ", the operands on ",
                              mesh.ToString(), "; Redistribute the result afterwards"});
    }
    DT_RETURN_IF_ERROR(context.Intern(results[r].layout, results[r].shape, DType::kF32).status());
  }
  return absl::OkStatus();
}

// Over an axis on which an operand is Partial, fn gets a term, and returns one.
absl::Status CheckPartial(absl::Span<const Layout> operands,
                          absl::Span<const LocalMapResult> results) {
  for (size_t i = 0; i < operands.size(); ++i) {
    for (const int axis : operands[i].partial_axes()) {
      const ReduceOp op = operands[i].partial_op(axis);
      for (size_t r = 0; r < results.size(); ++r) {
        const Layout& result = results[r].layout;
        const bool is_term =
            result.use(axis) == Layout::AxisUse::kPartial && result.partial_op(axis) == op;
        if (is_term) continue;
        return InvalidArgument({"LocalMap: operand ", absl::StrCat(i), " is ",
                                operands[i].ToString(), ", Partial(", ToString(op), ") over ",
                                operands[i].mesh().axis_name(axis), ", and result ",
                                absl::StrCat(r), ", ", result.ToString(),
                                ", is not; give operand_layouts in which the ",
                                "operand is replicated or sharded over this axis"});
      }
    }
  }
  return absl::OkStatus();
}

// A gradient passes sums alone, on the way to fn and behind it.
absl::Status CheckGradientsPass(absl::Span<const DistributedTensor> operands,
                                absl::Span<const Layout> layouts,
                                absl::Span<const LocalMapResult> results) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Spec& spec = operands[i].spec();
    if (!WantsGradient(*operands[i].impl())) continue;
    if (!ReducesByAnotherOpThanSum(spec.layout, layouts[i])) continue;
    return NoGradientPasses(kLocalMap.name, absl::StrCat("operand ", i), spec);
  }
  for (size_t r = 0; r < results.size(); ++r) {
    const Layout& layout = results[r].layout;
    for (const int axis : layout.partial_axes()) {
      const ReduceOp op = layout.partial_op(axis);
      if (op == ReduceOp::kSum) continue;
      return InvalidArgument({"LocalMap: a gradient is wanted of an operand, and result ",
                              absl::StrCat(r), ", ", layout.ToString(), ", is Partial(",
                              ToString(op), ") over ", layout.mesh().axis_name(axis),
                              "; make it Partial(sum), or Detach() the operands"});
    }
  }
  return absl::OkStatus();
}

// The axes over which every rank computes all of the results.
std::vector<bool> CommonAxes(const DeviceMesh& mesh, absl::Span<const LocalMapResult> results) {
  std::vector<bool> common(mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    common[axis] = absl::c_all_of(results, [&](const LocalMapResult& result) {
      return result.layout.use(axis) == Layout::AxisUse::kReplicate;
    });
  }
  return common;
}

// The layout in which each rank has its own part of the gradient of a tensor in `layout`. Over an
// axis on which the tensor is Partial, the gradient is replicated: that of a term is the sum's.
// Over one on which the tensor is replicated, each rank has the whole gradient if all ranks compute
// the same there, else a term.
absl::StatusOr<Layout> GradientLayout(const Layout& layout, const std::vector<bool>& common) {
  AxisList terms;
  for (const int axis : layout.replicated_axes()) {
    if (!common[axis]) terms.push_back(axis);
  }
  return layout.WithPartial(terms);
}

struct Call {
  Context& context;
  int rank;               // whose shards fn gets
  DeviceMesh local_mesh;  // of that rank alone
  std::vector<bool> common;
  uint64_t lineage;                       // of the operands
  std::shared_ptr<Node> entry = nullptr;  // null: nothing is recorded
};

Dims LocalShape(const Spec& spec, const Call& call) {
  return spec.layout.LocalShape(spec.shape, call.rank);
}

// Of the gradient of a tensor of the call, or of a shard.
absl::StatusOr<SpecPtr> GradientSpec(const Call& call, const SpecPtr& spec) {
  if (spec->mesh() == call.local_mesh) return spec;
  DT_ASSIGN_OR_RETURN(const Layout layout, GradientLayout(spec->layout, call.common));
  return call.context.Intern(layout, spec->shape, spec->dtype);
}

// Two tensors with the same elements on this rank: the gradient of one is that of the other.
struct Passage {
  TensorImplPtr from, to;
};

// Records a node through which the gradients of `to` pass to `from`.
absl::StatusOr<std::shared_ptr<Node>> Record(const Call& call, uint64_t lineage,
                                             absl::Span<const Passage> passages) {
  const auto node = std::make_shared<Node>();
  const CountedPtr<Decision> decision(new Decision);
  node->decision = DecisionPtr(decision.get());
  node->sequence = call.context.NextSequence();
  node->lineage = lineage;
  node->scope = call.context.scope();
  decision->op = &kLocalMap;
  decision->functions.backward = PassGradients;
  const auto keep = [&](SpecPtr spec) {
    decision->kept.push_back(std::move(spec));
    return decision->kept.back().get();
  };
  for (const Passage& passage : passages) {
    DT_ASSIGN_OR_RETURN(SpecPtr gradient, GradientSpec(call, passage.from->spec));
    DT_ASSIGN_OR_RETURN(SpecPtr result_gradient, GradientSpec(call, passage.to->spec));
    passage.to->edge = {node, static_cast<int>(node->edges.size()), nullptr};
    node->edges.push_back(EdgeOf(passage.from));
    decision->operands.push_back(keep(passage.from->spec));
    decision->gradients.push_back(keep(std::move(gradient)));
    decision->results.push_back(keep(passage.to->spec));
    decision->result_gradient_specs.push_back(keep(std::move(result_gradient)));
  }
  return node;
}

// Says where recording stopped on the way to `value`, as dispatch does for an operator's result.
void CopyStop(const TensorImpl& from, TensorImpl& value) {
  value.loses_gradient = from.loses_gradient && IsFloat(value.spec->dtype);
  if (!value.edge.wanted() || value.loses_gradient) value.stopped_by = from.stopped_by;
}

// The lineage of number i of the shards or results: of the operands, not of a count, so that a
// function of Recompute() makes the same tensors when it runs again.
Lineage LineageOf(const Call& call, size_t i, const Spec& spec) {
  return {MixLineage(MixLineage(call.lineage, i), spec.digest), kLocalMap.name};
}

// This rank's shards of the operands, which are values that nobody else has: a shard may have their
// memory. If the call `records`, sets call.entry, through which the gradients of those pass that
// want one.
absl::StatusOr<std::vector<DistributedTensor>> Shards(absl::Span<const DistributedTensor> operands,
                                                      bool records, Call& call) {
  std::vector<DistributedTensor> shards;
  std::vector<Passage> passages;
  for (const DistributedTensor& operand : operands) {
    const TensorImpl& impl = *operand.impl();
    DT_ASSIGN_OR_RETURN(const SpecPtr spec,
                        call.context.Intern(Layout::Replicated(call.local_mesh, impl.spec->ndim()),
                                            LocalShape(*impl.spec, call), impl.spec->dtype));
    const TensorImplPtr shard = MakeImpl(call.context, spec.get(), impl.local, impl.row_major);
    shard->lineage = LineageOf(call, shards.size(), *spec);
    if (records && WantsGradient(impl)) passages.push_back({operand.impl(), shard});
    shards.emplace_back(shard);
  }
  if (records) {
    DT_ASSIGN_OR_RETURN(call.entry, Record(call, call.lineage, passages));
  }
  for (size_t i = 0; i < shards.size(); ++i) CopyStop(*operands[i].impl(), *shards[i].impl());
  return shards;
}

// Checks what fn returned for `spec`. The world lives, so that the caller decides.
absl::Status CheckShard(size_t r, const DistributedTensor& shard, const Call& call,
                        const Spec& spec) {
  const std::string what =
      absl::StrCat("LocalMap: the function's result ", r, ", ", shard.ToString(), ", ");
  if (shard.mesh() != call.local_mesh) {
    return InvalidArgument({what, "is not on the shards' mesh, ", call.local_mesh.ToString(),
                            "; compute it from the shards, or make it on their mesh"});
  }
  const Dims wanted = LocalShape(spec, call);
  if (shard.shape() != wanted) {
    return InvalidArgument({what, "is not of shape ", DimsToString(wanted),
                            ", which this rank holds of ", spec.ToString(),
                            "; LocalMapResult::shape is the global shape"});
  }
  if (call.entry == nullptr && call.context.recording() && WantsGradient(*shard.impl())) {
    return InvalidArgument({what,
                            "wants a gradient, which none of the operands does; Detach() it, ",
                            "or let an operand want one on all ranks"});
  }
  return absl::OkStatus();
}

// Records the other end of call.entry, which is visited after it in any case.
absl::Status RecordResults(const Call& call, absl::Span<const DistributedTensor> shards,
                           absl::Span<const DistributedTensor> results) {
  std::vector<Passage> passages;
  for (size_t r = 0; r < results.size(); ++r) {
    if (IsFloat(results[r].dtype())) passages.push_back({shards[r].impl(), results[r].impl()});
  }
  if (passages.empty()) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const std::shared_ptr<Node> node,
                      Record(call, MixLineage(call.lineage, 1), passages));
  node->edges.push_back({call.entry, 0, nullptr});
  return absl::OkStatus();
}

// The elements of a shard that fn returned, for a value that may be written to on every rank.
absl::StatusOr<Tensor> Take(DistributedTensor shard) {
  TensorImpl& impl = *shard.impl();
  DT_RETURN_IF_ERROR(Settle(impl));
  if (impl.local.overlaps_itself()) {
    auto copy = kernels::Duplicate(impl.context->device(), impl.local);
    if (!copy.ok()) return impl.context->communicator().Fail(copy.status());
    return copy;
  }
  if (shard.impl().use_count() == 1 && impl.local.is_only_user()) return std::move(impl.local);
  return impl.local.Borrow();
}

TensorsOr Results(std::vector<DistributedTensor> shards, absl::Span<const LocalMapResult> results,
                  const Call& call) {
  if (shards.size() != results.size()) {
    return InvalidArgument({"LocalMap: the function returned ", absl::StrCat(shards.size()),
                            " tensors, and there are ", absl::StrCat(results.size()), " results"});
  }
  std::vector<DistributedTensor> made;
  for (size_t r = 0; r < results.size(); ++r) {
    if (!shards[r].defined()) {
      return InvalidArgument(
          {"LocalMap: the function's result ", absl::StrCat(r), " is undefined"});
    }
    DT_ASSIGN_OR_RETURN(const SpecPtr spec, call.context.Intern(results[r].layout, results[r].shape,
                                                                shards[r].dtype()));
    DT_RETURN_IF_ERROR(CheckShard(r, shards[r], call, *spec));
    made.emplace_back(MakeImpl(call.context, spec.get(), Tensor(), /*row_major=*/false));
    made[r].impl()->lineage = LineageOf(call, r, *spec);
  }
  if (call.entry != nullptr) DT_RETURN_IF_ERROR(RecordResults(call, shards, made));
  for (size_t r = 0; r < results.size(); ++r) {
    CopyStop(*shards[r].impl(), *made[r].impl());
    DT_ASSIGN_OR_RETURN(made[r].impl()->local, Take(std::move(shards[r])));
  }
  return made;
}

absl::StatusOr<DeviceMesh> MeshOf(int rank) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"local", 1}}));
  return mesh.OnRanks({rank});
}

// The rank whose shards fn gets.
int RankFor(const Context& context, const DeviceMesh& mesh) {
  return mesh.Contains(context.rank()) ? context.rank() : mesh.RankOf(0);
}

}  // namespace

absl::StatusOr<DeviceMesh> LocalMesh(const Context& context) { return MeshOf(context.rank()); }

absl::StatusOr<DeviceMesh> LocalMesh(const Context& context, const DeviceMesh& mesh) {
  return MeshOf(RankFor(context, mesh));
}

TensorsOr LocalMap(absl::Span<const DistributedTensor> operands,
                   absl::Span<const LocalMapResult> results, const LocalFunction& fn,
                   const LocalMapOptions& options) {
  DT_RETURN_IF_ERROR(CheckOperands(operands));
  Context& context = operands[0].context();
  DT_ASSIGN_OR_RETURN(const std::vector<Layout> layouts, OperandLayouts(operands, options));
  DT_RETURN_IF_ERROR(CheckResults(context, operands[0].mesh(), results));
  DT_RETURN_IF_ERROR(CheckPartial(layouts, results));
  const bool records =
      context.recording() && absl::c_any_of(operands, [](const DistributedTensor& operand) {
        return WantsGradient(*operand.impl());
      });
  if (records) DT_RETURN_IF_ERROR(CheckGradientsPass(operands, layouts, results));
  std::vector<DistributedTensor> moved;
  for (size_t i = 0; i < operands.size(); ++i) {
    DT_ASSIGN_OR_RETURN(DistributedTensor operand, operands[i].Redistribute(layouts[i]));
    DT_RETURN_IF_ERROR(Settle(*operand.impl()));
    moved.push_back(std::move(operand));
  }
  const DeviceMesh& mesh = operands[0].mesh();
  const int rank = RankFor(context, mesh);
  DT_ASSIGN_OR_RETURN(DeviceMesh local_mesh, MeshOf(rank));
  Call call{context, rank, std::move(local_mesh), CommonAxes(mesh, results), /*lineage=*/0};
  for (const DistributedTensor& operand : moved) {
    call.lineage = MixLineage(call.lineage, operand.impl()->lineage.id);
  }
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> shards, Shards(moved, records, call));
  DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> returned, fn(shards));
  return Results(std::move(returned), results, call);
}

}  // namespace dtensor
