// AdamW's options, for the optimizers that step by it.
#ifndef DTENSOR_NN_OPTIM_ADAMW_STEP_H_
#define DTENSOR_NN_OPTIM_ADAMW_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/runtime/kernels/optimizer.h"

namespace dtensor {
namespace internal {

// Errors: kInvalidArgument, beginning with `who`, for an option out of its range.
absl::Status CheckAdamW(absl::string_view who, const AdamWOptions& options);
kernels::AdamWStep AdamWStepOf(const AdamWOptions& options, double lr, int64_t step);
std::vector<double> NumbersOf(const AdamWOptions& options);  // for Optimizer::Group::options

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_ADAMW_STEP_H_
