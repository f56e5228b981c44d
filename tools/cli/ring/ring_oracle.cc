#include "dtensor/tools/cli/ring/ring_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::cli {
namespace {

// [batch, heads, seq, head_dim] as kernels see it: [batch, seq, heads, head_dim].
Tensor ForKernel(const Tensor& tensor) { return tensor.Transpose(1, 2); }

absl::StatusOr<Tensor> Converted(Device& device, const Tensor& tensor, DType dtype) {
  DT_ASSIGN_OR_RETURN(Tensor converted, Tensor::Empty(device, dtype, tensor.shape()));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, tensor, converted));
  return converted;
}

Wide ToWide(const Tensor& tensor) {
  return kernels::VisitFloat(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Wide wide(tensor.numel());
    std::transform(tensor.data<T>(), tensor.data<T>() + tensor.numel(), wide.begin(),
                   [](T x) { return kernels::Cast<double>(x); });
    return wide;
  });
}

// Of the values of a float tensor.
long double Rms(absl::Span<const long double> values) {
  long double sum = 0;
  int64_t finite = 0;
  for (const long double x : values) {
    if (!std::isfinite(x)) continue;
    sum += x * x;
    ++finite;
  }
  return finite == 0 ? 0 : std::sqrt(sum / static_cast<long double>(finite));
}

// Between floats. Of few elements, two roundings of lse to f32 may well differ by more than 1.4.
constexpr double kSpacing = 0x1p-23;

double FixedLimit(DType dtype) { return dtype == DType::kF64 ? 1e-13 : 3e-6; }

// The sizes of the terms that each result is a sum of: o adds values, dv gradients of o; a score's
// gradient is a difference of two products of these.
std::array<long double, 5> TermSizes(const RingInputs& inputs) {
  const long double q = Rms(ToWide(inputs.q)), k = Rms(ToWide(inputs.k));
  const long double v = Rms(ToWide(inputs.v)), dout = Rms(ToWide(inputs.dout));
  return {v, 1, dout * v * k, dout * v * q, dout};
}

}  // namespace

double RingScale(const RingProblem& problem) {
  return 1 / std::sqrt(static_cast<double>(problem.head_dim));
}

absl::StatusOr<RingOutputs> RunOnOneRank(Device& device, const RingProblem& problem,
                                         const RingInputs& inputs, DType dtype) {
  RingProblem typed = problem;
  typed.dtype = dtype;
  DT_ASSIGN_OR_RETURN(RingOutputs outputs, EmptyOutputs(device, typed));
  DT_ASSIGN_OR_RETURN(const Tensor q, Converted(device, inputs.q, dtype));
  DT_ASSIGN_OR_RETURN(const Tensor k, Converted(device, inputs.k, dtype));
  DT_ASSIGN_OR_RETURN(const Tensor v, Converted(device, inputs.v, dtype));
  DT_ASSIGN_OR_RETURN(const Tensor dout, Converted(device, inputs.dout, dtype));
  DT_ASSIGN_OR_RETURN(const Tensor delta,
                      Tensor::Empty(device, outputs.lse.dtype(), outputs.lse.shape()));
  const kernels::AttentionStep step = {.scale = RingScale(problem),
                                       .mask = problem.mask,
                                       .q_positions = IndexSet::Interval(0, problem.q_length),
                                       .k_positions = IndexSet::Interval(0, problem.kv_length)};
  DT_RETURN_IF_ERROR(kernels::Attention(device, ForKernel(q), ForKernel(k), ForKernel(v), step,
                                        nullptr, ForKernel(outputs.o), outputs.lse));
  DT_RETURN_IF_ERROR(kernels::AttentionDelta(device, ForKernel(outputs.o), ForKernel(dout), delta));
  DT_RETURN_IF_ERROR(kernels::AttentionGrad(
      device, ForKernel(q), ForKernel(k), ForKernel(v), outputs.lse, delta, ForKernel(dout), step,
      ForKernel(outputs.dq), ForKernel(outputs.dk), ForKernel(outputs.dv)));
  DT_RETURN_IF_ERROR(device.Synchronize());
  return outputs;
}

absl::StatusOr<RingTruth> Oracle(Device& device, const RingProblem& problem,
                                 const RingInputs& inputs) {
  if (problem.dtype == DType::kF64) return PlainAttention(problem, inputs);
  DT_ASSIGN_OR_RETURN(const RingOutputs wide, RunOnOneRank(device, problem, inputs, DType::kF64));
  return RingTruth{ToWide(wide.o), ToWide(wide.lse), ToWide(wide.dq), ToWide(wide.dk),
                   ToWide(wide.dv)};
}

double RelativeError(const Tensor& got, absl::Span<const long double> want, long double term_size) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const Wide values = ToWide(got);
  Wide differences;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isfinite(want[i])) {
      differences.push_back(values[i] - want[i]);
      if (!std::isfinite(differences.back())) return kInfinite;
    } else if (values[i] != want[i]) {
      return kInfinite;
    }
  }
  const long double error = Rms(differences), size = Rms(want);
  if (error == 0) return 0;
  return static_cast<double>(error / (size < 1e-9L * term_size ? term_size : size));
}

double RingError::ratio() const { return error == *at_one ? 1 : error / *at_one; }

absl::StatusOr<std::array<RingError, 5>> Compare(Device& device, const RingProblem& problem,
                                                 const RingInputs& inputs,
                                                 const RingOutputs& outputs) {
  DT_ASSIGN_OR_RETURN(const RingTruth truth, Oracle(device, problem, inputs));
  const std::array<const Wide*, 5> wants = {&truth.o, &truth.lse, &truth.dq, &truth.dk, &truth.dv};
  const std::array<long double, 5> sizes = TermSizes(inputs);
  const auto got = outputs.Named();
  std::array<RingError, 5> errors;
  for (size_t i = 0; i < errors.size(); ++i) {
    errors[i] = {got[i].first, RelativeError(got[i].second, *wants[i], sizes[i]),
                 FixedLimit(problem.dtype)};
  }
  if (SizeOf(problem.dtype) != 2) return errors;
  DT_ASSIGN_OR_RETURN(const RingOutputs one, RunOnOneRank(device, problem, inputs, problem.dtype));
  const auto at_one = one.Named();
  for (size_t i = 0; i < errors.size(); ++i) {
    errors[i].at_one = RelativeError(at_one[i].second, *wants[i], sizes[i]);
    errors[i].limit = std::max(1.4 * *errors[i].at_one, kSpacing);
  }
  return errors;
}

}  // namespace dtensor::cli
