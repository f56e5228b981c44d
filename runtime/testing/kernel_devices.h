// The devices that tests of kernels run on: those of the library that a test is linked with.
//
//   host_kernel_devices   the CPU with every instruction set there is, and the deferred device
//   cuda_kernel_devices   the first GPU
#ifndef DTENSOR_RUNTIME_TESTING_KERNEL_DEVICES_H_
#define DTENSOR_RUNTIME_TESTING_KERNEL_DEVICES_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor::kernels {

// A device, and the instruction set that kernels use on it (0: the best).
struct KernelTestParam {
  const char* name;
  Device::Kind kind;
  int64_t target;
  friend std::ostream& operator<<(std::ostream& out, const KernelTestParam& p) {
    return out << p.name;
  }
};

std::vector<KernelTestParam> KernelTestParams();

// Errors: kUnavailable where this machine has none.
absl::StatusOr<std::unique_ptr<Device>> MakeKernelTestDevice(const KernelTestParam& param);
// The first of them, for tests that need one alone. Without a GPU, tests of GPUs are skipped.
std::unique_ptr<Device> MakeTestDevice();
// Another that gives the same bits, and is as late as it can be.
std::unique_ptr<Device> MakeLateTestDevice();
// Back to the best instruction set.
void EndKernelTest();

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_TESTING_KERNEL_DEVICES_H_
