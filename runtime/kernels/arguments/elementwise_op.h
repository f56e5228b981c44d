// What the kernels of elementwise.h compute for each element.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_OP_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_OP_H_

#include <cstdint>

namespace dtensor::kernels {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin };
enum class UnaryOp : uint8_t {
  kCopy,
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kRecip,
  kSquare,
  kAbs,
  kSilu,
  kRelu,
  kSigmoid,
  kTanh
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_OP_H_
