// Windows: a kernel for each run of neighbouring windows, on what it reaches of the dimension.
#include "dtensor/ops/windows.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/dim_runs.h"
#include "dtensor/ops/halo.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/windows.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// "d0 o d2 -> d0 o d2 k!", or "d0 (o s!) d2 -> d0 o d2 k!".
absl::StatusOr<RuleText> WindowsText(absl::Span<const Dims> shapes, AttrsView view) {
  const auto& attrs = view.as<WindowsAttrs>();
  std::vector<std::string> x, y;
  for (int d = 0; d < static_cast<int>(shapes[0].size()); ++d) {
    const bool is_dim = d == attrs.dim;
    x.push_back(!is_dim ? Letter(d) : attrs.step == 1 ? "o" : "(o s!)");
    y.push_back(is_dim ? "o" : Letter(d));
  }
  y.insert(y.begin() + attrs.at, "k!");
  RuleText out{absl::StrCat(absl::StrJoin(x, " "), " -> ", absl::StrJoin(y, " ")),
               {{"k", attrs.size}}};
  if (attrs.step > 1) out.sizes.push_back({"s", attrs.step});
  return out;
}

WindowReach ReachOf(const WindowsAttrs& attrs) {
  return {attrs.step, attrs.before, (attrs.size - 1) * attrs.dilation + 1, attrs.limit};
}

absl::StatusOr<std::shared_ptr<const OpState>> WindowsPrepare(const OpStateRequest& request) {
  const auto& attrs = request.attrs.as<WindowsAttrs>();
  return MakeHalo(request, attrs.dim, "o", ReachOf(attrs));
}

absl::StatusOr<LayoutChoice> WindowsLayouts(const LayoutChoiceRequest& request) {
  const auto& attrs = request.attrs.as<WindowsAttrs>();
  return InFewRuns(request, attrs.dim, attrs.step);
}

// A shard of x, and the result, as the kernels see them: dimensions around the windows' joined.
struct Joined {
  Joined(const WindowsAttrs& attrs, const Dims& x)
      : outer(NumElements(absl::MakeConstSpan(x).first(attrs.dim))),
        inner(NumElements(absl::MakeConstSpan(x).subspan(attrs.dim + 1, attrs.at - attrs.dim - 1))),
        row(NumElements(absl::MakeConstSpan(x).subspan(attrs.at))),
        held(x[attrs.dim]),
        size(attrs.size) {}

  absl::StatusOr<Tensor> Shard(const Tensor& x) const {
    return x.Reshape({outer, held, inner * row});
  }
  absl::StatusOr<Tensor> Rows(const Tensor& reached) const {
    const Dims strides = {reached.strides()[0], inner * row, row, 1};
    return reached.View({outer, reached.size(1), inner, row}, strides, 0);
  }
  absl::StatusOr<Tensor> Result(const Tensor& y, int64_t windows) const {
    return y.Reshape({outer, windows, inner, size, row});
  }
  int64_t outer, inner, row, held, size;
};

kernels::WindowSteps StepsOf(const WindowsAttrs& attrs, const WindowRun& run) {
  return {run.windows.first * attrs.step - attrs.before - run.begin, attrs.step, attrs.dilation};
}

absl::Status WindowsForward(const OpCall& call) {
  Device& device = call.device();
  const auto& attrs = call.attrs<WindowsAttrs>();
  DT_ASSIGN_OR_RETURN(const Tensor x, Contiguous(device, call.operands[0]));
  const Joined joined(attrs, x.shape());
  DT_ASSIGN_OR_RETURN(const Tensor shard, joined.Shard(x));
  DT_ASSIGN_OR_RETURN(const Tensor y,
                      joined.Result(call.results[0], call.results[0].size(attrs.dim)));
  DT_ASSIGN_OR_RETURN(const std::vector<Tensor> reached, GatherHalos(call, shard));
  const std::vector<WindowRun>& runs = HaloOf(call).mine().runs;
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto& [position, count, first] = runs[r].windows;
    const int64_t live = runs[r].live;
    DT_ASSIGN_OR_RETURN(const Tensor rows, joined.Rows(reached[r]));
    DT_RETURN_IF_ERROR(kernels::Windows(device, rows, StepsOf(attrs, runs[r]), attrs.value,
                                        y.Narrow(1, position, live)));
    DT_RETURN_IF_ERROR(
        kernels::Fill(device, y.Narrow(1, position + live, count - live), attrs.value));
  }
  return absl::OkStatus();
}

absl::Status WindowsBackward(const GradCall& call) {
  Device& device = call.device();
  const auto& attrs = call.attrs<WindowsAttrs>();
  DT_ASSIGN_OR_RETURN(const Tensor given, Contiguous(device, call.result_gradients[0]));
  const Joined joined(attrs, call.gradients[0].shape());
  DT_ASSIGN_OR_RETURN(const Tensor dx, joined.Shard(call.gradients[0]));
  DT_ASSIGN_OR_RETURN(const Tensor dy, joined.Result(given, given.size(attrs.dim)));
  const std::vector<WindowRun>& runs = HaloOf(call).mine().runs;
  const auto grad_of = [&](const WindowRun& run, const Tensor& to) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Tensor rows, joined.Rows(to));
    return kernels::WindowsGrad(device, dy.Narrow(1, run.windows.position, run.live),
                                StepsOf(attrs, run), rows);
  };
  const bool is_all = runs.size() == 1 && runs[0].end - runs[0].begin == joined.held;
  if (is_all && !HaloOf(call).moves) return grad_of(runs[0], dx);
  std::vector<Tensor> reached;
  for (const WindowRun& run : runs) {
    const int64_t shape[] = {dx.size(0), run.end - run.begin, dx.size(2)};
    DT_ASSIGN_OR_RETURN(Tensor to, Tensor::Empty(device, dx.dtype(), shape));
    DT_RETURN_IF_ERROR(grad_of(run, to));
    reached.push_back(std::move(to));
  }
  return ScatterHalos(call, reached, dx);
}

// With zeros outside of x. Any reduction of zeros is zero, so Partial operands are allowed.
const OpDef kWindowsOp = {
    .name = "Windows",
    .describe = WindowsText,
    .linearity = RuleLinearity::kView,
    .attrs = &kAttrsType<WindowsAttrs>,
    .every_device = {WindowsForward, WindowsBackward},
    .choose_layouts = WindowsLayouts,
    .prepare = WindowsPrepare,
};

// With another number, which would count once for each term.
const OpDef kWindowsWithOp = {
    .name = "Windows",
    .describe = WindowsText,
    .attrs = &kAttrsType<WindowsAttrs>,
    .every_device = {WindowsForward, WindowsBackward},
    .choose_layouts = WindowsLayouts,
    .prepare = WindowsPrepare,
};

absl::Status CheckOptions(const DistributedTensor& x, int dim, const WindowOptions& options) {
  const auto is_size = [](int64_t number) { return 1 <= number && number <= kMaxElements; };
  if (!is_size(options.size) || !is_size(options.step) || !is_size(options.dilation) ||
      options.before < -kMaxElements || options.before > kMaxElements ||
      options.size - 1 > kMaxElements / options.dilation || options.limit < 0) {
    return InvalidArgument({"Windows: size ", absl::StrCat(options.size), ", step ",
                            absl::StrCat(options.step), ", dilation ",
                            absl::StrCat(options.dilation), ", before ",
                            absl::StrCat(options.before), ", limit ", absl::StrCat(options.limit),
                            " for ", x.ToString(), "; give a size, a step and a dilation of at ",
                            "least 1, distances of 2^56 at most, and no negative limit"});
  }
  if (x.shape()[dim] % options.step == 0) return absl::OkStatus();
  return InvalidArgument({"Windows: step ", absl::StrCat(options.step),
                          " does not divide dimension ", absl::StrCat(dim), " of ", x.ToString(),
                          "; Pad or Slice it first"});
}

}  // namespace

absl::Span<const OpDef* const> WindowsOps() {
  static constexpr const OpDef* kOps[] = {&kWindowsOp, &kWindowsWithOp};
  return kOps;
}

}  // namespace internal

TensorOr Windows(const TensorOr& x, int dim, int at, const WindowOptions& options) {
  DT_RETURN_IF_ERROR(internal::CheckDefined("Windows", x));
  DT_ASSIGN_OR_RETURN(const int d, internal::CheckedDim("Windows", x->spec(), dim));
  DT_RETURN_IF_ERROR(internal::CheckOptions(*x, d, options));
  const int ndim = x->spec().ndim(), place = at < 0 ? at + ndim + 1 : at;
  if (place <= d || place > ndim) {
    return InvalidArgument({"Windows: the new dimension cannot be number ", absl::StrCat(at),
                            " of the result for windows of dimension ", absl::StrCat(d), " of ",
                            x->ToString(), "; give a number from ", absl::StrCat(d + 1), " to ",
                            absl::StrCat(ndim), ", and Permute afterwards"});
  }
  const OpDef& op = options.value == 0 ? internal::kWindowsOp : internal::kWindowsWithOp;
  return Dispatch(op, {&x},
                  internal::WindowsAttrs{d, place, options.size, options.step, options.before,
                                         options.dilation, options.limit, options.value});
}

}  // namespace dtensor
