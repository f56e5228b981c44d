// How far a member of a group is with an exchange, and which members read from which in it.
#ifndef DTENSOR_RUNTIME_COMM_PULLS_EXCHANGE_STAGE_H_
#define DTENSOR_RUNTIME_COMM_PULLS_EXCHANGE_STAGE_H_

#include <cstdint>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

enum class ExchangeStage : uint8_t { kPosted, kDone };

// A set of members is a mask of 64 bits. In larger groups everybody counts as a reader, which costs
// time but is still correct.
constexpr int kMostReadBits = 64;
inline uint64_t ReadBit(int member) { return uint64_t{1} << (member % kMostReadBits); }

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULLS_EXCHANGE_STAGE_H_
