#include "dtensor/parallel_plans/parallel_linear.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status CheckSizes(absl::string_view who, int64_t in, int64_t out) {
  if (in >= 1 && out >= 1) return absl::OkStatus();
  return InvalidArgument({who, ": needs at least one feature, got in ", absl::StrCat(in),
                          " and out ", absl::StrCat(out)});
}

ParameterPtr NewParameter(Dims shape, const std::vector<double>& values, double stddev,
                          DType dtype) {
  ParameterPtr parameter =
      Parameter::New(std::move(shape), values.empty() ? ParameterInit::Normal(stddev)
                                                      : ParameterInit::Values(values));
  parameter->dtype = dtype;
  return parameter;
}

ParameterPtr NewWeight(int64_t in, int64_t out, const ParallelLinearOptions& options) {
  return NewParameter({out, in}, options.master_weight, options.stddev, options.dtype);
}

ParameterPtr NewBias(int64_t out, bool bias, const ParallelLinearOptions& options) {
  return bias ? NewParameter({out}, options.master_bias, 0, options.dtype) : nullptr;
}

LinearLayer::Bias UseOf(const ParallelLinearOptions& options) {
  return options.return_bias ? LinearLayer::Bias::kReturned : LinearLayer::Bias::kAdded;
}

// Shards the layer by a plan of one line.
absl::Status ApplyTo(LinearLayer& layer, absl::string_view who, const ParallelStyle& style,
                     Context& context, const DeviceMesh& mesh,
                     const ParallelLinearOptions& options) {
  const absl::Status status =
      ParallelPlan({{"", style}})
          .Apply(layer, context, mesh,
                 {.seed = options.seed, .allow_uneven = options.allow_uneven});
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(who, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColumnParallelLinear>> ColumnParallelLinear::Create(
    Context& context, const DeviceMesh& mesh, int64_t in, int64_t out, bool bias,
    bool gather_output, const ParallelLinearOptions& options) {
  constexpr absl::string_view kName = "ColumnParallelLinear";
  DT_RETURN_IF_ERROR(CheckSizes(kName, in, out));
  auto layer = absl::WrapUnique(new ColumnParallelLinear(
      NewWeight(in, out, options), NewBias(out, bias, options), UseOf(options)));
  const std::optional<Placement> output =
      gather_output ? std::optional<Placement>(Replicate()) : std::nullopt;
  DT_RETURN_IF_ERROR(ApplyTo(*layer, kName, Colwise(options.axis, output), context, mesh, options));
  return layer;
}

absl::StatusOr<std::unique_ptr<RowParallelLinear>> RowParallelLinear::Create(
    Context& context, const DeviceMesh& mesh, int64_t in, int64_t out, bool bias,
    bool input_is_parallel, const ParallelLinearOptions& options) {
  constexpr absl::string_view kName = "RowParallelLinear";
  DT_RETURN_IF_ERROR(CheckSizes(kName, in, out));
  auto layer = absl::WrapUnique(new RowParallelLinear(NewWeight(in, out, options),
                                                      NewBias(out, bias, options), UseOf(options)));
  const std::optional<Placement> input =
      input_is_parallel ? std::nullopt : std::optional<Placement>(Shard(-1));
  DT_RETURN_IF_ERROR(
      ApplyTo(*layer, kName, Rowwise(options.axis, options.output, input), context, mesh, options));
  if (input_is_parallel) {
    DT_ASSIGN_OR_RETURN(const AxisList axes, mesh.Find(options.axis));
    for (const int axis : axes) {
      if (mesh.axis_size(axis) > 1) layer->input_axes_.push_back(axis);
    }
  }
  return layer;
}

absl::Status RowParallelLinear::CheckInput(const DistributedTensor& x) const {
  const AxisList axes = x.ndim() == 0 ? AxisList() : AxesOf(x.layout().dim(x.ndim() - 1));
  for (const int axis : input_axes_) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    return InvalidArgument({"RowParallelLinear: the operand ", x.spec().ToString(),
                            " does not come with its features split on \"",
                            weight()->tensor.mesh().axis_name(axis),
                            "\"; make the layer with input_is_parallel = false, which splits it"});
  }
  return absl::OkStatus();
}

TensorsOr RowParallelLinear::ForwardAll(absl::Span<const DistributedTensor> operands) {
  DT_RETURN_IF_ERROR(CheckInput(operands[0]));
  return LinearLayer::ForwardAll(operands);
}

}  // namespace dtensor
