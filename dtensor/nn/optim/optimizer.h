// Optimizer: what AdamW (adamw.h) and Sgd (sgd.h) have in common: groups of parameters, steps in
// place, and states that live where their parameters live.
//
//   DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model.Parameters(), {.weight_decay = 0.1}));
//   for (...) {
//     DT_RETURN_IF_ERROR(Backward(loss));
//     DT_RETURN_IF_ERROR(ReduceGradients(adamw.parameters()));
//     DT_ASSIGN_OR_RETURN(ClipResult clip, ClipByGlobalNorm(adamw.parameters(), 1.0));  // clip.h
//     DT_RETURN_IF_ERROR(adamw.Step(schedule.At(step), clip.scale));            // lr_schedule.h
//     adamw.ClearGradients();
//   }
#ifndef DTENSOR_NN_OPTIM_OPTIMIZER_H_
#define DTENSOR_NN_OPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Parameters with options of their own. Groups of one optimizer do not overlap.
template <typename Options>
struct ParameterGroup {
  std::vector<DistributedTensor> parameters;
  Options options = {};
  double lr_scale = 1;  // times the learning rate of each step
};

// What an optimizer keeps of one parameter, by name (adamw.h, sgd.h), and
//   "step"    how many steps the parameter has made: a replicated i64 scalar
//   "master"  f32: the parameter as it was before it was rounded, with options.master_weights. Each
//             step rounds it into the parameter, which no other optimizer steps then
// All but "step" have the parameter's shape and layout, and are f32 (f64 for f64).
using OptimizerState = std::map<std::string, DistributedTensor>;

// What any optimizer's Create refuses. Errors: kInvalidArgument for an option out of its range, a
// tensor that is undefined, listed twice, in one group or in two, of another Context than the
// first, that is no floating leaf that requires gradients, or is Partial; kFailedPrecondition for
// one that BeforeWrite refuses, such as a broadcast, in whose local data several elements have one
// place in memory (what local data is like, one rank may know alone: return the error, so that
// ranks which wait for this one get it); failures.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One step in place: gradients times `grad_scale`, a replicated scalar, f32 (f64 for f64
  // parameters), or undefined for 1. Parameters without a gradient stay, and so do their states. No
  // communication. Local data of any strides will do; what is not row-major is copied on the way.
  // Errors, before anything is written: kFailedPrecondition when a gradient is
  // Partial or lies elsewhere than its parameter (call ReduceGradients); kInvalidArgument for a
  // scale of another type, shape, layout or Context than a parameter that has a gradient needs, or
  // of a mesh that lacks this rank. Then failures.
  absl::Status Step(double lr, const DistributedTensor& grad_scale = {});
  void ClearGradients();

  // Those of all groups, in order.
  absl::Span<const DistributedTensor> parameters() const { return parameters_; }

  // The optimizer's own tensors: the next step changes them. All ranks call it alike. Errors:
  // kInvalidArgument for what is no parameter of this optimizer; failures.
  absl::StatusOr<OptimizerState> State(const DistributedTensor& parameter) const;
  // Takes the values of `state`, which has all names that State() has and no others, wherever they
  // lie: they are redistributed, so the call is collective. All or none. Errors: kInvalidArgument,
  // naming the tensor, for what is missing or unknown, for another shape, type or Context, and for
  // a negative step; kFailedPrecondition on meta, where no step can be read; those of Redistribute;
  // failures.
  absl::Status SetState(const DistributedTensor& parameter, const OptimizerState& state);

 protected:
  explicit Optimizer(const char* name) : name_(name) {}
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;

  // One group, for Init().
  struct Group {
    absl::Span<const DistributedTensor> parameters;
    double lr_scale = 1;
    bool master_weights = false;
    std::vector<const char*> states;  // names; they begin as zeros
  };
  // To be called once. Errors: see above.
  absl::Status Init(absl::Span<const Group> groups);

  // One parameter's step, on local tensors that are row-major.
  struct Update {
    size_t index = 0;                                // of the parameter, among parameters()
    double lr = 0;                                   // the group's
    int64_t step = 1;                                // of the parameter, from 1
    Tensor parameter, gradient, grad_scale, master;  // the last two may be undefined
    std::vector<Tensor> states;                      // as Group::states
  };
  virtual absl::Status Apply(const Update& update) = 0;

 private:
  struct Slot {
    double lr_scale = 1;
    int64_t step = 0;
    std::vector<const char*> names;  // the group's, and "master" if there is one
    std::vector<DistributedTensor> tensors;
    bool has_master() const;
  };
  absl::StatusOr<size_t> IndexOf(absl::string_view call, const DistributedTensor& parameter) const;
  absl::Status CheckScale(const DistributedTensor& scale, const DistributedTensor& parameter) const;
  absl::Status StepOne(size_t index, double lr, const DistributedTensor& grad_scale);
  // Apply, to tensors of any strides.
  absl::Status ApplyTo(const Tensor& parameter, const Tensor& gradient, Update& update);

  const char* name_;
  std::vector<DistributedTensor> parameters_;
  std::vector<Slot> slots_;  // of the parameters
  HashMap<const TensorImpl*, size_t> index_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_OPTIMIZER_H_
