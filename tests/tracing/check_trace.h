// What any trace has to be: by its own counters, and by the description of the Trace Event Format.
#ifndef DTENSOR_TESTS_TRACING_CHECK_TRACE_H_
#define DTENSOR_TESTS_TRACING_CHECK_TRACE_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

// The trace of a Context that was traced from the beginning: its sums are the counters, nothing was
// dropped, and each event lies within its parent. Errors: kInternal, with what is wrong.
absl::Status CheckTrace(Context& context);

// By the axes and the collective's name, as a file has them.
using FileTraffic = std::map<std::pair<std::string, std::string>, CommunicatorTraffic>;
FileTraffic AsInFile(const TrafficTable& table);

// Checks ChromeTrace's text event by event. An object with a list of traceEvents, each of them of a
// type that is known, with its members, of the right types:
//   M     pid, tid, name process_name or thread_name, args.name; both for each pid
//   X, B  pid, tid, ts, cat, name, args; X also dur. On a thread they nest, and a B has all that
//         begins later on its thread in it
//   b, e  pid, tid, ts, cat, id, name; one b for each id, and an e at most, which is not earlier
// and nothing else. Gives the sums of the exchanges, by pid. Errors: kInternal, with the event.
absl::StatusOr<std::map<int, FileTraffic>> CheckChromeTrace(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_TESTS_TRACING_CHECK_TRACE_H_
