#include "dtensor/tensor/collective_results.h"

#include "dtensor/redistribution/lineage.h"

namespace dtensor {

void CollectiveResults::Keep(const CollectiveCall& call, absl::Span<const Tensor> results) {
  Entry& entry = entries_.emplace_back();
  entry.lineage = call.lineage;
  entry.spec = SpecPtr(call.spec);
  for (const Tensor& result : results) entry.results.push_back(result.Borrow());
}

absl::Span<const Tensor> CollectiveResults::Take(const CollectiveCall& call) {
  while (first_ < entries_.size() && entries_[first_].taken) ++first_;
  for (size_t i = first_; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.taken || entry.lineage != call.lineage || entry.spec.get() != call.spec) continue;
    entry.taken = true;
    return entry.results;
  }
  return {};
}

void CollectiveResults::Rewind() {
  first_ = 0;
  for (Entry& entry : entries_) entry.taken = false;
}

RecomputedRun::RecomputedRun(Context& context, CollectiveResults* results, const uint64_t* again)
    : context_(context),
      outer_(context.recomputed_run()),
      results_(results),
      again_(again != nullptr),
      recording_(context.recording()),
      random_(context.random()),
      call_(again_ ? *again : 0) {
  context.set_recomputed_run(this);
  context.set_recording(true);
  if (again_ && results != nullptr) results->Rewind();
}

RecomputedRun::~RecomputedRun() {
  context_.set_recomputed_run(outer_);
  context_.set_recording(recording_);
  if (again_) context_.random() = random_;
}

bool TakeResults(Context& context, const CollectiveCall& call, absl::Span<Tensor> out) {
  for (const RecomputedRun* run = context.recomputed_run(); run != nullptr; run = run->outer_) {
    if (!run->again_ || run->results_ == nullptr) continue;
    const absl::Span<const Tensor> kept = run->results_->Take(call);
    if (kept.size() != out.size()) continue;
    for (size_t i = 0; i < out.size(); ++i) out[i] = kept[i].Borrow();
    KeepResults(context, call, out);
    return true;
  }
  return false;
}

void KeepResults(Context& context, const CollectiveCall& call, absl::Span<const Tensor> results) {
  for (const RecomputedRun* run = context.recomputed_run(); run != nullptr; run = run->outer_) {
    if (!run->again_ && run->results_ != nullptr) run->results_->Keep(call, results);
  }
}

bool KeepsResults(const Context& context) {
  for (const RecomputedRun* run = context.recomputed_run(); run != nullptr; run = run->outer_) {
    if (run->results_ != nullptr) return true;
  }
  return false;
}

bool UsesKeptResults(const Context& context) {
  for (const RecomputedRun* run = context.recomputed_run(); run != nullptr; run = run->outer_) {
    if (run->again_ && run->results_ != nullptr) return true;
  }
  return false;
}

bool IsRecomputing(const Context& context) {
  const RecomputedRun* run = context.recomputed_run();
  while (run != nullptr && !run->again_) run = run->outer_;
  return run != nullptr;
}

std::optional<uint64_t> NumberMadeAgain(const Context& context, uint64_t mesh_digest) {
  RecomputedRun* run = context.recomputed_run();
  while (run != nullptr && !run->again_) run = run->outer_;
  if (run == nullptr) return std::nullopt;
  return MixLineage(run->call_, ++run->made_[mesh_digest]);
}

}  // namespace dtensor
