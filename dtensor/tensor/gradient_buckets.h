// GradientBuckets: reduces gradients to their leaves' layouts while Backward goes on
// (BackwardOptions::bucket_bytes).
#ifndef DTENSOR_TENSOR_GRADIENT_BUCKETS_H_
#define DTENSOR_TENSOR_GRADIENT_BUCKETS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

// Gradients that are reduced over the same axes are collected in one bucket. When a bucket has
// `bytes`, its reduction is begun as one collective; the collective begun before it is finished
// first.
class GradientBuckets {
 public:
  struct Reduced {
    TensorImplPtr leaf;
    SpecPtr spec;
    Tensor local;
  };

  GradientBuckets(absl::string_view who, int64_t bytes) : who_(who), bytes_(bytes) {}

  // Adds the leaf's complete gradient. Collective. Errors: failures.
  absl::Status Add(const TensorImplPtr& leaf, TensorImplPtr gradient);
  // Reduces what is left in buckets, and waits for all reductions. Collective. Errors: failures.
  absl::Status Finish();
  // After Finish(): all gradients that were added, reduced.
  std::vector<Reduced> TakeReduced() { return std::exchange(reduced_, {}); }

 private:
  struct Bucket {
    std::string key;
    std::vector<std::shared_ptr<const RankRedistributionPlan>> plans;
    std::vector<Tensor> sources;
    std::vector<Reduced> members;
    uint64_t lineage = 0;
    int64_t bytes = 0;  // sum over sources of an even share of each, so the same on every rank
    std::unique_ptr<PendingRedistribution> pending;
  };
  absl::Status Begin(Bucket bucket);
  absl::Status FinishBegun();

  const absl::string_view who_;
  const int64_t bytes_;
  std::vector<Bucket> waiting_;  // in the order in which they were opened
  Bucket begun_;                 // the one in flight, if `pending` is set
  std::vector<Reduced> reduced_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GRADIENT_BUCKETS_H_
