// ByDevice: one kernel: the functions that run it on each kind of device, and how much work it is.
//
// A header of this folder is a contract for all devices. Its source file checks the arguments,
// decides what depends on metadata alone, turns tensors into flat arguments
// (runtime/kernels/arguments) and passes them on:
//
//   KernelWork WorkOf(const SoftmaxArgs& args);  // operand_bytes.h helps
//   constexpr ByDevice<SoftmaxArgs> kSoftmax = {
//       .name = "Softmax", .host = cpu::Softmax, .work = WorkOf};
//   return kSoftmax.Run(device, {x.dtype()}, args);
//
//   host   cpu and deferred, whose memory the host can read: functions of runtime/kernels/cpu
//   cuda   functions of runtime/kernels/cuda, in programs that are built with CUDA:
//          `.cuda = DT_ON_CUDA(cuda::Softmax)`
//   meta   nothing is run; the work is added to the device's clock
//
// A function launches the kernel on the device and does not wait for it. It may refer to the
// arguments until it returns; what runs later needs a copy.
#ifndef DTENSOR_RUNTIME_KERNELS_BY_DEVICE_H_
#define DTENSOR_RUNTIME_KERNELS_BY_DEVICE_H_

#include <initializer_list>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/work.h"
#include "dtensor/runtime/device/device.h"

// The function, or null if the library is built without CUDA.
#ifdef DTENSOR_HAS_CUDA
#define DT_ON_CUDA(function) function
#else
#define DT_ON_CUDA(function) nullptr
#endif

namespace dtensor::kernels {

// How much work a kernel with these arguments is. It does not dereference pointers. There is no
// default: a ByDevice without it does not compile.
template <typename Args>
class WorkFunction {
 public:
  constexpr WorkFunction(KernelWork (*function)(const Args&)) : function_(function) {}
  KernelWork operator()(const Args& args) const { return function_(args); }

 private:
  KernelWork (*function_)(const Args&);
};

template <typename Args>
struct ByDevice {
  using Function = absl::Status (*)(Device& device, const char* name, const Args& args);

  const char* name;  // in errors; a string literal
  Function host = nullptr;
  Function cuda = nullptr;
  WorkFunction<Args> work;

  // `types`: the operands' types, for errors. Errors: the device's failure; kUnimplemented if the
  // device has no such kernel, after which it continues to work; the function's own.
  absl::Status Run(Device& device, std::initializer_list<DType> types, const Args& args) const;
};

namespace internal {
// Adds the work to a meta device's clock.
absl::Status RunOnPaper(Device& device, const KernelWork& work);
// The device's failure; else kUnimplemented, naming kernel, types, device and the remedy: the
// device that has the kernel, if any.
absl::Status NoKernel(const char* name, std::initializer_list<DType> types, const Device& device,
                      const char* other_device);
}  // namespace internal

template <typename Args>
absl::Status ByDevice<Args>::Run(Device& device, std::initializer_list<DType> types,
                                 const Args& args) const {
  if (device.is_meta()) return internal::RunOnPaper(device, work(args));
  const bool on_cuda = device.kind() == Device::Kind::kCuda;
  const Function function = on_cuda ? cuda : host;
  if (function != nullptr) return function(device, name, args);
  return internal::NoKernel(name, types, device, on_cuda ? "cpu" : "cuda");
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_BY_DEVICE_H_
