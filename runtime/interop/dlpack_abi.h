// The memory layout of DLPack's tensors, versions 1.x and before, for programs that have no
// dlpack.h.
//
// Our own definition of a published binary interface, with the names that every dlpack.h uses. A
// source that includes a dlpack.h (1.0 or later) must include it before this header, or not include
// this one.
#ifndef DTENSOR_RUNTIME_INTEROP_DLPACK_ABI_H_
#define DTENSOR_RUNTIME_INTEROP_DLPACK_ABI_H_

#ifndef DLPACK_DLPACK_H_

#include <cstdint>

extern "C" {

// The kinds that we know. Values from elsewhere may be any number.
enum DLDeviceType : int32_t {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,   // host memory, pinned by CUDA
  kDLROCMHost = 11,  // the same of ROCm
};

struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;  // 0 on the host
};

enum DLDataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
};

struct DLDataType {
  uint8_t code;    // a DLDataTypeCode
  uint8_t bits;    // of a lane
  uint16_t lanes;  // 1, but for vectors
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;      // in elements; before 1.2 null means row-major
  uint64_t byte_offset;  // from data to the first element
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);  // may be null
};

struct DLPackVersion {
  uint32_t major, minor;
};

// Fields up to flags stay where they are in every version, so that a deleter can always be called.
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);  // may be null
  uint64_t flags;
  DLTensor dl_tensor;
};

}  // extern "C"

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)

#elif !defined(DLPACK_FLAG_BITMASK_READ_ONLY)
#error "this dlpack.h is older than DLPack 1.0 and lacks DLManagedTensorVersioned"
#endif  // DLPACK_DLPACK_H_

#endif  // DTENSOR_RUNTIME_INTEROP_DLPACK_ABI_H_
