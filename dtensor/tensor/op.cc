// The functions of op.h that an operator's functions call.
#include "dtensor/tensor/op.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

IndexSet Indices(const Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                 int dim) {
  return DimRegion(layout, dim, shape[dim], layout.mesh().Coordinate(context.rank()));
}

}  // namespace

std::string SpecsText(absl::Span<const Spec* const> specs) {
  return absl::StrJoin(specs, ", ", [](std::string* out, const Spec* spec) {
    absl::StrAppend(out, spec->ToString());
  });
}

namespace {

absl::Status CheckTypesByOperand(const OpDef& op, absl::Span<const Spec* const> operands) {
  std::vector<std::string> taken;
  bool fits = true;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool any = i >= op.operand_types.size() || op.operand_types[i].empty();
    taken.push_back(any ? "any type" : op.operand_types[i].ToString());
    fits = fits && (any || op.operand_types[i].contains(operands[i]->dtype));
  }
  if (fits) return absl::OkStatus();
  return InvalidArgument({op.name, ": takes operands of ", absl::StrJoin(taken, ", then "),
                          ", got ", SpecsText(operands), "; Cast them, or swap the operands"});
}

}  // namespace

absl::Status OpDef::CheckTypes(absl::Span<const Spec* const> operands) const {
  const auto is_given = [](TypeSet types) { return !types.empty(); };
  if (absl::c_any_of(operand_types, is_given)) return CheckTypesByOperand(*this, operands);
  for (const Spec* operand : operands) {
    if (operand->dtype == operands[0]->dtype) continue;
    return InvalidArgument(
        {name, ": operands have unlike types (", SpecsText(operands), "); Cast one of them"});
  }
  if (types.contains(operands[0]->dtype)) return absl::OkStatus();
  return InvalidArgument(
      {name, ": takes ", types.ToString(), ", got ", SpecsText(operands), "; Cast them first"});
}

IndexSet RankCall::OperandIndices(int i, int dim) const {
  return Indices(context, decision.assignment.operands[i], decision.operands[i]->shape, dim);
}

namespace {

// The axes that split any of `letters`, letter by letter.
AxisList AxesOfLetters(const Decision& decision, absl::string_view letters) {
  AxisList axes;
  for (absl::string_view letter : absl::StrSplit(letters, ' ', absl::SkipWhitespace())) {
    const AxisList split = AxesOf(decision.assignment.letters[decision.rule.LetterIndex(letter)]);
    axes.insert(axes.end(), split.begin(), split.end());
  }
  return axes;
}

DimLayout SplitOver(const AxisList& axes) {
  LayoutFactor factor;
  for (const int axis : axes) factor.splits.push_back({axis, false});
  return {std::move(factor)};
}

// Treats what each rank has as one tensor [shards, others, elements], in which `axes` split the
// dimension `shards` and all other axes split `others`. Ranks that differ on the other axes may
// have the same rows or different ones. If they were declared replicas, a plan could fetch rows
// from any of them.
struct GatheredSpecs {
  SpecPtr from, to;
};
absl::StatusOr<GatheredSpecs> SpecsOfShards(Context& context, const DeviceMesh& mesh,
                                            const AxisList& axes, int64_t shards,
                                            const Tensor& local) {
  AxisList others;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!absl::c_linear_search(axes, axis)) others.push_back(axis);
  }
  const Dims shape = {shards, mesh.size() / shards, local.numel()};
  std::vector<DimLayout> dims(shape.size());
  dims[0] = SplitOver(axes);
  if (!others.empty()) dims[1] = SplitOver(others);
  GatheredSpecs specs;
  DT_ASSIGN_OR_RETURN(const Layout from, Layout::Create(mesh, dims));
  DT_ASSIGN_OR_RETURN(specs.from, context.Intern(from, shape, local.dtype()));
  dims[0].clear();
  DT_ASSIGN_OR_RETURN(const Layout to, Layout::Create(mesh, dims));
  DT_ASSIGN_OR_RETURN(specs.to, context.Intern(to, shape, local.dtype()));
  return specs;
}

}  // namespace

namespace {

int64_t ShardsOver(const DeviceMesh& mesh, const AxisList& axes) {
  int64_t count = 1;
  for (const int axis : axes) count *= mesh.axis_size(axis);
  return count;
}

}  // namespace

int64_t RankCall::NumShards(absl::string_view letters) const {
  return ShardsOver(decision.operands[0]->mesh(), AxesOfLetters(decision, letters));
}

absl::StatusOr<Tensor> RankCall::GatherShards(absl::string_view letters,
                                              const Tensor& local) const {
  return GatherOver(AxesOfLetters(decision, letters), local);
}

absl::StatusOr<Tensor> RankCall::GatherOver(const AxisList& axes, const Tensor& local) const {
  const DeviceMesh& mesh = decision.operands[0]->mesh();
  const int64_t count = ShardsOver(mesh, axes);
  Dims all(local.shape().begin(), local.shape().end());
  all.insert(all.begin(), count);
  if (count == 1) return local.Reshape(all);
  DT_ASSIGN_OR_RETURN(const GatheredSpecs specs, SpecsOfShards(context, mesh, axes, count, local));
  RedistributionOptions options = context.redistribution_options();
  options.max_extra_bytes = -1;
  DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(specs.from, specs.to, &options));
  const absl::StatusOr<Tensor> dense = kernels::Contiguous(context.device(), local);
  if (!dense.ok()) return context.communicator().Fail(dense.status());
  DT_ASSIGN_OR_RETURN(const Tensor mine, dense->Reshape(specs.from->local_shape));
  DT_ASSIGN_OR_RETURN(const Tensor gathered, ExecutePlan(*plan, mine, context.communicator(),
                                                         {decision.op->name, lineage, {}}));
  return gathered.Reshape(all);
}

const Tensor& SavedTensors::StandIn(size_t i) const {
  missed_ = static_cast<int>(i);
  const bool known = i < specs_.size();
  auto zeros = Tensor::Empty(device_, known ? specs_[i]->dtype : DType::kF32,
                             known ? specs_[i]->local_shape : Dims{});
  stand_ins_.push_back(std::make_unique<Tensor>());
  if (!zeros.ok() || !kernels::Fill(device_, *zeros, 0).ok()) return *stand_ins_.back();
  *stand_ins_.back() = *std::move(zeros);
  return *stand_ins_.back();
}

}  // namespace dtensor
