// What op.h hands to an operator's functions.
#include "dtensor/tensor/op.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/core/status.h"
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

IndexSet OpCall::OperandIndices(int i, int dim) const {
  return Indices(context, decision.assignment.operands[i], decision.operands[i]->shape, dim);
}

IndexSet GradCall::OperandIndices(int i, int dim) const {
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

int64_t CountShards(const Decision& decision, absl::string_view letters) {
  int64_t count = 1;
  for (int axis : AxesOfLetters(decision, letters)) {
    count *= decision.operands[0]->mesh().axis_size(axis);
  }
  return count;
}

// For OpCall and GradCall.
template <typename Call>
absl::StatusOr<Tensor> Gather(const Call& call, absl::string_view letters, const Tensor& local) {
  Context& context = call.context;
  const DeviceMesh& mesh = call.decision.operands[0]->mesh();
  const int64_t count = CountShards(call.decision, letters);
  Dims one(local.shape().begin(), local.shape().end()), all = one;
  one.insert(one.begin(), 1);
  all.insert(all.begin(), count);
  DT_ASSIGN_OR_RETURN(const Tensor mine, local.Reshape(one));
  if (count == 1) return mine;
  LayoutFactor shards;
  for (int axis : AxesOfLetters(call.decision, letters)) shards.splits.push_back({axis, false});
  std::vector<DimLayout> dims(all.size());
  dims[0].push_back(std::move(shards));
  DT_ASSIGN_OR_RETURN(const Layout from, Layout::Create(mesh, dims));
  DT_ASSIGN_OR_RETURN(const SpecPtr from_spec, context.Intern(from, all, local.dtype()));
  DT_ASSIGN_OR_RETURN(
      const SpecPtr to_spec,
      context.Intern(Layout::Replicated(mesh, static_cast<int>(all.size())), all, local.dtype()));
  RedistributionOptions options = context.redistribution_options();
  options.max_extra_bytes = -1;
  DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(from_spec, to_spec, &options));
  return ExecutePlan(*plan, mine, context.communicator(),
                     {call.decision.op->name, call.lineage, {}});
}

}  // namespace

int64_t OpCall::NumShards(absl::string_view letters) const {
  return CountShards(decision, letters);
}
int64_t GradCall::NumShards(absl::string_view letters) const {
  return CountShards(decision, letters);
}

absl::StatusOr<Tensor> OpCall::GatherShards(absl::string_view letters, const Tensor& local) const {
  return Gather(*this, letters, local);
}
absl::StatusOr<Tensor> GradCall::GatherShards(absl::string_view letters,
                                              const Tensor& local) const {
  return Gather(*this, letters, local);
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
