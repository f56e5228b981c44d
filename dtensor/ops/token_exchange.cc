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

// What each rank of the group receives in one exchange.
class TokenExchange::Boxes final : public CallDescription, public ExchangeBoxes {
 public:
  Boxes(const TokenExchange& exchange, absl::Span<const SentRows> rows, bool back)
      : exchange_(exchange), back_(back) {
    Digest digest;
    digest.Add(int64_t{back});
    for (const SentRows& one : rows) {
      widths_.push_back(one.from.size(1));
      digest.Add(widths_.back());
    }
    for (const int rank : exchange.ranks_) digest.Add(int64_t{rank});
    for (const auto& row : exchange.rows_) {
      for (const int64_t count : row) digest.Add(count);
    }
    digest_ = digest.value();
  }

  std::string ToString() const override {
    return absl::StrCat("rows of ", absl::StrJoin(widths_, " and "), " elements ",
                        back_ ? "back from" : "to", " experts, ",
                        absl::StrJoin(exchange_.sends_, ", "), " by rank");
  }
  // Rows of one sender lie in the order of receivers, and arrive in the order of senders.
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    const auto& ranks = exchange_.ranks_;
    const auto to = static_cast<size_t>(absl::c_find(ranks, rank) - ranks.begin());
    std::vector<ReceiveBox> boxes;
    int64_t at = 0;
    for (size_t from = 0; from < ranks.size(); ++from) {
      const int64_t count = Rows(from, to);
      int64_t begin = 0;
      for (size_t other = 0; other < to; ++other) begin += Rows(from, other);
      if (count > 0 && widths_[part] > 0) {
        ReceiveBox& box = boxes.emplace_back();
        box.peers = {ranks[from]};
        box.dims = {{.src = begin, .dst = at, .length = count}, {.length = widths_[part]}};
      }
      at += count;
    }
    return boxes;
  }
  uint64_t digest() const override { return digest_; }

 private:
  int64_t Rows(size_t from, size_t to) const {
    return back_ ? exchange_.rows_[to][from] : exchange_.rows_[from][to];
  }

  const TokenExchange& exchange_;
  const bool back_;
  std::vector<int64_t> widths_;
  uint64_t digest_ = 0;
};

TokenExchange::TokenExchange(const RankCall& call, AxisList axes)
    : call_(&call), axes_(std::move(axes)) {
  const int rank = call.context.rank();
  ranks_ = call.decision.operands[0]->mesh().Group(rank, axes_);
  me_ = static_cast<int>(absl::c_find(ranks_, rank) - ranks_.begin());
}

int64_t TokenExchange::SumOf(absl::Span<const int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

absl::StatusOr<TokenExchange> TokenExchange::Create(const RankCall& call, int tokens, int experts,
                                                    const Tensor& ids) {
  const Decision& decision = call.decision;
  const OpRule& rule = decision.rule.rule();
  TokenExchange exchange(call, SentAxes(rule, decision.assignment, decision.rule.LetterIndex("e")));
  const int64_t choices = ids.shape().back();
  for (const int rank : exchange.ranks_) {
    exchange.tokens_.push_back(TokensOn(call, tokens, rank));
    exchange.most_ = std::max(exchange.most_, exchange.tokens_.back());
  }
  exchange.received_.choices = choices;
  exchange.received_.spread_over = SumOf(exchange.tokens_) * choices;
  Tensor of_all = ids;
  if (!exchange.is_alone()) {
    DT_ASSIGN_OR_RETURN(const Tensor padded, Padded(call.device(), ids, exchange.most_));
    DT_ASSIGN_OR_RETURN(of_all, call.GatherOver(exchange.axes_, padded));
  }
  if (call.device().is_meta()) {
    if (!exchange.is_alone()) DT_RETURN_IF_ERROR(exchange.CountOnMeta(experts));
    return exchange;
  }
  DT_ASSIGN_OR_RETURN(std::vector<int64_t> known,
                      ReadIds(of_all, decision.operands[experts]->shape[0]));
  if (exchange.is_alone()) {
    exchange.received_.tokens = exchange.tokens_[0];
    exchange.received_.ids = std::move(known);
    return exchange;
  }
  DT_RETURN_IF_ERROR(exchange.Count(experts, known));
  return exchange;
}

// As if a token's choices were spread over all ranks that have experts, as far as there are ranks:
// of the choices, those of the group's experts lie in it.
absl::Status TokenExchange::CountOnMeta(int experts) {
  const int64_t num_experts = call_->decision.operands[experts]->shape[0];
  int64_t held = 0;  // experts that the group has
  for (const int rank : ranks_) held += RegionOn(*call_, experts, rank)[0].size();
  // Rows for each rank are `part` of `whole` of the tokens.
  const int64_t whole = std::max<int64_t>(1, static_cast<int64_t>(ranks_.size()) * num_experts);
  const int64_t part = std::min(received_.choices * held, whole);
  for (const int64_t tokens : tokens_) {
    rows_.emplace_back(ranks_.size(), (tokens * part + whole - 1) / whole);
  }
  return Finish({});
}

// `ids`: of all ranks of the group, [ranks, most_, choices].
absl::Status TokenExchange::Count(int experts, absl::Span<const int64_t> ids) {
  std::vector<int> owner(call_->decision.operands[experts]->shape[0], -1);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const IndexSet held = RegionOn(*call_, experts, ranks_[r])[0];
    for (int64_t i = 0; i < held.size(); ++i) owner[held.At(i)] = static_cast<int>(r);
  }
  std::vector<std::vector<int64_t>> mine(ranks_.size());  // tokens for each rank
  const int64_t choices = received_.choices;
  for (size_t from = 0; from < ranks_.size(); ++from) {
    std::vector<int64_t>& row = rows_.emplace_back(ranks_.size(), 0);
    std::vector<int64_t> last(ranks_.size(), -1);  // the last token that was sent to each rank
    for (int64_t t = 0; t < tokens_[from]; ++t) {
      const auto picks = ids.subspan((static_cast<int64_t>(from) * most_ + t) * choices, choices);
      for (const int64_t id : picks) {
        const int to = owner[id];
        if (to < 0 || last[to] == t) continue;
        last[to] = t;
        ++row[to];
        if (static_cast<int>(from) == me_) mine[to].push_back(t);
        if (to == me_) received_.ids.insert(received_.ids.end(), picks.begin(), picks.end());
      }
    }
  }
  std::vector<int64_t> sent;
  for (const std::vector<int64_t>& tokens : mine) {
    sent.insert(sent.end(), tokens.begin(), tokens.end());
  }
  return Finish(sent);
}

absl::Status TokenExchange::Finish(absl::Span<const int64_t> sent) {
  sends_ = rows_[me_];
  for (const std::vector<int64_t>& row : rows_) receives_.push_back(row[me_]);
  received_.tokens = num_received();
  const int64_t shape[] = {num_sent()};
  if (call_->device().is_meta()) {
    DT_ASSIGN_OR_RETURN(sent_, Tensor::Empty(call_->device(), DType::kI64, shape));
  } else {
    DT_ASSIGN_OR_RETURN(sent_, FromHost<int64_t>(call_->device(), sent, shape));
  }
  return absl::OkStatus();
}

absl::Status TokenExchange::Move(absl::Span<const SentRows> rows, bool back, int number) const {
  const Boxes boxes(*this, rows, back);
  std::vector<int> group = ranks_;
  absl::c_sort(group);
  const DeviceMesh& mesh = call_->decision.operands[0]->mesh();
  const std::string axes = absl::StrJoin(
      axes_, ",", [&](std::string* out, int axis) { absl::StrAppend(out, mesh.axis_name(axis)); });
  Digest digest;
  digest.Add(static_cast<int64_t>(call_->lineage));
  digest.Add(int64_t{number});
  digest.Add(static_cast<int64_t>(boxes.digest()));
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
