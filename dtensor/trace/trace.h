// RankTrace: what one rank did, event by event: which operators ran, what moved, why, how many
// bytes it received, and how long it took. docs/tracing.md shows how to get one, and read it.
//
// Events are in the order in which they began. Each knows the event within which it happened:
//
//   module model.layers.0.mlp.up_proj           a call of a module
//     redistribution                            what its plan's edge moved
//       exchange all-gather(tp), 12288 B        one round, as the communicator counted it
//     operator MatMul                           one dispatch, its redistributions included
//
// The calls, messages and bytes of all exchanges add up to the growth of Communicator::traffic()
// during the trace, as long as no event was dropped.
#ifndef DTENSOR_TRACE_TRACE_H_
#define DTENSOR_TRACE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct TraceOptions {
  // Record calls of modules and operators too. If false, only redistributions, exchanges, waits and
  // the program's own spans are recorded.
  bool operators = true;
  // Further events are not recorded, only counted in RankTrace::dropped. An event takes about 200
  // bytes; a training step of a model with 32 layers has about 5000 events.
  size_t max_events = size_t{1} << 18;
};

enum class TraceKind : uint8_t {
  kSpan,    // a part of the program that the program has named
  kModule,  // a call of a module
  kOperator,
  kRedistribution,  // of one tensor, or of several together
  kExchange,        // one round of a redistribution, or an operator's own exchange
  kWait,            // the host waits for an asynchronous exchange
};
absl::string_view ToString(TraceKind kind);  // "span", "module", "operator", ...

enum class TracePhase : uint8_t {
  kForward,    // everything else, including the optimizer
  kBackward,   // while Backward walks the tape
  kRecompute,  // forward computed again during Backward
};
absl::string_view ToString(TracePhase phase);  // "forward", "backward", "recompute"

// Why a redistribution was made: what needs the tensor in the new layout.
enum class TraceCause : uint8_t {
  kAsked,            // Redistribute(), or a function that reads a tensor's values
  kOperand,          // operand `index` of an operator
  kResult,           // result `index` of an operator, as its caller gets it
  kEdgeInput,        // operand `index` of a module, by the plan
  kEdgeOutput,       // result `index` of a module, by the plan
  kGradient,         // the gradient of result `index`, for an operator's backward
  kLeafGradient,     // terms of one leaf's gradient arrived in several layouts
  kGather,           // parameters that are stored sharded are gathered for use
  kGatherAgain,      // an operand was saved as a shard, and backward needs it gathered
  kReduceGradients,  // gradients are reduced to the layouts in which parameters are stored
};
absl::string_view ToString(TraceCause cause);  // "asked", "operand", ..., "reduce-gradients"

// Its texts live as long as the RankTrace that contains the event, or a copy of that.
struct TraceEvent {
  TraceKind kind = TraceKind::kSpan;
  TracePhase phase = TracePhase::kForward;
  // It only begins here and is finished later, so it overlaps with events that follow.
  bool asynchronous = false;
  // The event within which it happened; for an exchange, the event that caused it; -1: none.
  int64_t parent = -1;
  absl::string_view name;  // of the module, the operator, or the call that asked for data to move
  absl::string_view path;  // of the module at work; "" outside of modules and for the model itself
  // Read from the steady clock, which processes of one host share; on a simulated rank from its
  // clock (Context::simulated_clock).
  int64_t start_ns = 0;
  int64_t duration_ns = -1;  // until it is complete; -1: not completed while it was traced
  int64_t live_bytes = 0;    // on the device, when it ended

  // --- For redistributions.
  TraceCause cause = TraceCause::kAsked;
  int index = -1;              // see TraceCause
  bool implicit = false;       // counts for ContextOptions::max_implicit_bytes
  int tensors = 0;             // number of tensors that move together
  absl::string_view tensor;    // the first of them: "[8, 4] f32 on ["tp"=2]"
  absl::string_view from, to;  // its layouts
  // --- For exchanges; for waits the first two.
  CollectiveKind collective = CollectiveKind::kExchange;
  absl::string_view axes;       // "tp", "dp,tp"
  CommunicatorTraffic traffic;  // received by this rank
  int64_t wait_ns = 0;          // time for which the host waited; also for redistributions

  bool complete() const { return duration_ns >= 0; }
};

using TraceTexts = std::set<std::string, std::less<>>;  // a set, as its strings do not move

struct RankTrace {
  int rank = 0, world_size = 1;
  bool simulated = false;  // times are predicted
  std::vector<TraceEvent> events;
  int64_t dropped = 0;  // events for which there was no room
  // Owns the texts of the events.
  std::shared_ptr<const TraceTexts> texts;

  // The sum over all exchanges. If nothing was dropped, it is Communicator::traffic() since tracing
  // began.
  TrafficTable Traffic() const;
};

// Why a redistribution was made: "operand 1 of MatMul, by its rule". Empty for other events.
std::string WhyText(const TraceEvent& event);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_H_
