// GradientBuckets: gradients that are reduced to their leaves' layouts while Backward goes on. For
// tape.cc only.
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

// Gradients whose reductions go over the same axes wait together. When they have `bytes`, they are
// begun, in one collective; the one that was begun before is finished first.
class GradientBuckets {
 public:
  struct Reduced {
    TensorImplPtr leaf;
    SpecPtr spec;
    Tensor local;
  };

  GradientBuckets(absl::string_view who, int64_t bytes) : who_(who), bytes_(bytes) {}

  // All of the leaf's gradient. Collective. Errors: failures.
  absl::Status Add(const TensorImplPtr& leaf, TensorImplPtr gradient);
  // Reduces what waits, and finishes all that was begun. Collective. Errors: failures.
  absl::Status Finish();
  // All gradients that were added, once they are finished.
  std::vector<Reduced> TakeReduced() { return std::exchange(reduced_, {}); }

 private:
  struct Bucket {
    std::string key;
    std::vector<std::shared_ptr<const RankRedistributionPlan>> plans;
    std::vector<Tensor> sources;
    std::vector<Reduced> members;
    uint64_t lineage = 0;
    int64_t bytes = 0;  // of an even share of each source
    std::unique_ptr<PendingRedistribution> pending;
  };
  absl::Status Begin(Bucket bucket);
  absl::Status FinishBegun();

  const absl::string_view who_;
  const int64_t bytes_;
  std::vector<Bucket> waiting_;  // in the order in which they were opened
  Bucket begun_;                 // if it has `pending`
  std::vector<Reduced> reduced_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GRADIENT_BUCKETS_H_
