#include "dtensor/runtime/device/cuda/rank_device.h"

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"

namespace dtensor {

absl::StatusOr<std::unique_ptr<Device>> MakeRankDevice(const CudaDeviceMaker& make, int rank,
                                                       int ordinal) {
  if (!make) return MakeCudaDevice(ordinal);
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, make(rank, ordinal));
  const bool is_there = device != nullptr && device->kind() == Device::Kind::kCuda;
  if (is_there && device->ordinal() == ordinal) return device;
  std::string made = "none";
  if (is_there) {
    made = absl::StrCat("one of GPU ", device->ordinal());
  } else if (device != nullptr) {
    made = absl::StrCat("a ", ToString(device->kind()), " device");
  }
  return InvalidArgument({"the program's cuda_device of rank ", absl::StrCat(rank), " made ", made,
                          ", where the rank needs one of GPU ", absl::StrCat(ordinal),
                          "; return MakeCudaDevice(ordinal, stream, allocator)"});
}

}  // namespace dtensor
