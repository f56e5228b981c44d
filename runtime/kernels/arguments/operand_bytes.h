// How many bytes of its operands a kernel reads and writes. Elements that are read several times,
// through a stride of 0, count once.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_OPERAND_BYTES_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_OPERAND_BYTES_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/work.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels {

// Computes products of sizes as doubles: on the meta device, the bytes of broadcast views may
// exceed an int64.
template <int N>
double Iterations(const StridedLoop<N>& loop) {
  double n = loop.empty() ? 0 : 1;
  for (int d = 0; d < loop.ndim(); ++d) n *= static_cast<double>(loop.size(d));
  return n;
}

// The number of different elements of operand i.
template <int N>
double DistinctElements(const StridedLoop<N>& loop, int i) {
  double n = loop.empty() ? 0 : 1;
  for (int d = 0; d < loop.ndim(); ++d) {
    if (loop.stride(d, i) != 0) n *= static_cast<double>(loop.size(d));
  }
  return n;
}

inline double Bytes(double elements, DType dtype) {
  return elements * static_cast<double>(SizeOf(dtype));
}

// The bytes of the first `inputs` inputs, and of the outputs.
template <int kIn, int kOut>
double BytesOf(const StridedOperands<kIn, kOut>& operands, int inputs = kIn) {
  double bytes = 0;
  for (int i = 0; i < inputs; ++i) {
    bytes += DistinctElements(operands.loop, i) * static_cast<double>(operands.in_size[i]);
  }
  for (int o = 0; o < kOut; ++o) {
    bytes += Iterations(operands.loop) * static_cast<double>(operands.out_size[o]);
  }
  return bytes;
}

template <int kIn>
double BytesOf(const RowOperands<kIn>& rows) {
  double bytes = 0;
  for (int i = 0; i < kIn; ++i) {
    const int64_t n = rows.stride[i] == 0 && rows.n > 1 ? 1 : rows.n;
    bytes += DistinctElements(rows.loop, i) * static_cast<double>(n * rows.in_size[i]);
  }
  return bytes;
}

inline double BytesOf(const StridedInput& input) {
  return DistinctElements(input.loop, 0) * static_cast<double>(input.size);
}

// For kernels that read and write `operands` and no other memory.
template <typename Args>
KernelWork WorkOnOperands(const Args& args) {
  return {.bytes = BytesOf(args.operands)};
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_OPERAND_BYTES_H_
