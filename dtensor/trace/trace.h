// RankTrace: what one rank did, event by event: which operators ran, what moved, why, how many
// bytes it received, and how long it took. docs/tracing.md shows how to get one, and read it.
//
// Events lie in the order in which they began. Each knows the one in which it happened:
//
//   module model.layers.0.mlp.up_proj           a call of a module
//     redistribution                            what its plan's edge moved
//       exchange all-gather(tp), 12288 B        one round, as the communicator counted it
//     operator MatMul                           one dispatch, its redistributions included
//
// So the exchanges' calls, messages and bytes, added up, are what Communicator::traffic() has grown
// by meanwhile, as long as nothing was dropped.
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
  // Also calls of modules and of operators that move nothing. Otherwise redistributions and
  // exchanges alone.
  bool operators = true;
  // What comes later is counted in RankTrace::dropped, and forgotten. An event takes about 200
  // bytes; a training step of a model of 32 layers has about 5000.
  size_t max_events = size_t{1} << 18;
};

enum class TraceKind : uint8_t {
  kSpan,    // what a program has named so
  kModule,  // a call of a module
  kOperator,
  kRedistribution,  // of one tensor, or of several together
  kExchange,        // one round of a redistribution, or an operator's own exchange
  kWait,            // the host waits for an asynchronous exchange
};
absl::string_view ToString(TraceKind kind);  // "span", "module", "operator", ...

enum class TracePhase : uint8_t {
  kForward,    // all that is neither of the following; so the optimizer, too
  kBackward,   // while the tape is walked
  kRecompute,  // forward again, in Backward
};
absl::string_view ToString(TracePhase phase);  // "forward", "backward", "recompute"

// Why a redistribution was made.
enum class TraceCause : uint8_t {
  kAsked,            // Redistribute(), or what reads a tensor's values
  kOperand,          // an operator wants operand `index` so
  kResult,           // an operator gives back result `index` so
  kEdgeInput,        // a plan wants operand `index` of the module so
  kEdgeOutput,       // a plan wants result `index` of the module so
  kGradient,         // backward of an operator needs the gradient of its result `index` so
  kLeafGradient,     // terms of one leaf's gradient arrived in several layouts
  kGather,           // parameters that rest sharded are gathered for use
  kGatherAgain,      // an operand was kept as a shard, and backward reads it whole
  kReduceGradients,  // to where the parameters rest
};
absl::string_view ToString(TraceCause cause);  // "asked", "operand", ..., "reduce-gradients"

// Texts live as long as the RankTrace that has the event, or a copy of that.
struct TraceEvent {
  TraceKind kind = TraceKind::kSpan;
  TracePhase phase = TracePhase::kForward;
  // Begun here, and finished later: it overlaps with what follows.
  bool asynchronous = false;
  // The event in which it happened, or, of an exchange, for which; -1: none.
  int64_t parent = -1;
  absl::string_view name;  // of the module, the operator, or what asked for data to move
  absl::string_view path;  // of the module at work, "" outside of all and for the model itself
  // By the steady clock, which processes of one host share; on a simulated rank by its clock
  // (Context::simulated_clock).
  int64_t start_ns = 0;
  int64_t duration_ns = -1;  // until it is complete; -1: it was not while this was traced
  int64_t live_bytes = 0;    // on the device, when it ended

  // --- Of redistributions.
  TraceCause cause = TraceCause::kAsked;
  int index = -1;              // see TraceCause
  bool implicit = false;       // dispatch chose it: what ContextOptions::max_implicit_bytes bounds
  int tensors = 0;             // that move together
  absl::string_view tensor;    // the (first) one: "[8, 4] f32 on ["tp"=2]"
  absl::string_view from, to;  // its layouts
  // --- Of exchanges; of waits the first two.
  CollectiveKind collective = CollectiveKind::kExchange;
  absl::string_view axes;       // "tp", "dp,tp"
  CommunicatorTraffic traffic;  // which the rank received
  int64_t wait_ns = 0;          // that the host spent in it

  bool complete() const { return duration_ns >= 0; }
};

using TraceTexts = std::set<std::string, std::less<>>;  // which do not move

struct RankTrace {
  int rank = 0, world_size = 1;
  bool simulated = false;  // times are predicted
  std::vector<TraceEvent> events;
  int64_t dropped = 0;  // events for which there was no room
  // Owns the texts of the events.
  std::shared_ptr<const TraceTexts> texts;

  // Of all exchanges: Communicator::traffic() since tracing began, if nothing was dropped.
  TrafficTable Traffic() const;
};

// Of a redistribution, in words: "operand 1 of MatMul, by its rule". Empty for other events.
std::string WhyText(const TraceEvent& event);

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_H_
