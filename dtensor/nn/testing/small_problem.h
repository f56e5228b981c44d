// For the tests of optimizers: parameters and gradients of known values on many layouts.
#ifndef DTENSOR_NN_TESTING_SMALL_PROBLEM_H_
#define DTENSOR_NN_TESTING_SMALL_PROBLEM_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/layout.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {

// A mesh, and the placements of a matrix on it. A vector is placed as the matrix's rows are.
struct SmallPlace {
  std::string mesh;
  Placements placements;
  std::string ToString() const { return absl::StrCat(mesh, dtensor::ToString(placements)); }
};
// On the last one some shards are empty.
inline std::vector<SmallPlace> SmallPlaces() {
  return {{"tp=1", {Replicate()}},
          {"tp=2", {Shard(0)}},
          {"tp=2", {Replicate()}},
          {"dp=2,tp=2", {Replicate(), Shard(1)}},
          {"dp=2,tp=2", {Shard(0), Shard(1)}},
          {"dp=2,tp=2", {Shard(0), Shard(0)}},
          {"tp=7", {Shard(0)}}};
}

// Numbers between -2 and 2 without a visible pattern.
inline std::vector<double> SomeValues(size_t n, int seed) {
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = 2 * std::sin(1.7 * static_cast<double>(i) + 5.3 * seed);
  return values;
}

// An axis that would shard a dimension which `shape` lacks replicates instead.
inline absl::StatusOr<Layout> SmallLayout(const SmallPlace& place,
                                          absl::Span<const int64_t> shape) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  Placements placements;
  for (const Placement& placement : place.placements) {
    const bool fits = !(placement == Shard(1)) || shape.size() > 1;
    placements.push_back(fits ? placement : Replicate());
  }
  return Layout::FromPlacements(mesh, placements, shape);
}

inline TensorOr SmallTensor(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                            DType dtype, const std::vector<double>& values) {
  const NoGrad no_grad(context);
  return Cast(Distribute<double>(context, layout, shape, values), dtype);
}

inline TensorOr SmallParameter(Context& context, const SmallPlace& place,
                               absl::Span<const int64_t> shape, DType dtype,
                               const std::vector<double>& values) {
  DT_ASSIGN_OR_RETURN(const Layout layout, SmallLayout(place, shape));
  DT_ASSIGN_OR_RETURN(DistributedTensor tensor, SmallTensor(context, layout, shape, dtype, values));
  DT_RETURN_IF_ERROR(tensor.set_requires_grad(true));
  return tensor;
}

// Adds `values` to the parameter's gradient.
inline absl::Status AddSmallGradient(const DistributedTensor& parameter,
                                     const std::vector<double>& values) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor gradient,
                      SmallTensor(parameter.context(), parameter.layout(), parameter.shape(),
                                  parameter.dtype(), values));
  DT_RETURN_IF_ERROR(Backward(parameter, {.gradient = gradient}));
  return ReduceGradients({parameter});
}

inline absl::StatusOr<std::vector<double>> SmallValues(const DistributedTensor& tensor) {
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
  return ToGlobal<double>(wide);
}

// A weight [4, 3] on 2x2 ranks. Gradient(scale) makes its gradient `scale * weight`, of the loss
// 0.5 * scale * sum(w^2).
struct OneWeight {
  DistributedTensor weight;

  static absl::StatusOr<OneWeight> Make(Context& context, absl::Span<const Placement> placements) {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
    std::vector<double> values(12);
    for (int i = 0; i < 12; ++i) values[i] = 0.25 * (i - 5);
    OneWeight made;
    DT_ASSIGN_OR_RETURN(made.weight, Distribute<double>(context, mesh, placements, {4, 3}, values));
    DT_RETURN_IF_ERROR(made.weight.set_requires_grad(true));
    return made;
  }
  absl::Status Gradient(double scale) const {
    return Backward(Scale(Sum(Mul(weight, weight), {0, 1}), 0.5 * scale));
  }
};

// Runs fn on the ranks of the place.
inline absl::Status RunAt(const SmallPlace& place,
                          const std::function<absl::Status(Context&)>& fn) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  return RunRanks(mesh.size(), fn);
}

}  // namespace dtensor

#endif  // DTENSOR_NN_TESTING_SMALL_PROBLEM_H_
