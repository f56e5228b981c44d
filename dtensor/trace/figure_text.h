// Formats bytes, seconds and traffic for people.
#ifndef DTENSOR_TRACE_FIGURE_TEXT_H_
#define DTENSOR_TRACE_FIGURE_TEXT_H_

#include <cstdint>
#include <string>

#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

std::string BytesText(int64_t bytes);     // "16.0 MiB"; below 1 KiB in bytes
std::string SecondsText(double seconds);  // "1.25 ms"
// "all-gather(tp): 4 calls, 16.0 MiB"
std::string TrafficText(const TrafficKey& key, const CommunicatorTraffic& traffic);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_FIGURE_TEXT_H_
