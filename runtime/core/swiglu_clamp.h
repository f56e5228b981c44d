// The numbers of GPT-OSS's SwiGLU.
#ifndef DTENSOR_RUNTIME_CORE_SWIGLU_CLAMP_H_
#define DTENSOR_RUNTIME_CORE_SWIGLU_CLAMP_H_

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// (u + 1) * g * sigmoid(slope * g), with the gate g at most `limit` and u from -limit to limit.
struct SwiGluClamp {
  double slope = 1.702, limit = 7;  // slope: finite; limit: above 0, may be infinite
  friend bool operator==(const SwiGluClamp&, const SwiGluClamp&) = default;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_SWIGLU_CLAMP_H_
