#include "dtensor/runtime/kernels/read_bytes.h"

#include <algorithm>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/copy.h"

namespace dtensor::kernels {

absl::Status ReadBytes(const Tensor& x,
                       absl::FunctionRef<absl::Status(const char* bytes, int64_t size)> read) {
  constexpr int64_t kPieceBytes = 4 << 20;
  Device& device = x.device();
  DT_ASSIGN_OR_RETURN(const Tensor packed, Contiguous(device, x));
  if (device.kind() == Device::Kind::kCpu) {  // host memory, and no kernel is pending
    return read(packed.data<char>(), packed.bytes());
  }
  std::vector<char> piece(std::min(packed.bytes(), kPieceBytes));
  for (int64_t at = 0; at < packed.bytes(); at += kPieceBytes) {
    const int64_t size = std::min(packed.bytes() - at, kPieceBytes);
    DT_RETURN_IF_ERROR(device.CopyToHost(piece.data(), packed.data<char>() + at, size));
    DT_RETURN_IF_ERROR(device.Synchronize());
    DT_RETURN_IF_ERROR(read(piece.data(), size));
  }
  return absl::OkStatus();
}

}  // namespace dtensor::kernels
