#include <memory>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/nccl/nccl_carrier.h"

namespace dtensor {

// nccl_carrier.cc under --config=cuda.
absl::StatusOr<std::unique_ptr<ExchangeCarrier>> MakeNcclCarrier(int, int, Device&, WorldState&,
                                                                 const NcclOptions&) {
  return absl::UnavailableError(
      "this program was built without NCCL; build it with --config=cuda, or use the cpu device");
}

}  // namespace dtensor
