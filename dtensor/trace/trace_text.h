// Traces as text: for people, for programs, and for trace viewers.
#ifndef DTENSOR_TRACE_TRACE_TEXT_H_
#define DTENSOR_TRACE_TRACE_TEXT_H_

#include <string>

#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/trace/trace.h"

namespace DTENSOR_EXPORT dtensor {

// Two tables: what moved, by module, phase, operator and reason, with calls, bytes that the rank
// received and times, and the sums by collective and axes; and the operators that ran, by module
// and phase, with the time that was their own.
std::string TraceTable(const RankTrace& trace);

// {"ranks": [{"rank", "world_size", "simulated", "dropped", "events": [{...}]}]}: all that a
// RankTrace has. Events have the names of TraceEvent's members, those that say something of their
// kind; "calls", "messages" and "bytes" stand for `traffic`, "why" is WhyText, an enumerator is its
// ToString, and "parent" counts the rank's events. "live_bytes" is there once it is complete.
std::string TraceJson(absl::Span<const RankTrace> ranks);

// The JSON object of the Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing.
// Each rank is a process, pid the rank, with one thread, 0, on which complete events (ph X) nest.
// What is asynchronous is a pair of b and e on tracks of its own; what had not ended is a B, or a b
// alone. Times are microseconds. `args` has what TraceJson has.
std::string ChromeTrace(absl::Span<const RankTrace> ranks);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_TEXT_H_
