#include "dtensor/ops/token_exchange.h"

#include <algorithm>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {
namespace {

int64_t SumOf(absl::Span<const int64_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
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

int64_t TokenGroup::bytes() const {
  return static_cast<int64_t>(ranks.size() * 24 + owner.size() * sizeof(int));
}

std::shared_ptr<const TokenGroup> MakeTokenGroup(const OpStateRequest& request, int tokens,
                                                 int experts) {
  auto group = std::make_shared<TokenGroup>();
  const Spec &x = *request.operands[tokens], &of_experts = *request.operands[experts];
  const DeviceMesh& mesh = x.mesh();
  group->axes = SentAxes(request.rule.rule(), request.assignment, request.rule.LetterIndex("e"));
  group->axes_text = mesh.AxisNames(group->axes);
  group->ranks = group->ascending = mesh.Group(request.rank, group->axes);
  absl::c_sort(group->ascending);
  group->me = static_cast<size_t>(absl::c_find(group->ranks, request.rank) - group->ranks.begin());
  group->owner.assign(of_experts.shape[0], -1);
  for (size_t r = 0; r < group->ranks.size(); ++r) {
    const auto coordinate = mesh.Coordinate(group->ranks[r]);
    const Dims local = x.layout.LocalShape(x.shape, group->ranks[r]);
    group->tokens.push_back(NumElements(absl::MakeConstSpan(local).first(local.size() - 1)));
    const IndexSet held = Regions(of_experts.layout, of_experts.shape, coordinate)[0];
    for (int64_t i = 0; i < held.size(); ++i) group->owner[held.At(i)] = static_cast<int>(r);
    group->experts.push_back(held.size());
  }
  group->most_tokens = *absl::c_max_element(group->tokens);
  return group;
}

// What each rank of the group receives in one exchange: rows of one sender lie in the order of
// receivers, and arrive in the order of senders.
class TokenExchange::Boxes final : public BoxesOfAll {
 public:
  Boxes(const TokenExchange& exchange, absl::Span<const SentTensor> rows, bool back)
      : exchange_(exchange), back_(back) {
    const size_t size = exchange.group_->ranks.size();
    lies_at_.resize(size, std::vector<int64_t>(size, 0));
    arrives_at_ = lies_at_;
    Digest digest;
    for (const SentTensor& one : rows) {
      widths_.push_back(one.from.size(1));
      digest.Add(widths_.back());
      digest.Add(static_cast<int64_t>(one.from.dtype()));
    }
    for (const int rank : exchange.group_->ranks) digest.Add(int64_t{rank});
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
                        absl::StrJoin(exchange_.rows_[exchange_.group_->me], ", "),
                        " rows for ranks ", absl::StrJoin(exchange_.group_->ranks, ", "));
  }
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    const auto& ranks = exchange_.group_->ranks;
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

TokenExchange::TokenExchange(const RankCall& call)
    : call_(&call), group_(static_cast<const TokenGroup*>(call.decision.state.get())) {}

int64_t TokenExchange::num_sent() const { return SumOf(rows_[group_->me]); }

absl::StatusOr<TokenExchange> TokenExchange::Create(const RankCall& call, const Tensor& ids) {
  Device& device = call.device();
  TokenExchange exchange(call);
  const TokenGroup& group = *exchange.group_;
  exchange.picked_.choices = ids.shape().back();
  exchange.picked_.spread_over = SumOf(group.tokens) * ids.shape().back();
  Tensor of_group = ids;
  if (!group.is_alone()) {
    DT_ASSIGN_OR_RETURN(const Tensor padded, Padded(device, ids, group.most_tokens));
    DT_ASSIGN_OR_RETURN(of_group, call.GatherOver(group.axes, padded));
  }
  std::vector<int64_t> sent;
  if (device.is_meta()) {
    if (group.is_alone()) return exchange;
    exchange.CountOnMeta();
  } else {
    DT_ASSIGN_OR_RETURN(std::vector<int64_t> known, ReadIds(of_group));
    DT_RETURN_IF_ERROR(exchange.CheckIds(known));
    if (group.is_alone()) {
      exchange.picked_.ids = std::move(known);
      return exchange;
    }
    exchange.Count(known, sent);
  }
  for (const std::vector<int64_t>& row : exchange.rows_) exchange.num_received_ += row[group.me];
  const int64_t shape[] = {exchange.num_sent()};
  if (device.is_meta()) {
    DT_ASSIGN_OR_RETURN(exchange.sent_, Tensor::Empty(device, DType::kI64, shape));
  } else {
    DT_ASSIGN_OR_RETURN(exchange.sent_, FromHost<int64_t>(device, sent, shape));
  }
  return exchange;
}

// `ids`: of all ranks of the group, [ranks, most_tokens, choices].
absl::Status TokenExchange::CheckIds(absl::Span<const int64_t> ids) const {
  const int64_t choices = picked_.choices;
  for (size_t from = 0; from < group_->ranks.size(); ++from) {
    for (int64_t i = 0; i < group_->tokens[from] * choices; ++i) {
      const int64_t id = ids[static_cast<int64_t>(from) * group_->most_tokens * choices + i];
      if (id >= 0 && id < group_->num_experts()) continue;
      return absl::OutOfRangeError(absl::StrCat(call_->decision.op->name, ": expert ", id,
                                                ", choice ", i % choices, " of token ", i / choices,
                                                " of rank ", group_->ranks[from],
                                                ", is outside [0, ", group_->num_experts(), ")"));
    }
  }
  return absl::OkStatus();
}

// As if the choices of each token were spread evenly over the experts, each of them on another rank
// as far as there are ranks.
void TokenExchange::CountOnMeta() {
  for (const int64_t tokens : group_->tokens) {
    std::vector<int64_t>& row = rows_.emplace_back();
    for (const int64_t experts : group_->experts) {
      const int64_t share = picked_.choices * experts, all = group_->num_experts();
      row.push_back(std::min(tokens, (tokens * share + all - 1) / all));
    }
  }
}

// `ids`: as for CheckIds. `sent`: the tokens that this rank sends, by receiver.
void TokenExchange::Count(absl::Span<const int64_t> ids, std::vector<int64_t>& sent) {
  const size_t size = group_->ranks.size();
  const std::vector<int>& owner = group_->owner;
  std::vector<std::vector<int64_t>> mine(size);  // this rank's tokens for each rank
  const int64_t choices = picked_.choices;
  for (size_t from = 0; from < size; ++from) {
    std::vector<int64_t>& row = rows_.emplace_back(size, 0);
    std::vector<int64_t> last(size, -1);  // the last token that was sent to each rank
    for (int64_t t = 0; t < group_->tokens[from]; ++t) {
      const auto picks =
          ids.subspan((static_cast<int64_t>(from) * group_->most_tokens + t) * choices, choices);
      for (const int64_t id : picks) {
        if (owner[id] < 0 || last[owner[id]] == t) continue;
        const auto to = static_cast<size_t>(owner[id]);
        last[to] = t;
        ++row[to];
        if (from == group_->me) mine[to].push_back(t);
        if (to == group_->me) picked_.ids.insert(picked_.ids.end(), picks.begin(), picks.end());
      }
    }
  }
  for (const std::vector<int64_t>& tokens : mine) {
    sent.insert(sent.end(), tokens.begin(), tokens.end());
  }
}

absl::Status TokenExchange::Move(absl::Span<const SentTensor> rows, bool back, int number) const {
  const Boxes boxes(*this, rows, back);
  return Exchange(*call_,
                  {.kind = CollectiveKind::kAllToAll,
                   .axes = group_->axes_text,
                   .group = group_->ascending,
                   .boxes = boxes,
                   .number = number},
                  rows);
}

}  // namespace dtensor::internal
