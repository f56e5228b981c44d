#include "dtensor/runtime/comm/local/rank_group.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

namespace dtensor {

int RankGroup::IndexOf(int rank) const {
  return static_cast<int>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

absl::Status RankGroup::Post(int member, uint64_t number, const Collective& collective,
                             absl::Span<const ExchangePart> parts, uint64_t reads,
                             DeviceEvent ready) {
  Details& details = members_[member].details[number % 2];
  details.op.assign(collective.op.data(), collective.op.size());
  details.kind = collective.kind;
  details.digest = collective.digest;
  details.description = collective.description;
  details.parts = parts.size();
  details.ready = std::move(ready);
  members_[member].posts[number % 2] = {
      absl::HashOf(collective.op, collective.kind, collective.digest, parts.size()), reads,
      parts.data()};
  Publish(member, ExchangeStage::kPosted, number);
  return absl::OkStatus();
}

void RankGroup::PublishDone(int member, uint64_t number, DeviceEvent done) {
  members_[member].details[number % 2].done = std::move(done);
  Publish(member, ExchangeStage::kDone, number);
}

CallSummary RankGroup::SummaryOf(int member, uint64_t number) const {
  const Details& known = details(member, number);
  return dtensor::SummaryOf(known.op, known.kind, known.digest, known.description, known.parts);
}

void RankGroup::Wake() {
  {
    std::lock_guard lock(mutex_);
  }  // a thread about to sleep evaluates `ready` either before or after this
  wake_.notify_all();
}

// All wait for the last member to post, so earlier posts wake nobody.
void RankGroup::WakeFor(ExchangeStage stage, uint64_t number) {
  for (int member = 0; stage == ExchangeStage::kPosted && member < size(); ++member) {
    if (!Reached(member, ExchangeStage::kPosted, number)) return;
  }
  Wake();
}

}  // namespace dtensor
