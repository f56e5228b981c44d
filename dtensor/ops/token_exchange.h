// The rows of tokens that ranks send to the ranks whose experts they pick, and back: an all-to-all
// whose sizes follow from the ids. For ExpertMlp, on the axes that split both the tokens ("..." in
// its rule) and the experts (letter e). For the sources of this folder.
//
// All ranks of the group know all of the group's ids, so each of them knows what every other one
// sends and receives. A token is sent once to each rank that has experts of its picks.
#ifndef DTENSOR_OPS_TOKEN_EXCHANGE_H_
#define DTENSOR_OPS_TOKEN_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/ops/expert_routing.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// A row matrix on each side.
struct SentRows {
  Tensor from, to;
};

class TokenExchange {
 public:
  // Gathers the ids of the group. `tokens`, `experts`: the operands of the call that are
  // [tokens..., features] and [experts, ...]. `ids`: this rank's, [tokens..., choices]. Errors:
  // those of ReadIds; failures.
  static absl::StatusOr<TokenExchange> Create(const RankCall& call, int tokens, int experts,
                                              const Tensor& ids);

  // Whether there is a group. If not, rows that are sent are the tokens themselves.
  bool is_alone() const { return ranks_.size() <= 1; }
  int64_t num_sent() const { return SumOf(sends_); }
  int64_t num_received() const { return SumOf(receives_); }
  const Tensor& sent() const { return sent_; }  // [num_sent] i64: the token of each row sent
  // What the tokens of the received rows pick.
  const PickedExperts& received() const { return received_; }

  // Sends rows [num_sent, n] of one type to the experts, which get them as rows [num_received, n].
  // `number` tells the exchanges of one call apart. Collective over the group. Errors: failures.
  absl::Status ToExperts(absl::Span<const SentRows> rows, int number) const {
    return Move(rows, /*back=*/false, number);
  }
  // The reverse: `from` has num_received rows, `to` num_sent.
  absl::Status ToTokens(absl::Span<const SentRows> rows, int number) const {
    return Move(rows, /*back=*/true, number);
  }

 private:
  class Boxes;
  TokenExchange(const RankCall& call, AxisList axes);
  static int64_t SumOf(absl::Span<const int64_t> rows);
  absl::Status CountOnMeta(int experts);
  absl::Status Count(int experts, absl::Span<const int64_t> ids);
  absl::Status Finish(absl::Span<const int64_t> sent);
  absl::Status Move(absl::Span<const SentRows> rows, bool back, int number) const;

  const RankCall* call_;
  AxisList axes_;
  std::vector<int> ranks_;       // of the world, in the order of DeviceMesh::Group
  int me_ = 0;                   // this rank's place among them
  std::vector<int64_t> tokens_;  // of each rank
  int64_t most_ = 0;             // tokens of any rank
  // Rows that rank [from] of the group sends to rank [to].
  std::vector<std::vector<int64_t>> rows_;
  std::vector<int64_t> sends_, receives_;  // of this rank, to and from each
  Tensor sent_;
  PickedExperts received_;
};

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_TOKEN_EXCHANGE_H_
