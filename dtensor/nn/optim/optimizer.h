// Optimizer: what AdamW (adamw.h), Muon (muon.h) and Sgd (sgd.h) have in common: groups of
// parameters, in-place steps, and states with the layouts of their parameters.
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
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Parameters with options of their own. A parameter may be in one group only.
template <typename Options>
struct ParameterGroup {
  std::vector<DistributedTensor> parameters;
  Options options = {};
  double lr_scale = 1;  // times the learning rate of each step
};

// The state of one parameter, by name (adamw.h, sgd.h), and
//   "step"    how many steps the parameter has made: a replicated i64 scalar
//   "master"  with options.master_weights: the parameter in f32, before rounding. Each step rounds
//             it into the parameter; no other optimizer may step that parameter
// All but "step" have the parameter's shape and layout, and are f32 (f64 for f64 parameters).
using OptimizerState = std::map<std::string, DistributedTensor>;

// Errors of every optimizer's Create: kInvalidArgument for an option out of its range, and for a
// tensor that is undefined; that is listed twice, in one group or in two; that is of another
// Context than the first; that is not a floating-point leaf that requires gradients; or that is
// Partial. kFailedPrecondition for a tensor that BeforeWrite refuses, such as a broadcast, in whose
// local data several elements share one place in memory. (Only one rank may know what its local
// data is like: return the error, so that ranks which wait for this one get it.) Failures.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Makes one step in place, with gradients times `grad_scale`: a replicated scalar, f32 (f64 for
  // f64 parameters); undefined means 1. All ranks give the same lr, scale and options: if they do
  // not, the next collective that reads the parameter says so. Parameters without a gradient, and
  // their states, do not change. No communication, except for Muon's. Local data may have any
  // strides; it is copied if it is not row-major. Errors, before anything is written:
  // kFailedPrecondition if a gradient is Partial or has another layout than its parameter (call
  // ReduceGradients); kInvalidArgument for a learning rate that is not finite, and for a scale
  // whose type, shape, layout or Context does not fit a parameter that has a gradient, or whose
  // mesh lacks one of the parameter's ranks. Then failures. A rank that is not on a parameter's
  // mesh only counts the step, and notes the write (BeforeWrite).
  absl::Status Step(double lr, const DistributedTensor& grad_scale = {});
  void ClearGradients();

  // The parameters of all groups, in order.
  absl::Span<const DistributedTensor> parameters() const { return parameters_; }

  // The optimizer's own tensors: the next step changes them. All ranks must make this call. Errors:
  // kInvalidArgument for a tensor that is not a parameter of this optimizer; failures.
  absl::StatusOr<OptimizerState> State(const DistributedTensor& parameter) const;
  // Takes the values of `state`, which must have exactly the names that State() has. They may have
  // any layout: they are redistributed, so the call is collective. Sets all of them or none.
  // Errors: kInvalidArgument, naming the tensor, for a name that is missing or unknown, for another
  // shape, type or Context, and for a negative step; kFailedPrecondition on meta, where no step can
  // be read; those of Redistribute; failures.
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
    std::vector<const char*> states;   // names; they begin as zeros
    std::vector<double> options = {};  // numbers that all ranks have alike
  };
  // Must be called once. Errors: see above.
  absl::Status Init(absl::Span<const Group> groups);

  // Called in each step, before the first Apply, with the numbers of the parameters that have
  // gradients, ascending: for what needs more than one rank's part of them. It may communicate.
  virtual absl::Status Prepare(absl::Span<const size_t> indices,
                               const DistributedTensor& grad_scale);
  // State number `i` of Group::states.
  const DistributedTensor& state(size_t index, size_t i) const { return slots_[index].tensors[i]; }

  // One parameter's step, on row-major local tensors.
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
    Digest options;  // the group's
    int64_t step = 0;
    std::vector<const char*> names;  // the group's, and "master" if there is one
    std::vector<DistributedTensor> tensors;
    bool has_master() const;
  };
  absl::StatusOr<size_t> IndexOf(absl::string_view call, const DistributedTensor& parameter) const;
  absl::Status CheckScale(const DistributedTensor& scale, const DistributedTensor& parameter) const;
  absl::Status StepOne(size_t index, double lr, const DistributedTensor& grad_scale);
  // Calls Apply for tensors of any strides.
  absl::Status ApplyTo(const Tensor& parameter, const Tensor& gradient, Update& update);

  const char* name_;
  std::vector<DistributedTensor> parameters_;
  std::vector<Slot> slots_;  // of the parameters
  HashMap<const TensorImpl*, size_t> index_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_OPTIMIZER_H_
