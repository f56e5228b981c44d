// LateSend: this rank's part in a redistribution to a mesh that it is not on, put off. In the 1F1B
// schedule (parallel_plans/pipeline.h) a stage has computed its next micro-batch before it receives
// the gradient of an earlier one, but the next stage sends that gradient first. All ranks make
// exchanges in one order, so this stage sends after it has received. Only for tensors and the tape.
#ifndef DTENSOR_TENSOR_LATE_SEND_H_
#define DTENSOR_TENSOR_LATE_SEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/tensor/late_values.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

class LateSend final : public LateValues {
 public:
  // Keeps what it refers to. `values`: the result, which has no elements here.
  LateSend(Context& context, std::shared_ptr<const RankRedistributionPlan> plan,
           const Tensor& source, Tensor values, const ExchangeCaller& caller);

  // Whether it goes between the meshes of these tensors.
  bool IsBetween(const Spec& from, const Spec& to) const;

 private:
  absl::Status MakeAll() override;
  void Forget() override;

  const std::shared_ptr<const RankRedistributionPlan> plan_;
  Tensor source_;
  const std::string op_;
  ExchangeCaller caller_;  // its `op` refers to op_
};

// As RunPlan (noted_plan.h). A rank that only sends, to another mesh, does not wait for those who
// receive, where they need no other call of it (PendingRedistribution::delivery): what it sends is
// kept for them, and a write to it waits.
absl::StatusOr<Tensor> RunOrSend(Context& context,
                                 std::shared_ptr<const RankRedistributionPlan> plan,
                                 const Tensor& source, const ExchangeCaller& caller);

// Runs the plan for a redistribution of `impl`, whose elements are `source`. If the Context
// defers sends and this is one, it is put off until FinishLateSends(): the result has no
// elements anyway.
absl::StatusOr<Tensor> RunOrSendLater(const TensorImpl& impl, const Tensor& source,
                                      std::shared_ptr<const RankRedistributionPlan> plan,
                                      const ExchangeCaller& caller);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LATE_SEND_H_
