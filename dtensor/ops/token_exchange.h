// The rows of tokens that ranks send to the ranks whose experts they pick, and back: an all-to-all
// whose sizes follow from the ids. For ExpertMlp and ClampedExpertMlp, on the axes that split both
// the tokens ("..." in its rule) and the experts (letter e). For the sources of this folder.
//
// All ranks of the group know all of the group's ids, so each of them knows what every other one
// sends and receives. A token is sent once to each rank that has experts of its picks.
#ifndef DTENSOR_OPS_TOKEN_EXCHANGE_H_
#define DTENSOR_OPS_TOKEN_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/ops/box_exchange.h"
#include "dtensor/ops/expert_routing.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// The ranks of an exchange, as seen from one of them. It follows from layouts, so it is made once
// for each dispatch decision.
struct TokenGroup : OpState {
  AxisList axes;                 // on which the ranks differ
  std::string axes_text;         // "ep"
  std::vector<int> ranks;        // of the world, in the order of DeviceMesh::Group
  std::vector<int> ascending;    // the same
  size_t me = 0;                 // this rank's place in `ranks`
  std::vector<int64_t> tokens;   // of each rank
  int64_t most_tokens = 0;       // of any rank
  std::vector<int64_t> experts;  // how many each rank has
  std::vector<int> owner;        // of each expert: the place in `ranks`; -1: none of these ranks
  bool is_alone() const { return ranks.size() <= 1; }
  int64_t num_experts() const { return static_cast<int64_t>(owner.size()); }
  int64_t bytes() const override;
};

// For OpDef::prepare. The rule has a letter e that is reached. `tokens`, `experts`: the operands
// that are [tokens..., features] and [experts, ...].
std::shared_ptr<const TokenGroup> MakeTokenGroup(const OpStateRequest& request, int tokens,
                                                 int experts);

class TokenExchange {
 public:
  // Gathers the ids of the group, the state of the call's decision. `ids`: this rank's, [tokens...,
  // choices]. Errors: kOutOfRange for an id of no expert, naming it, its place and its rank;
  // failures.
  static absl::StatusOr<TokenExchange> Create(const RankCall& call, const Tensor& ids);

  // Whether this rank is the only one of its group. Then nothing is sent: the tokens at the experts
  // are this rank's own.
  bool is_alone() const { return group_->is_alone(); }
  // What the tokens at this rank's experts pick.
  const PickedExperts& picked() const { return picked_; }

  // --- Requires: !is_alone().
  int64_t num_sent() const;
  int64_t num_received() const { return num_received_; }
  const Tensor& sent() const { return sent_; }  // [num_sent] i64: the token of each row sent
  // Sends rows [num_sent, n] to the experts, which get them as rows [num_received, n]. `number`
  // tells the exchanges of one call apart. Collective over the group. Errors: failures.
  absl::Status ToExperts(absl::Span<const SentTensor> rows, int number) const {
    return Move(rows, /*back=*/false, number);
  }
  // The reverse: `from` has num_received rows, `to` num_sent.
  absl::Status ToTokens(absl::Span<const SentTensor> rows, int number) const {
    return Move(rows, /*back=*/true, number);
  }

 private:
  class Boxes;
  explicit TokenExchange(const RankCall& call);
  absl::Status CheckIds(absl::Span<const int64_t> ids) const;
  void CountOnMeta();
  void Count(absl::Span<const int64_t> ids, std::vector<int64_t>& sent);
  absl::Status Move(absl::Span<const SentTensor> rows, bool back, int number) const;

  const RankCall* call_;
  const TokenGroup* group_;
  // Rows that rank [from] of the group sends to rank [to].
  std::vector<std::vector<int64_t>> rows_;
  int64_t num_received_ = 0;
  Tensor sent_;
  PickedExperts picked_;
};

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_TOKEN_EXCHANGE_H_
