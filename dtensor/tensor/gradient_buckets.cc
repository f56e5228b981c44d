#include "dtensor/tensor/gradient_buckets.h"

#include <algorithm>

#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/noted_plan.h"
#include "dtensor/tensor/reduce_gradients.h"
#include "dtensor/tensor/tape.h"

namespace dtensor {
namespace {

// The bytes of an even share, rounded up: the same on every rank, whatever the rank holds.
int64_t BytesOf(const Spec& spec) {
  const int64_t parts = NumParts(spec.layout);
  return (NumElements(spec.shape) + parts - 1) / parts * SizeOf(spec.dtype);
}

}  // namespace

absl::Status GradientBuckets::Add(const TensorImplPtr& leaf, TensorImplPtr gradient) {
  DT_ASSIGN_OR_RETURN(GradientReduction reduction, ReductionOf(*leaf, *gradient));
  if (reduction.plan == nullptr) {
    reduced_.push_back({leaf, gradient->spec, std::move(gradient->local)});
    return absl::OkStatus();
  }
  const std::string key = CoalescingKey(*reduction.plan);
  auto bucket = std::find_if(waiting_.begin(), waiting_.end(),
                             [&](const Bucket& one) { return one.key == key; });
  if (bucket == waiting_.end()) {
    bucket = waiting_.emplace(waiting_.end());
    bucket->key = key;
  }
  bucket->plans.push_back(std::move(reduction.plan));
  bucket->sources.push_back(std::move(reduction.source));
  bucket->members.push_back({leaf, std::move(reduction.target), Tensor()});
  bucket->lineage = MixLineage(bucket->lineage, gradient->lineage.id);
  bucket->bytes += BytesOf(*gradient->spec);
  if (bucket->bytes < bytes_) return absl::OkStatus();
  Bucket full = std::move(*bucket);
  waiting_.erase(bucket);
  return Begin(std::move(full));
}

absl::Status GradientBuckets::Begin(Bucket bucket) {
  DT_RETURN_IF_ERROR(FinishBegun());
  Context& context = *bucket.members[0].leaf->context;
  const ExchangeCaller caller(who_, bucket.lineage, kGradientLineage);
  const TraceReason reason(context.tracer(), TraceCause::kReduceGradients);
  DT_ASSIGN_OR_RETURN(bucket.pending, BeginCoalesced(context, std::move(bucket.plans),
                                                     std::move(bucket.sources), caller));
  begun_ = std::move(bucket);
  return absl::OkStatus();
}

absl::Status GradientBuckets::FinishBegun() {
  if (begun_.pending == nullptr) return absl::OkStatus();
  Bucket bucket = std::exchange(begun_, {});
  DT_RETURN_IF_ERROR(bucket.pending->Wait().status());
  for (size_t i = 0; i < bucket.members.size(); ++i) {
    bucket.members[i].local = bucket.pending->result(i);
  }
  bucket.pending = nullptr;  // as it owns the results too
  for (Reduced& member : bucket.members) reduced_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::Status GradientBuckets::Finish() {
  for (Bucket& bucket : std::exchange(waiting_, {})) DT_RETURN_IF_ERROR(Begin(std::move(bucket)));
  return FinishBegun();
}

}  // namespace dtensor
