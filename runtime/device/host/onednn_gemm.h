// OneDnnGemm: products by oneDNN, for one thread, with cached primitives.
//
// Making a primitive compiles code and costs about 100 us; running a cached one costs 0.25 us on
// top of the arithmetic. Primitives are cached by types, sizes, strides and accumulate, never by
// addresses. Operands are read in place, through their strides.
//
// Runs on the calling thread alone: ranks are threads already, and oneDNN's OpenMP would give each
// of them a team of its own. The same shape and strides give the same bits. On CPUs with bf16
// instructions, denormal bf16 inputs count as zero.
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

  // Returns whether it ran: false, with nothing done, if oneDNN has no fast code (types other than
  // f32 and bf16, bf16 on a CPU without AVX-512, strides that are neither row- nor column-major).
  // Requires: ValidateGemm(gemm) is OK, no dimension is 0. Errors: kInternal with oneDNN's status;
  // kResourceExhausted.
  absl::StatusOr<bool> Run(const GemmProblem& gemm);

  int cached() const;  // number of primitives

  // The code with which Run would multiply. kByRows: the bits of a row of C depend on k, n and
  // strides alone, whatever other rows there are. Requires and errors: as Run; does not look at
  // memory.
  enum class Code { kNone, kByRows, kOther };
  absl::StatusOr<Code> CodeOf(const GemmProblem& gemm);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_HOST_ONEDNN_GEMM_H_
