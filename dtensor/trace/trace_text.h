// Traces as text: for people, for programs, and for trace viewers.
#ifndef DTENSOR_TRACE_TRACE_TEXT_H_
#define DTENSOR_TRACE_TRACE_TEXT_H_

#include <string>

#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/trace/trace.h"

namespace DTENSOR_EXPORT dtensor {

// Prints two tables. The first lists communication by module, phase, operator and reason, with
// calls, bytes received by this rank and times, and sums by collective and axes. The second lists
// the operators that ran, by module and phase, with the time that was their own.
std::string TraceTable(const RankTrace& trace);

// {"ranks": [{"rank", "world_size", "simulated", "dropped", "events": [{...}]}]}: everything in a
// RankTrace. The keys of an event are the names of those members of TraceEvent that apply to its
// kind. "calls", "messages" and "bytes" stand for `traffic`, "why" is WhyText, enumerators are
// written by ToString, and "parent" is an index into the rank's events. "live_bytes" is present
// only for events that are complete.
std::string TraceJson(absl::Span<const RankTrace> ranks);

// The JSON object of the Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing.
// Each rank is a process whose pid is the rank, with one thread, 0, on which complete events (ph X)
// nest. An asynchronous event is a pair of b and e, on tracks of their own. An event that has not
// ended is a B, or a b without an e. Times are in microseconds. `args` has what TraceJson has.
std::string ChromeTrace(absl::Span<const RankTrace> ranks);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_TEXT_H_
