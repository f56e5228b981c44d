// LossScaler: training in f16 with a loss that is scaled, so that small gradients do not vanish, by
// a factor that is found on the way, as torch.amp.GradScaler does (Micikevicius et al.,
// arXiv:1710.03740).
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

// A value: every rank has one, and all have the same numbers, for they follow from what all ranks
// know of the gradients (LossScalerOptions::of_world).
class LossScaler {
 public:
  // Errors: kInvalidArgument unless the scales are finite and above 0, growth_factor >= 1,
  // backoff_factor in (0, 1] and growth_interval >= 1.
  static absl::StatusOr<LossScaler> Create(const LossScalerOptions& options = {});

  // loss * scale(): a bf16 or f16 loss becomes f32 first, for the factor is too large for f16.
  TensorOr Scale(const TensorOr& loss) const;

  struct StepResult {
    bool stepped = true;  // false: gradients overflowed, nothing was written
    // Of the gradients without the scale: ClipResult::norm. Undefined on a rank that holds none.
    DistributedTensor norm = {};
  };
  // Steps with gradients divided by scale(), clipped to `max_norm` if that is above 0
  // (ClipByGlobalNorm), unless some element of some rank's gradient is infinite or NaN, or their
  // norm in f32 is. Then no rank steps. scale() stays as it is: another optimizer of the same loss
  // steps by it, too. Collective, over the world where parameters lie on a part of it and of_world
  // is set: a rank that holds nothing of its optimizer's parameters takes part, and writes nothing;
  // and reads the norm: the host waits for the gradients. On meta, which has no numbers, nothing
  // overflows. Errors: kFailedPrecondition for an optimizer that has made its step since
  // the last Update(); as ClipByGlobalNorm and Optimizer::Step.
  absl::StatusOr<StepResult> Step(Optimizer& optimizer, double lr, double max_norm = 0);
  // Sets scale() for the next loss, from what all steps since the last Update() have met. To be
  // called once each has been made; without a step it does nothing.
  void Update();

  // What a checkpoint keeps, behind an Update().
  struct State {
    double scale = 65536;
    int64_t good_steps = 0;  // since the scale has changed
    friend bool operator==(const State&, const State&) = default;
  };
  double scale() const { return state_.scale; }
  const State& state() const { return state_; }
  // Steps that no Update() has followed are forgotten. Errors: kInvalidArgument for a scale that is
  // not finite and above 0, or negative steps.
  absl::Status set_state(const State& state);

 private:
  explicit LossScaler(const LossScalerOptions& options)
      : options_(options), state_{options.initial_scale, 0} {}
  absl::StatusOr<StepResult> TryStep(Optimizer& optimizer, double lr, double max_norm) const;
  // Whether this rank's gradients are finite, and those of the others that there are.
  absl::StatusOr<bool> AllAre(bool finite, const DistributedTensor& parameter) const;

  LossScalerOptions options_;
  State state_;
  // Since the last Update(): what has stepped, by its first parameter, and whether some overflowed.
  std::vector<const TensorImpl*> stepped_;
  bool overflow_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_LOSS_SCALER_H_
