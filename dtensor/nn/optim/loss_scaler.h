// LossScaler: training in f16 with a scaled loss, so that small gradients do not vanish. The factor
// is adapted during training, as in torch.amp.GradScaler (Micikevicius et al., arXiv:1710.03740).
//
//   DT_RETURN_IF_ERROR(Backward(scaler.Scale(loss)));
//   DT_RETURN_IF_ERROR(ReduceGradients(adamw.parameters()));
//   DT_ASSIGN_OR_RETURN(auto result, scaler.Step(adamw, lr, /*max_norm=*/1.0));
//   scaler.Update();  // when each optimizer has made its step
//   adamw.ClearGradients();
#ifndef DTENSOR_NN_OPTIM_LOSS_SCALER_H_
#define DTENSOR_NN_OPTIM_LOSS_SCALER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;     // after growth_interval steps without an overflow
  double backoff_factor = 0.5;  // after each overflow
  int64_t growth_interval = 2000;
  // True: a step is skipped on all ranks of the world if gradients overflow on any of them; right
  // for pipeline stages, which share one loss. False: only the ranks of the model's own mesh decide
  // together; right for independent models on separate meshes, each with a scaler of its own.
  bool of_world = true;
};

// A value that every rank has a copy of. All copies have the same numbers, because these follow
// from what all ranks know of the gradients (LossScalerOptions::of_world).
class LossScaler {
 public:
  // Errors: kInvalidArgument unless the scales are finite and above 0, growth_factor >= 1,
  // backoff_factor in (0, 1] and growth_interval >= 1.
  static absl::StatusOr<LossScaler> Create(const LossScalerOptions& options = {});

  // loss * scale(). A bf16 or f16 loss is converted to f32 first, since the factor is too large for
  // f16.
  TensorOr Scale(const TensorOr& loss) const;

  struct StepResult {
    bool stepped = true;  // false: gradients overflowed, nothing was written
    // The norm of the gradients without the scale: ClipResult::norm. Undefined on a rank that holds
    // no gradients.
    DistributedTensor norm = {};
  };
  // Makes a step with the gradients divided by scale(), clipped to `max_norm` if that is above 0
  // (ClipByGlobalNorm). If any element of any rank's gradient is infinite or NaN, or their norm in
  // f32 is, no rank makes the step. scale() does not change yet, because another optimizer of the
  // same loss needs it, too. Reads the norm: the host waits for the gradients. Collective; over the
  // world if of_world is set and the parameters lie on a part of it: a rank that holds none of its
  // optimizer's parameters takes part, and writes nothing. On meta, which has no numbers, nothing
  // overflows. Errors: kFailedPrecondition for an optimizer that has already made its step since
  // the last Update(); those of ClipByGlobalNorm and Optimizer::Step.
  absl::StatusOr<StepResult> Step(Optimizer& optimizer, double lr, double max_norm = 0);
  // Sets scale() for the next loss, according to all steps since the last Update(). Call it once
  // all optimizers have made their step; without any step it does nothing.
  void Update();

  // What a checkpoint keeps; read it after an Update().
  struct State {
    double scale = 65536;
    int64_t good_steps = 0;  // since the scale has changed
    friend bool operator==(const State&, const State&) = default;
  };
  double scale() const { return state_.scale; }
  const State& state() const { return state_; }
  // Forgets the steps since the last Update(). Errors: kInvalidArgument for a scale that is not
  // finite and above 0, or negative steps.
  absl::Status set_state(const State& state);

 private:
  explicit LossScaler(const LossScalerOptions& options)
      : options_(options), state_{options.initial_scale, 0} {}
  absl::StatusOr<StepResult> TryStep(Optimizer& optimizer, double lr, double max_norm) const;
  // Whether this rank's gradients are finite, and those of the ranks that decide together with it.
  absl::StatusOr<bool> AllAre(bool finite, const DistributedTensor& parameter) const;

  LossScalerOptions options_;
  State state_;
  // Since the last Update(): the optimizers that have made a step, by their first parameter, and
  // whether any overflowed.
  std::vector<const TensorImpl*> stepped_;
  bool overflow_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_LOSS_SCALER_H_
