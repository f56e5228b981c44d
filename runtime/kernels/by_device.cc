#include "dtensor/runtime/kernels/by_device.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/meta/meta_device.h"

namespace dtensor::kernels::internal {

absl::Status RunOnPaper(Device& device, const KernelWork& work) {
  DT_RETURN_IF_ERROR(device.failure());
  ClockOf(device)->Compute(work);
  return absl::OkStatus();
}

absl::Status NoKernel(const char* name, std::initializer_list<DType> types, const Device& device,
                      const char* other_device) {
  DT_RETURN_IF_ERROR(device.failure());
  std::string listed;
  for (const DType* type = types.begin(); type != types.end(); ++type) {
    if (type != types.begin() && type[0] == type[-1]) continue;
    absl::StrAppend(&listed, listed.empty() ? "" : ", ", ToString(*type));
  }
  return absl::UnimplementedError(
      absl::StrCat(name, ": there is no ", ToString(device.kind()), " kernel for ", listed,
                   "; run this operator on the ", other_device, " device"));
}

}  // namespace dtensor::kernels::internal
