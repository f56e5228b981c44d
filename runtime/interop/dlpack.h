// DLPack in and out: local tensors to and from NumPy, PyTorch, JAX and other programs of this
// process, without a copy.
//
//   DT_ASSIGN_OR_RETURN(Tensor local, FromDlpack(context.device(), DlpackTensor(managed)));
//   TensorOr x = FromLocal(context, mesh, {Shard(0)}, {1024, 64}, local);
//   ...
//   DT_ASSIGN_OR_RETURN(DlpackTensor out, ToDlpack(x->local()));
//   consumer(out.release());  // who calls its deleter
//
// Types: f32, f64, bf16, f16, i32, i64, bool (bytes that are 0 or 1). Devices: host memory (kDLCPU,
// or pinned: kDLCUDAHost, kDLROCMHost) for cpu and deferred; kDLCUDA of the same ordinal for cuda.
// Any strides from 0 up, offsets, scalars, and sizes of 0.
#ifndef DTENSOR_RUNTIME_INTEROP_DLPACK_H_
#define DTENSOR_RUNTIME_INTEROP_DLPACK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

// dlpack.h has them, or dlpack_abi.h.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace DTENSOR_EXPORT dtensor {

// Calls a managed tensor's own deleter, if it has one.
struct CallDlpackDeleter {
  void operator()(DLManagedTensorVersioned* managed) const;
  void operator()(DLManagedTensor* managed) const;
};

// Owning handles of DLPack's tensors. DLPack 1.x has versioned ones; earlier ones had no version,
// and could not mark memory as read-only.
using DlpackTensor = std::unique_ptr<DLManagedTensorVersioned, CallDlpackDeleter>;
using UnversionedDlpackTensor = std::unique_ptr<DLManagedTensor, CallDlpackDeleter>;

// Returns the same memory as a tensor. The deleter of `from` is called once: if there is an error,
// before this returns, else when the last reference to the memory is gone, as adopt.h says (also
// about the thread; Python's deleters acquire the GIL themselves). Read-only memory is read in
// place, and copied before the tensor is written. On cuda, the producer must have made its values
// ready for the device's stream: pass it CudaStreamOf(device), or 1 if that is null, since Python's
// `stream` uses 1 for the default stream and has no 0. Errors: kInvalidArgument, with the remedy,
// for a null handle, another device or major version, types that the library lacks, vectors
// (lanes), more than 64 dimensions, and as AdoptMemory.
absl::StatusOr<Tensor> FromDlpack(Device& device, DlpackTensor from);
absl::StatusOr<Tensor> FromDlpack(Device& device, UnversionedDlpackTensor from);

// Lends `tensor`'s memory to another program until that calls the deleter: on any thread, at any
// time, even after the Context and its world have ended, whose memory is kept that long. On cuda
// the consumer must call it only when its work on the memory has ended, on whatever stream, or
// after making the device's stream wait for that work (cudaStreamWaitEvent): the memory is reused
// in the order of the device's stream, and the consumer's stream is unknown here. (A device that
// was not made for a world must itself outlive what was exported from it.) Waits on the host, on
// every device, until the values are there: so they are ready for every stream.
//
// Consumer and tensor are aliases: a write by either is visible to both. Before the consumer is
// allowed to write, call BeforeWrite() of the DistributedTensor that has the memory, as for any
// write in place. BeforeWrite() of its local tensor does not wait for redistributions and products
// that still read the memory; it is for memory that no DistributedTensor has. Borrowed memory, such
// as a redistribution's result that shares its source's memory, is copied to memory of its own
// here. Errors: kInvalidArgument for an undefined tensor; kFailedPrecondition on meta, which has no
// values; kResourceExhausted; the device's failure.
absl::StatusOr<DlpackTensor> ToDlpack(const Tensor& tensor);
absl::StatusOr<UnversionedDlpackTensor> ToUnversionedDlpack(const Tensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_INTEROP_DLPACK_H_
