// ByDevice: one kernel, and what runs it on each kind of device.
//
// A header of this folder is a contract that all devices keep. Its source checks the arguments,
// decides what metadata decides, turns tensors into flat arguments (runtime/kernels/arguments) and
// hands them on:
//
//   constexpr ByDevice<SoftmaxArgs> kSoftmax = {.name = "Softmax", .host = cpu::Softmax};
//   return kSoftmax.Run(device, {x.dtype()}, args);
//
//   host   cpu and deferred, whose memory the host can read: functions of runtime/kernels/cpu
//   cuda   there are none yet. One is a source in runtime/kernels/cuda, and a `.cuda =` here; an
//          operator whose kernels are all there says so in its OpDef (OpDef::cuda)
//   meta   nothing is run
//
// A function launches the kernel on the device and does not wait for it. It may refer to the
// arguments until it returns: what runs later holds a copy.
#ifndef DTENSOR_RUNTIME_KERNELS_BY_DEVICE_H_
#define DTENSOR_RUNTIME_KERNELS_BY_DEVICE_H_

#include <initializer_list>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor::kernels {

template <typename Args>
struct ByDevice {
  using Function = absl::Status (*)(Device& device, const char* name, const Args& args);

  const char* name;  // in errors; a string literal
  Function host = nullptr;
  Function cuda = nullptr;

  // `types`: those of the operands, which say in an error what was asked for. Errors: the device's
  // failure; kUnimplemented where it has no such kernel, and goes on working; the function's own.
  absl::Status Run(Device& device, std::initializer_list<DType> types, const Args& args) const;
};

namespace internal {
// The device's failure; else kUnimplemented, naming kernel, types, device and remedy: the device
// on which there is one, if any.
absl::Status NoKernel(const char* name, std::initializer_list<DType> types, const Device& device,
                      const char* other_device);
}  // namespace internal

template <typename Args>
absl::Status ByDevice<Args>::Run(Device& device, std::initializer_list<DType> types,
                                 const Args& args) const {
  if (device.is_meta()) return device.failure();
  const bool on_cuda = device.kind() == Device::Kind::kCuda;
  const Function function = on_cuda ? cuda : host;
  if (function != nullptr) return function(device, name, args);
  return internal::NoKernel(name, types, device, on_cuda ? "cpu" : "cuda");
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_BY_DEVICE_H_
