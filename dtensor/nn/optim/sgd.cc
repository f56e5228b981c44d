#include "dtensor/nn/optim/sgd.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/optimizer.h"

namespace dtensor {
namespace {

absl::Status CheckOptions(const SgdOptions& options) {
  for (const double number : {options.momentum, options.dampening, options.weight_decay}) {
    if (std::isfinite(number) && number >= 0) continue;
    return InvalidArgument({"Sgd: momentum, dampening or weight_decay is ", absl::StrCat(number),
                            "; take a finite number >= 0"});
  }
  if (!options.nesterov || (options.momentum > 0 && options.dampening == 0)) {
    return absl::OkStatus();
  }
  return InvalidArgument({"Sgd: nesterov wants momentum above 0 and no dampening, got momentum ",
                          absl::StrCat(options.momentum), " and dampening ",
                          absl::StrCat(options.dampening)});
}

}  // namespace

absl::StatusOr<Sgd> Sgd::Create(std::vector<SgdGroup> groups) {
  Sgd sgd;
  std::vector<Group> all;
  for (const SgdGroup& group : groups) {
    DT_RETURN_IF_ERROR(CheckOptions(group.options));
    const SgdOptions& options = group.options;
    all.push_back(
        {group.parameters,
         group.lr_scale,
         options.master_weights,
         {},
         {options.momentum, options.dampening, options.weight_decay, options.nesterov ? 1. : 0.}});
    if (options.momentum != 0) all.back().states = {"momentum_buffer"};
    sgd.options_.insert(sgd.options_.end(), group.parameters.size(), group.options);
  }
  DT_RETURN_IF_ERROR(sgd.Init(all));
  return sgd;
}

absl::StatusOr<Sgd> Sgd::Create(std::vector<DistributedTensor> parameters,
                                const SgdOptions& options) {
  return Create({SgdGroup{std::move(parameters), options}});
}

absl::Status Sgd::Apply(const Update& update) {
  const SgdOptions& options = options_[update.index];
  const kernels::SgdStep step = {.lr = update.lr,
                                 .momentum = options.momentum,
                                 .dampening = options.dampening,
                                 .weight_decay = options.weight_decay,
                                 .nesterov = options.nesterov,
                                 .first = update.step == 1};
  return kernels::Sgd(update.parameter.device(), step, update.parameter, update.gradient,
                      update.states.empty() ? Tensor() : update.states[0], update.grad_scale,
                      update.master);
}

}  // namespace dtensor
