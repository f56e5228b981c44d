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
// and pinned: kDLCUDAHost, kDLROCMHost) is for cpu and deferred, kDLCUDA of the same ordinal for
// cuda. Any strides from 0 on, offsets, scalars, and sizes of 0.
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

// Handles of DLPack's tensors, which go where they are moved. DLPack 1.x is `versioned`; before,
// there was no version, and read-only memory could not be told.
using DlpackTensor = std::unique_ptr<DLManagedTensorVersioned, CallDlpackDeleter>;
using UnversionedDlpackTensor = std::unique_ptr<DLManagedTensor, CallDlpackDeleter>;

// The same memory as a tensor. The deleter of `from` is called once: on an error before this
// returns, else when the last reference to the memory is gone, as adopt.h says (by which thread,
// too: Python's take the GIL themselves). Read-only memory is read, and copied before anything is
// written to the tensor. On cuda the producer has made its values ready for the device's stream:
// hand it CudaStreamOf(device), or 1 where that is null: Python's `stream` calls the default one
// so, and has no 0.
// Errors: kInvalidArgument, with the remedy, for a null handle, another device or major version,
// types that the library lacks, vectors (lanes), more than 64 dimensions, and as AdoptMemory.
absl::StatusOr<Tensor> FromDlpack(Device& device, DlpackTensor from);
absl::StatusOr<Tensor> FromDlpack(Device& device, UnversionedDlpackTensor from);

// `tensor`'s memory for another program, until it calls the deleter: on any thread, at any time, as
// well after the Context and its world have ended, whose memory stays that long. On cuda the
// consumer calls it once its work on the memory has ended, on whatever stream, or the device's
// stream has been made to wait for that work (cudaStreamWaitEvent): the memory is handed out again
// in the order of the device's stream, and the consumer's is unknown here. (A device that was
// made by itself outlives what was exported from it.) Waits until the values are there, on the host
// on any device: so they are ready for every stream.
//
// Consumer and tensor are aliases: a write by either is seen by both. Who lets the consumer write
// calls BeforeWrite() of the DistributedTensor that has the memory first, as for any write in
// place: that of its local tensor does not wait for redistributions and products that still read
// it, and is for memory that no DistributedTensor has. What is borrowed, a redistribution's result
// that shares its source's memory, gets its own here.
// Errors: kInvalidArgument for an undefined tensor; kFailedPrecondition on meta, which has no
// values; kResourceExhausted; the device's failure.
absl::StatusOr<DlpackTensor> ToDlpack(const Tensor& tensor);
absl::StatusOr<UnversionedDlpackTensor> ToUnversionedDlpack(const Tensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_INTEROP_DLPACK_H_
