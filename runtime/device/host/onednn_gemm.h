// OneDnnGemm: products by oneDNN, for one thread, with cached primitives.
//
// Making a primitive compiles code and costs about 100 us; running a cached one 0.25 us over the
// arithmetic. So they are kept by what they depend on: types, sizes, strides and accumulate, never
// addresses. Operands are read where they lie, through strides.
//
// Runs on the calling thread alone: ranks are threads already, and oneDNN's OpenMP would give each
// of them a team of its own. Same shape and strides, same bits. On CPUs with bf16 instructions,
// denormal bf16 inputs count as zero.
#ifndef DTENSOR_RUNTIME_DEVICE_HOST_ONEDNN_GEMM_H_
#define DTENSOR_RUNTIME_DEVICE_HOST_ONEDNN_GEMM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {

class OneDnnGemm {
 public:
  OneDnnGemm();
  ~OneDnnGemm();

  // Whether it ran: false, with nothing done, where oneDNN has no fast code (types other than f32
  // and bf16, bf16 on a CPU without AVX-512, strides that are neither row- nor column-major).
  // Requires: ValidateGemm(gemm) is OK, no dimension is 0. Errors: kInternal with oneDNN's status;
  // kResourceExhausted.
  absl::StatusOr<bool> Run(const GemmProblem& gemm);

  int cached() const;  // primitives

  // With what Run would multiply. kByRows: the bits of a row of C depend on k, n and strides alone,
  // whatever other rows there are. Requires and errors: as Run; no memory is looked at.
  enum class Code { kNone, kByRows, kOther };
  absl::StatusOr<Code> CodeOf(const GemmProblem& gemm);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_HOST_ONEDNN_GEMM_H_
