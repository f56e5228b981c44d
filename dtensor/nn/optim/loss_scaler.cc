#include "dtensor/nn/optim/loss_scaler.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

bool IsScale(double scale) {
  using Float = std::numeric_limits<float>;
  return scale >= Float::min() && scale <= Float::max();
}

}  // namespace

absl::StatusOr<LossScaler> LossScaler::Create(const LossScalerOptions& options) {
  const bool ok = IsScale(options.initial_scale) && std::isfinite(options.growth_factor) &&
                  options.growth_factor >= 1 && options.backoff_factor > 0 &&
                  options.backoff_factor <= 1 && options.growth_interval >= 1;
  if (ok) return LossScaler(options);
  return InvalidArgument(
      {"LossScaler: initial_scale ", absl::StrCat(options.initial_scale), ", growth_factor ",
       absl::StrCat(options.growth_factor), ", backoff_factor ",
       absl::StrCat(options.backoff_factor), ", growth_interval ",
       absl::StrCat(options.growth_interval),
       "; take a finite scale above 0, a factor >= 1, one in (0, 1] and an interval >= 1"});
}

TensorOr LossScaler::Scale(const TensorOr& loss) const {
  if (!loss.ok() || !loss->defined() || SizeOf(loss->dtype()) != 2) {
    return dtensor::Scale(loss, state_.scale);
  }
  return dtensor::Scale(Cast(loss, DType::kF32), state_.scale);
}

absl::StatusOr<bool> LossScaler::AllAre(bool finite, const DistributedTensor& parameter) const {
  Context& context = parameter.context();
  const bool is_alone = !options_.of_world || parameter.mesh().size() == context.world_size();
  if (is_alone || context.device().is_meta()) return finite;
  DT_ASSIGN_OR_RETURN(const std::vector<char> all, GatherValues<char>(context, finite ? 1 : 0));
  return !absl::c_linear_search(all, 0);
}

absl::StatusOr<LossScaler::StepResult> LossScaler::TryStep(Optimizer& optimizer, double lr,
                                                           double max_norm) const {
  const auto& parameters = optimizer.parameters();
  const auto is_here = [](const DistributedTensor& p) { return p.spec().on_mesh; };
  StepResult result;
  if (!parameters.empty() && absl::c_none_of(parameters, is_here)) {
    DT_ASSIGN_OR_RETURN(result.stepped, AllAre(true, parameters[0]));
    if (result.stepped) DT_RETURN_IF_ERROR(optimizer.Step(lr));  // only counts it here
    return result;
  }
  DT_ASSIGN_OR_RETURN(const ClipResult clip,
                      ClipByGlobalNorm(parameters, max_norm, 1 / state_.scale));
  result.norm = clip.norm;
  if (!clip.norm.context().device().is_meta()) {
    bool finite = true;
    if (clip.norm.spec().on_mesh) {
      DT_ASSIGN_OR_RETURN(const double norm, Item(clip.norm));
      finite = std::isfinite(norm);
    }
    DT_ASSIGN_OR_RETURN(result.stepped, AllAre(finite, clip.norm));
  }
  if (result.stepped) DT_RETURN_IF_ERROR(optimizer.Step(lr, clip.scale));
  return result;
}

absl::StatusOr<LossScaler::StepResult> LossScaler::Step(Optimizer& optimizer, double lr,
                                                        double max_norm) {
  if (!optimizer.parameters().empty() &&
      absl::c_linear_search(stepped_, optimizer.parameters()[0].impl().get())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "LossScaler: the optimizer of a parameter ", optimizer.parameters()[0].ToString(),
        " has made its step; call Update() when ",
        "each optimizer has, before the next loss is scaled"));
  }
  DT_ASSIGN_OR_RETURN(StepResult result, TryStep(optimizer, lr, max_norm));
  stepped_.push_back(optimizer.parameters()[0].impl().get());
  overflow_ = overflow_ || !result.stepped;
  return result;
}

// torch's _amp_update_scale_.
void LossScaler::Update() {
  if (stepped_.empty()) return;
  stepped_.clear();
  if (std::exchange(overflow_, false)) {
    const double less = state_.scale * options_.backoff_factor;
    state_ = {IsScale(less) ? less : state_.scale, 0};
    return;
  }
  if (++state_.good_steps < options_.growth_interval) return;
  const double more = state_.scale * options_.growth_factor;
  state_ = {IsScale(more) ? more : state_.scale, 0};
}

absl::Status LossScaler::set_state(const State& state) {
  if (!IsScale(state.scale) || state.good_steps < 0) {
    return InvalidArgument({"LossScaler: a state of scale ", absl::StrCat(state.scale), " and ",
                            absl::StrCat(state.good_steps),
                            " good steps; take a finite scale above 0 and steps >= 0"});
  }
  state_ = state;
  stepped_.clear();
  overflow_ = false;
  return absl::OkStatus();
}

}  // namespace dtensor
