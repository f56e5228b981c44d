// What the kernels of elementwise.h and comparison.h compute for each element.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_OP_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_OP_H_

#include <cstdint>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin };
enum class UnaryOp : uint8_t {
  kCopy,
  kNot,  // of bools
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
  kTanh,
  kGelu,     // x Phi(x), Phi that of the normal distribution
  kGeluTanh  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};
enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };

// Whether the derivative is computed from the result; if not, from the operand.
constexpr bool GradReadsResult(UnaryOp op) {
  switch (op) {
    case UnaryOp::kExp:
    case UnaryOp::kSqrt:
    case UnaryOp::kRsqrt:
    case UnaryOp::kRecip:
    case UnaryOp::kRelu:
    case UnaryOp::kSigmoid:
    case UnaryOp::kTanh:
      return true;
    default:
      return false;
  }
}

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_ELEMENTWISE_OP_H_
