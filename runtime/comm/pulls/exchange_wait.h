// ExchangeWait: what a rank waits for in an exchange of a PullCommunicator.
#ifndef DTENSOR_RUNTIME_COMM_PULLS_EXCHANGE_WAIT_H_
#define DTENSOR_RUNTIME_COMM_PULLS_EXCHANGE_WAIT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/comm/wait_chain.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Waits until `member` of `group` reaches `stage` of exchange `number`.
template <typename Group>
struct ExchangeWait {
  int rank;  // who waits
  Group& group;
  int member;
  ExchangeStage stage;
  uint64_t number;
  absl::string_view op;

  int peer() const { return group.ranks()[member]; }
  bool over() const { return group.Reached(member, stage, number); }
  std::string ToString() const { return CallText(op, number, group.ranks()); }
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULLS_EXCHANGE_WAIT_H_
