#include "dtensor/nn/optim/adamw.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/adamw_step.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/optimizer.h"

namespace dtensor {

absl::Status internal::CheckAdamW(absl::string_view who, const AdamWOptions& options) {
  for (const double beta : {options.beta1, options.beta2}) {
    if (beta >= 0 && beta < 1) continue;
    return InvalidArgument({who, ": a beta is ", absl::StrCat(beta), "; take one in [0, 1)"});
  }
  for (const double number : {options.eps, options.weight_decay}) {
    if (std::isfinite(number) && number >= 0) continue;
    return InvalidArgument(
        {who, ": eps or weight_decay is ", absl::StrCat(number), "; take a finite number >= 0"});
  }
  return absl::OkStatus();
}

kernels::AdamWStep internal::AdamWStepOf(const AdamWOptions& options, double lr, int64_t step) {
  return {.lr = lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .step = step};
}

std::vector<double> internal::NumbersOf(const AdamWOptions& options) {
  return {options.beta1, options.beta2, options.eps, options.weight_decay};
}

absl::StatusOr<AdamW> AdamW::Create(std::vector<AdamWGroup> groups) {
  AdamW adamw;
  std::vector<Group> all;
  for (const AdamWGroup& group : groups) {
    DT_RETURN_IF_ERROR(internal::CheckAdamW("AdamW", group.options));
    all.push_back({group.parameters,
                   group.lr_scale,
                   group.options.master_weights,
                   {"exp_avg", "exp_avg_sq"},
                   internal::NumbersOf(group.options)});
    adamw.options_.insert(adamw.options_.end(), group.parameters.size(), group.options);
  }
  DT_RETURN_IF_ERROR(adamw.Init(all));
  return adamw;
}

absl::StatusOr<AdamW> AdamW::Create(std::vector<DistributedTensor> parameters,
                                    const AdamWOptions& options) {
  DT_ASSIGN_OR_RETURN(AdamW adamw, Create({AdamWGroup{std::move(parameters), options}}));
  for (size_t i = 0; i < adamw.options_.size(); ++i) {
    if (adamw.parameters()[i].ndim() < 2) adamw.options_[i].weight_decay = 0;
  }
  return adamw;
}

absl::Status AdamW::Apply(const Update& update) {
  return kernels::AdamW(update.parameter.device(),
                        internal::AdamWStepOf(options_[update.index], update.lr, update.step),
                        update.parameter, update.gradient, update.states[0], update.states[1],
                        update.grad_scale, update.master);
}

}  // namespace dtensor
