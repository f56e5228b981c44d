#include "dtensor/ops/token_exchange.h"

#include <algorithm>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::internal {
namespace {

// What `rank` holds of operand i.
Region RegionOn(const RankCall& call, int i, int rank) {
  const Layout& layout = call.decision.assignment.operands[i];
  return Regions(layout, call.decision.operands[i]->shape, layout.mesh().Coordinate(rank));
}

// The number of tokens that `rank` holds of an operand [tokens..., features].
int64_t TokensOn(const RankCall& call, int i, int rank) {
  const Region region = RegionOn(call, i, rank);
  int64_t tokens = 1;
  for (size_t d = 0; d + 1 < region.size(); ++d) tokens *= region[d].size();
  return tokens;
}

// ids [tokens..., choices] as i64 [most, choices]; the rows behind them are 0.
absl::StatusOr<Tensor> Padded(Device& device, const Tensor& ids, int64_t most) {
  const int64_t choices = ids.shape().back();
  DT_ASSIGN_OR_RETURN(Tensor padded, Tensor::Empty(device, DType::kI64, {most, choices}));
  DT_RETURN_IF_ERROR(kernels::Fill(device, padded, 0));
  if (ids.numel() == 0) return padded;
  DT_ASSIGN_OR_RETURN(const Tensor front,
                      padded.Narrow(0, 0, ids.numel() / choices).Reshape(ids.shape()));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, ids, front));
  return padded;
}

}  // namespace

// What each rank of the group receives in one exchange: rows of one sender lie in the order of
// receivers, and arrive in the order of senders.
class TokenExchange::Boxes final : public CallDescription, public ExchangeBoxes {
 public:
  Boxes(const TokenExchange& exchange, absl::Span<const SentRows> rows, bool back)
      : exchange_(exchange), back_(back) {
    const size_t size = exchange.ranks_.size();
    lies_at_.resize(size, std::vector<int64_t>(size, 0));
    arrives_at_ = lies_at_;
    Digest digest;
    for (const SentRows& one : rows) {
      widths_.push_back(one.from.size(1));
      digest.Add(widths_.back());
      digest.Add(static_cast<int64_t>(one.from.dtype()));
    }
    for (const int rank : exchange.ranks_) digest.Add(int64_t{rank});
    for (size_t from = 0; from < size; ++from) {
      for (size_t to = 0; to < size; ++to) {
        digest.Add(Rows(from, to));
        if (to > 0) lies_at_[from][to] = lies_at_[from][to - 1] + Rows(from, to - 1);
        if (from > 0) arrives_at_[from][to] = arrives_at_[from - 1][to] + Rows(from - 1, to);
      }
    }
    digest_ = digest.value();
  }

  std::string ToString() const override {
    return absl::StrCat("rows of ", absl::StrJoin(widths_, " and "), " elements ",
                        back_ ? "back from" : "to", " experts; this rank has ",
                        absl::StrJoin(exchange_.rows_[exchange_.me_], ", "), " rows for ranks ",
                        absl::StrJoin(exchange_.ranks_, ", "));
  }
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    const auto& ranks = exchange_.ranks_;
    const auto to = static_cast<size_t>(absl::c_find(ranks, rank) - ranks.begin());
    std::vector<ReceiveBox> boxes;
    for (size_t from = 0; from < ranks.size(); ++from) {
      const int64_t count = Rows(from, to);
      if (count == 0 || widths_[part] == 0) continue;
      ReceiveBox& box = boxes.emplace_back();
      box.peers = {ranks[from]};
      box.dims = {{.src = lies_at_[from][to], .dst = arrives_at_[from][to], .length = count},
                  {.length = widths_[part]}};
    }
    return boxes;
  }
  uint64_t digest() const override { return digest_; }
  bool may_repeat() const override { return false; }  // other tokens pick other experts

 private:
  int64_t Rows(size_t from, size_t to) const {
    return back_ ? exchange_.rows_[to][from] : exchange_.rows_[from][to];
  }

  const TokenExchange& exchange_;
  const bool back_;
  std::vector<int64_t> widths_;
  std::vector<std::vector<int64_t>> lies_at_, arrives_at_;  // [from][to]
  uint64_t digest_ = 0;
};

TokenExchange::TokenExchange(const RankCall& call, int experts) : call_(&call) {
  const Decision& decision = call.decision;
  axes_ = SentAxes(decision.rule.rule(), decision.assignment, decision.rule.LetterIndex("e"));
  ranks_ = decision.operands[0]->mesh().Group(call.context.rank(), axes_);
  me_ = static_cast<size_t>(absl::c_find(ranks_, call.context.rank()) - ranks_.begin());
  num_experts_ = decision.operands[experts]->shape[0];
}

int64_t TokenExchange::SumOf(absl::Span<const int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

int64_t TokenExchange::num_received() const {
  int64_t sum = 0;
  for (const std::vector<int64_t>& row : rows_) sum += row[me_];
  return sum;
}

absl::StatusOr<TokenExchange> TokenExchange::Create(const RankCall& call, int tokens, int experts,
                                                    const Tensor& ids) {
  Device& device = call.device();
  TokenExchange exchange(call, experts);
  for (const int rank : exchange.ranks_) {
    exchange.tokens_.push_back(TokensOn(call, tokens, rank));
    exchange.experts_.push_back(RegionOn(call, experts, rank)[0]);
    exchange.most_tokens_ = std::max(exchange.most_tokens_, exchange.tokens_.back());
  }
  exchange.picked_.choices = ids.shape().back();
  exchange.picked_.spread_over = SumOf(exchange.tokens_) * ids.shape().back();
  Tensor of_group = ids;
  if (!exchange.is_alone()) {
    DT_ASSIGN_OR_RETURN(const Tensor padded, Padded(device, ids, exchange.most_tokens_));
    DT_ASSIGN_OR_RETURN(of_group, call.GatherOver(exchange.axes_, padded));
  }
  std::vector<int64_t> sent;
  if (device.is_meta()) {
    if (exchange.is_alone()) return exchange;
    exchange.CountOnMeta();
  } else {
    DT_ASSIGN_OR_RETURN(std::vector<int64_t> known, ReadIds(of_group));
    DT_RETURN_IF_ERROR(exchange.CheckIds(known));
    if (exchange.is_alone()) {
      exchange.picked_.ids = std::move(known);
      return exchange;
    }
    exchange.Count(known, sent);
  }
  const int64_t shape[] = {exchange.num_sent()};
  if (device.is_meta()) {
    DT_ASSIGN_OR_RETURN(exchange.sent_, Tensor::Empty(device, DType::kI64, shape));
  } else {
    DT_ASSIGN_OR_RETURN(exchange.sent_, FromHost<int64_t>(device, sent, shape));
  }
  return exchange;
}

// `ids`: of all ranks of the group, [ranks, most_tokens_, choices].
absl::Status TokenExchange::CheckIds(absl::Span<const int64_t> ids) const {
  const int64_t choices = picked_.choices;
  for (size_t from = 0; from < ranks_.size(); ++from) {
    for (int64_t i = 0; i < tokens_[from] * choices; ++i) {
      const int64_t id = ids[static_cast<int64_t>(from) * most_tokens_ * choices + i];
      if (id >= 0 && id < num_experts_) continue;
      return absl::OutOfRangeError(absl::StrCat(
          call_->decision.op->name, ": expert ", id, ", choice ", i % choices, " of token ",
          i / choices, " of rank ", ranks_[from], ", is outside [0, ", num_experts_, ")"));
    }
  }
  return absl::OkStatus();
}

// As if the choices of each token were spread evenly over the experts, each of them on another rank
// as far as there are ranks.
void TokenExchange::CountOnMeta() {
  for (const int64_t tokens : tokens_) {
    std::vector<int64_t>& row = rows_.emplace_back();
    for (const IndexSet& experts : experts_) {
      const int64_t share = picked_.choices * experts.size();
      row.push_back(std::min(tokens, (tokens * share + num_experts_ - 1) / num_experts_));
    }
  }
}

// `ids`: as for CheckIds. `sent`: the tokens that this rank sends, by receiver.
void TokenExchange::Count(absl::Span<const int64_t> ids, std::vector<int64_t>& sent) {
  const size_t size = ranks_.size();
  std::vector<int> owner(num_experts_, -1);
  for (size_t r = 0; r < size; ++r) {
    for (int64_t i = 0; i < experts_[r].size(); ++i) owner[experts_[r].At(i)] = static_cast<int>(r);
  }
  std::vector<std::vector<int64_t>> mine(size);  // this rank's tokens for each rank
  const int64_t choices = picked_.choices;
  for (size_t from = 0; from < size; ++from) {
    std::vector<int64_t>& row = rows_.emplace_back(size, 0);
    std::vector<int64_t> last(size, -1);  // the last token that was sent to each rank
    for (int64_t t = 0; t < tokens_[from]; ++t) {
      const auto picks =
          ids.subspan((static_cast<int64_t>(from) * most_tokens_ + t) * choices, choices);
      for (const int64_t id : picks) {
        if (owner[id] < 0 || last[owner[id]] == t) continue;
        const auto to = static_cast<size_t>(owner[id]);
        last[to] = t;
        ++row[to];
        if (from == me_) mine[to].push_back(t);
        if (to == me_) picked_.ids.insert(picked_.ids.end(), picks.begin(), picks.end());
      }
    }
  }
  for (const std::vector<int64_t>& tokens : mine) {
    sent.insert(sent.end(), tokens.begin(), tokens.end());
  }
}

absl::Status TokenExchange::Move(absl::Span<const SentRows> rows, bool back, int number) const {
  const Boxes boxes(*this, rows, back);
  std::vector<int> group = ranks_;
  absl::c_sort(group);
  Digest digest;
  digest.Add(static_cast<int64_t>(boxes.digest()));
  digest.Add(static_cast<int64_t>(call_->lineage));
  digest.Add(int64_t{number});
  const std::string axes = call_->decision.operands[0]->mesh().AxisNames(axes_);
  Collective collective;
  collective.kind = CollectiveKind::kAllToAll;
  collective.axes = axes;
  collective.op = call_->decision.op->name;
  collective.group = group;
  collective.digest = digest.value();
  collective.description = &boxes;
  collective.boxes = &boxes;
  const Tensor none;
  std::vector<std::vector<ReceiveBox>> receives;
  for (size_t i = 0; i < rows.size(); ++i) {
    receives.push_back(boxes.Receives(i, call_->context.rank()));
  }
  std::vector<ExchangePart> parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    parts.push_back({rows[i].from.numel() > 0 ? rows[i].from : none,
                     rows[i].to.numel() > 0 ? rows[i].to : none, receives[i]});
  }
  return call_->context.communicator().Exchange(collective, parts);
}

}  // namespace dtensor::internal
