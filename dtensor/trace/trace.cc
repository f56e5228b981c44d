#include "dtensor/trace/trace.h"

#include "absl/strings/str_cat.h"

namespace dtensor {

absl::string_view ToString(TraceKind kind) {
  switch (kind) {
    case TraceKind::kSpan:
      return "span";
    case TraceKind::kModule:
      return "module";
    case TraceKind::kOperator:
      return "operator";
    case TraceKind::kRedistribution:
      return "redistribution";
    case TraceKind::kExchange:
      return "exchange";
    case TraceKind::kWait:
      return "wait";
  }
  return "";
}

absl::string_view ToString(TracePhase phase) {
  switch (phase) {
    case TracePhase::kForward:
      return "forward";
    case TracePhase::kBackward:
      return "backward";
    case TracePhase::kRecompute:
      return "recompute";
  }
  return "";
}

absl::string_view ToString(TraceCause cause) {
  switch (cause) {
    case TraceCause::kAsked:
      return "asked";
    case TraceCause::kOperand:
      return "operand";
    case TraceCause::kResult:
      return "result";
    case TraceCause::kEdgeInput:
      return "edge-input";
    case TraceCause::kEdgeOutput:
      return "edge-output";
    case TraceCause::kGradient:
      return "gradient";
    case TraceCause::kLeafGradient:
      return "leaf-gradient";
    case TraceCause::kGather:
      return "gather";
    case TraceCause::kGatherAgain:
      return "gather-again";
    case TraceCause::kReduceGradients:
      return "reduce-gradients";
  }
  return "";
}

std::string WhyText(const TraceEvent& event) {
  if (event.kind != TraceKind::kRedistribution) return "";
  const absl::string_view by = event.implicit ? ", by its rule" : ", by its arguments";
  switch (event.cause) {
    case TraceCause::kAsked:
      return "asked for";
    case TraceCause::kOperand:
      return absl::StrCat("operand ", event.index, " of ", event.name, by);
    case TraceCause::kResult:
      return absl::StrCat("result ", event.index, " of ", event.name, by);
    case TraceCause::kEdgeInput:
      return absl::StrCat("operand ", event.index, " of the module, by the plan");
    case TraceCause::kEdgeOutput:
      return absl::StrCat("result ", event.index, " of the module, by the plan");
    case TraceCause::kGradient:
      return absl::StrCat("gradient of result ", event.index, " of ", event.name);
    case TraceCause::kLeafGradient:
      return "a leaf's gradient, from several layouts";
    case TraceCause::kGather:
      return "parameters of a sharded unit";
    case TraceCause::kGatherAgain:
      return "an operand, again for backward";
    case TraceCause::kReduceGradients:
      return "gradients to where parameters rest";
  }
  return "";
}

TrafficTable RankTrace::Traffic() const {
  TrafficTable table;
  for (const TraceEvent& event : events) {
    if (event.kind != TraceKind::kExchange) continue;
    if (event.traffic == CommunicatorTraffic()) continue;  // nothing was received
    CommunicatorTraffic& sum =
        table[TrafficKey(std::string(event.axes.data(), event.axes.size()), event.collective)];
    sum.calls += event.traffic.calls;
    sum.messages += event.traffic.messages;
    sum.bytes += event.traffic.bytes;
  }
  return table;
}

}  // namespace dtensor
