#include "dtensor/tools/cli/ring/ring_errors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/testing/ring_reference.h"

namespace dtensor::cli {
namespace {

// [batch, heads, seq, head_dim] as kernels see it: [batch, seq, heads, head_dim].
Tensor ForKernel(const Tensor& tensor) { return tensor.Transpose(1, 2); }

absl::StatusOr<Tensor> Converted(Device& device, const Tensor& tensor, DType dtype) {
  DT_ASSIGN_OR_RETURN(Tensor converted, Tensor::Empty(device, dtype, tensor.shape()));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, tensor, converted));
  return converted;
}

// The inputs, row-major in the order of dimensions of the reference, which is that of the kernels.
absl::StatusOr<AttentionInputs> Values(const RingInputs& inputs) {
  AttentionInputs values;
  DT_ASSIGN_OR_RETURN(values.q, ToDoubles(ForKernel(inputs.q)));
  DT_ASSIGN_OR_RETURN(values.k, ToDoubles(ForKernel(inputs.k)));
  DT_ASSIGN_OR_RETURN(values.v, ToDoubles(ForKernel(inputs.v)));
  DT_ASSIGN_OR_RETURN(values.dout, ToDoubles(ForKernel(inputs.dout)));
  return values;
}
absl::StatusOr<AttentionDoubles> Values(const RingOutputs& outputs) {
  AttentionDoubles values;
  DT_ASSIGN_OR_RETURN(values.o, ToDoubles(ForKernel(outputs.o)));
  DT_ASSIGN_OR_RETURN(values.lse, ToDoubles(outputs.lse));
  DT_ASSIGN_OR_RETURN(values.dq, ToDoubles(ForKernel(outputs.dq)));
  DT_ASSIGN_OR_RETURN(values.dk, ToDoubles(ForKernel(outputs.dk)));
  DT_ASSIGN_OR_RETURN(values.dv, ToDoubles(ForKernel(outputs.dv)));
  return values;
}

// The spacing of floats. With few elements, two roundings of lse to f32 may well differ by more
// than 1.4.
constexpr double kSpacing = 0x1p-23;

double FixedLimit(DType dtype) { return dtype == DType::kF64 ? 1e-13 : 3e-6; }

// The sizes of the terms that each result sums: o sums values, and dv gradients of o; the gradient
// of a score is a difference of two products of these.
absl::StatusOr<std::array<long double, 5>> TermSizes(const RingInputs& inputs) {
  const auto size = [](const Tensor& tensor) -> absl::StatusOr<long double> {
    DT_ASSIGN_OR_RETURN(const Doubles values, ToDoubles(tensor));
    return Rms(values);
  };
  DT_ASSIGN_OR_RETURN(const long double q, size(inputs.q));
  DT_ASSIGN_OR_RETURN(const long double k, size(inputs.k));
  DT_ASSIGN_OR_RETURN(const long double v, size(inputs.v));
  DT_ASSIGN_OR_RETURN(const long double dout, size(inputs.dout));
  return std::array<long double, 5>{v, 1, dout * v * k, dout * v * q, dout};
}

template <typename T>
absl::StatusOr<std::array<double, 5>> ErrorsOf(const RingOutputs& outputs,
                                               const AttentionValues<T>& want,
                                               const std::array<long double, 5>& term_sizes) {
  DT_ASSIGN_OR_RETURN(const AttentionDoubles values, Values(outputs));
  return RelativeErrors(values, want, term_sizes);
}

template <typename T>
absl::StatusOr<std::array<RingError, 5>> CompareWith(const AttentionValues<T>& want, Device& device,
                                                     const RingProblem& problem,
                                                     const RingInputs& inputs,
                                                     const RingOutputs& outputs,
                                                     const TellFraction& tell) {
  DT_ASSIGN_OR_RETURN(const auto sizes, TermSizes(inputs));
  DT_ASSIGN_OR_RETURN(const auto found, ErrorsOf(outputs, want, sizes));
  std::array<RingError, 5> errors;
  for (size_t i = 0; i < errors.size(); ++i) {
    errors[i] = {kAttentionValues[i], found[i], FixedLimit(problem.dtype)};
  }
  if (SizeOf(problem.dtype) != 2) return errors;
  DT_ASSIGN_OR_RETURN(const RingOutputs one,
                      RunOnOneRank(device, problem, inputs, problem.dtype, tell));
  DT_ASSIGN_OR_RETURN(const auto at_one, ErrorsOf(one, want, sizes));
  for (size_t i = 0; i < errors.size(); ++i) {
    errors[i].at_one = at_one[i];
    errors[i].limit = std::max(1.4 * at_one[i], kSpacing);
  }
  return errors;
}

// The kernels' results in f64. Their tensors are freed when it returns.
absl::StatusOr<AttentionDoubles> WideValues(Device& device, const RingProblem& problem,
                                            const RingInputs& inputs, const TellFraction& tell) {
  DT_ASSIGN_OR_RETURN(const RingOutputs wide,
                      RunOnOneRank(device, problem, inputs, DType::kF64, tell));
  return Values(wide);
}

// The copied values of the inputs are freed when it returns.
absl::StatusOr<AttentionReference> Reference(const RingProblem& problem, const RingInputs& inputs,
                                             const TellFraction& tell) {
  DT_ASSIGN_OR_RETURN(const AttentionInputs values, Values(inputs));
  const long double scale = 1 / std::sqrt(static_cast<long double>(problem.head_dim));
  return ReferenceAttention(ReferenceOf(problem, scale), values, tell);
}

// Converts the progress of a part of the work, which goes from `begin` to `end` of the whole.
TellFraction Between(double begin, double end, const TellFraction& tell) {
  if (!tell) return {};
  return [=](double done) { tell(begin + done * (end - begin)); };
}

// Tensors of all heads, in the kernels' order of dimensions, and the statistics of each query.
struct OneRank {
  Tensor q, k, v, dout, o, dq, dk, dv;
  Tensor lse, delta;
};

// Runs the queries of one key head. Heads share nothing.
absl::Status RunKeyHead(Device& device, const OneRank& all, const kernels::AttentionStep& step,
                        int64_t kv_head) {
  const int64_t group = all.q.size(2) / all.k.size(2);
  const auto queries = [&](const Tensor& x) { return x.Narrow(2, kv_head * group, group); };
  const auto keys = [&](const Tensor& x) { return x.Narrow(2, kv_head, 1); };
  const Tensor q = queries(all.q), k = keys(all.k), v = keys(all.v), o = queries(all.o);
  const Tensor dout = queries(all.dout), lse = all.lse.Narrow(1, kv_head * group, group);
  const Tensor delta = all.delta.Narrow(1, kv_head * group, group);
  DT_RETURN_IF_ERROR(kernels::Attention(device, q, k, v, step, nullptr, o, lse));
  DT_RETURN_IF_ERROR(kernels::AttentionDelta(device, o, dout, delta));
  DT_RETURN_IF_ERROR(kernels::AttentionGrad(device, q, k, v, lse, delta, dout, step,
                                            queries(all.dq), keys(all.dk), keys(all.dv)));
  return device.Synchronize();
}

}  // namespace

double RingScale(const RingProblem& problem) {
  return 1 / std::sqrt(static_cast<double>(problem.head_dim));
}

absl::StatusOr<RingOutputs> RunOnOneRank(Device& device, const RingProblem& problem,
                                         const RingInputs& inputs, DType dtype,
                                         const TellFraction& tell) {
  RingProblem typed = problem;
  typed.dtype = dtype;
  DT_ASSIGN_OR_RETURN(RingOutputs outputs, EmptyOutputs(device, typed));
  OneRank all = {.o = ForKernel(outputs.o),
                 .dq = ForKernel(outputs.dq),
                 .dk = ForKernel(outputs.dk),
                 .dv = ForKernel(outputs.dv),
                 .lse = outputs.lse};
  for (const auto& [to, from] :
       {std::pair(&all.q, &inputs.q), std::pair(&all.k, &inputs.k), std::pair(&all.v, &inputs.v),
        std::pair(&all.dout, &inputs.dout)}) {
    DT_ASSIGN_OR_RETURN(const Tensor converted, Converted(device, *from, dtype));
    *to = ForKernel(converted);
  }
  DT_ASSIGN_OR_RETURN(all.delta, Tensor::Empty(device, outputs.lse.dtype(), outputs.lse.shape()));
  const kernels::AttentionStep step = {.scale = RingScale(problem),
                                       .mask = problem.mask,
                                       .q_positions = IndexSet::Interval(0, problem.q_length),
                                       .k_positions = IndexSet::Interval(0, problem.kv_length)};
  for (int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
    DT_RETURN_IF_ERROR(RunKeyHead(device, all, step, kv_head));
    if (tell) tell(static_cast<double>(kv_head + 1) / static_cast<double>(problem.kv_heads));
  }
  return outputs;
}

double RingError::ratio() const { return error == *at_one ? 1 : error / *at_one; }

absl::StatusOr<std::array<RingError, 5>> Compare(Device& device, const RingProblem& problem,
                                                 const RingInputs& inputs,
                                                 const RingOutputs& outputs,
                                                 const TellFraction& tell) {
  if (problem.dtype == DType::kF64) {
    DT_ASSIGN_OR_RETURN(const AttentionReference want, Reference(problem, inputs, tell));
    return CompareWith(want, device, problem, inputs, outputs, {});
  }
  // 16-bit types are also run in their own type, which takes half as long.
  const double wide = SizeOf(problem.dtype) == 2 ? 2.0 / 3 : 1;
  DT_ASSIGN_OR_RETURN(const AttentionDoubles want,
                      WideValues(device, problem, inputs, Between(0, wide, tell)));
  return CompareWith(want, device, problem, inputs, outputs, Between(wide, 1, tell));
}

}  // namespace dtensor::cli
