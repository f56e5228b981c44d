#include "dtensor/ops/box_exchange.h"

#include "dtensor/layout/digest.h"

namespace dtensor::internal {

absl::Status Exchange(const RankCall& call, const BoxExchange& exchange,
                      absl::Span<const SentTensor> parts) {
  Digest digest;
  digest.Add(static_cast<int64_t>(exchange.boxes.digest()));
  digest.Add(static_cast<int64_t>(call.lineage));
  digest.Add(int64_t{exchange.number});
  Collective collective;
  collective.kind = exchange.kind;
  collective.axes = exchange.axes;
  collective.op = call.decision.op->name;
  collective.group = exchange.group;
  collective.digest = digest.value();
  collective.description = &exchange.boxes;
  collective.boxes = &exchange.boxes;
  std::vector<std::vector<ReceiveBox>> receives;
  for (size_t i = 0; i < parts.size(); ++i) {
    receives.push_back(exchange.boxes.Receives(i, call.context.rank()));
  }
  const Tensor none;
  const auto or_none = [&](const Tensor& t) -> const Tensor& { return t.numel() > 0 ? t : none; };
  std::vector<ExchangePart> all;
  for (size_t i = 0; i < parts.size(); ++i) {
    all.push_back({or_none(parts[i].from), or_none(parts[i].to), receives[i]});
  }
  return call.context.communicator().Exchange(collective, all);
}

}  // namespace dtensor::internal
