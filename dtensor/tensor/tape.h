// Tape: one backward walk over the recorded operators. Only for autograd's sources.
#ifndef DTENSOR_TENSOR_TAPE_H_
#define DTENSOR_TENSOR_TAPE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/gradient_buckets.h"
#include "dtensor/tensor/late_values.h"
#include "dtensor/tensor/tape_walk.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

inline constexpr Lineage kGradientLineage = {.maker = "Backward"};

// A sum of gradients that arrived in one layout.
struct Contribution {
  SpecPtr spec;
  Tensor local;
  bool owned;  // nobody else reads `local`, so more may be added in place
  std::shared_ptr<LateProduct> late = nullptr;  // if set: still to be made, into `local`
};

// Makes the values of `sum`, if they were put off.
absl::Status MakeNow(Contribution& sum);

// The operands that backward reads for the gradients `wanted` of its operands, both as bits.
uint32_t ReadFor(const OpDef& op, uint32_t wanted);

class Tape {
 public:
  struct Options {
    absl::string_view who;     // what the user called
    uint64_t lineage = 0;      // of the loss and its gradient,
    uint64_t mesh_digest = 0;  // which are on this mesh
    bool retain = false;       // keep what operators saved: they may be walked again
    int64_t bucket_bytes = 0;
    bool defers = false;  // gradients of leaves wait for RunDeferred(); requires: !retain
  };
  Tape(Context& context, const Options& options, TapeWalk walk)
      : context_(context),
        options_(options),
        walk_(std::move(walk)),
        buckets_(options.who, options.bucket_bytes) {}

  const TapeWalk& walk() const { return walk_; }
  // Walks from `root`, at which the gradient `first` arrives. Adds up the gradients that arrive at
  // leaves and at other places that the walk keeps.
  absl::Status Run(const Edge& root, Contribution first);
  // Computes the gradients of leaves that Run() has put off, and adds them up. Errors: failures;
  // kFailedPrecondition, before anything runs, for what was written to or redistributed in place
  // since.
  absl::Status RunDeferred();
  // Adds these sums to the leaves' gradients: to all, or in case of an error to none.
  absl::Status Store();
  // The gradient of `tensor`, a leaf or an operator's result that the walk keeps, whose gradients
  // go along `edge`; null if none arrived.
  absl::StatusOr<TensorImplPtr> GradientOf(const Edge& edge, const TensorImplPtr& tensor);

 private:
  // What has arrived for one tensor: one Contribution for each layout, in order of arrival.
  using Slot = absl::InlinedVector<Contribution, 1>;
  struct Pending {
    std::shared_ptr<Node> node;
    absl::InlinedVector<Slot, 2> slots;  // of the node's results
  };

  // The lineage of what is done on the mesh of `spec`, for something of this lineage. That of the
  // loss is only known to ranks of the loss's mesh: others need not make the same tensors on it, or
  // write to them.
  uint64_t LineageOn(const Spec& spec, uint64_t lineage) const {
    const bool known = spec.mesh_digest == options_.mesh_digest;
    return MixLineage(known ? options_.lineage : 0, lineage);
  }
  // The slot of a leaf, which may no longer want a gradient.
  Slot& SlotOf(const TensorImplPtr& leaf) { return arrived_[PlaceOf({nullptr, 0, leaf})]; }
  absl::Status Accumulate(Slot& slot, Contribution more);
  absl::Status AddTo(Contribution& sum, Contribution more);
  absl::Status ConvertFor(const TensorImpl& leaf, Contribution& more);
  Pending& PendingOf(const std::shared_ptr<Node>& node);
  absl::Status AddAt(const Edge& edge, Contribution more);
  absl::Status Arrived(const Edge& edge);
  absl::Status Deliver(const Edge& edge, Contribution more);
  absl::Status MoveTo(Contribution& sum, const Spec* wanted, const ExchangeCaller& caller);
  absl::StatusOr<Tensor> Settle(Slot& slot, const Spec* wanted, const ExchangeCaller& caller);
  // Arguments and results of a node's backward. `wanted` is the GradCall's.
  struct Call {
    uint32_t wanted = 0;
    absl::InlinedVector<Tensor, 2> result_gradients;
    absl::InlinedVector<Tensor, 3> gradients;
    absl::InlinedVector<SpecPtr, 3> specs;
    std::shared_ptr<LateGather> gather;  // of result gradient 0, read by rows while it arrives
    std::shared_ptr<LateProduct> late;   // the gradient of operand 0
  };
  // What Run() has put off, in the order in which it would have arrived: gradients that arrived at
  // a leaf or, with a node, the call of its backward that computes gradients of leaves. The node
  // keeps what that call reads.
  struct Deferred {
    Edge edge;
    Slot arrived;
    std::shared_ptr<Node> node;
    absl::InlinedVector<Edge, 3> edges;  // the node's
    Call call;
  };
  // The bits of the operands of which the gradients are put off.
  uint32_t PutOffBits(const Node& node) const;
  void PutOff(const std::shared_ptr<Node>& node, uint32_t bits, Call& made);
  absl::Status RunPutOff(Deferred& deferred, GatherWalk& gathers);
  GradCall GradCallOf(const Node& node, Call& made);
  absl::Status SettleGradients(const Node& node, absl::InlinedVector<Slot, 2>& slots,
                               const AxisList& passed, const ExchangeCaller& caller, Call& call);
  // If the gradient of operand 0 can overlap with communication, computes it by rows while the
  // result's gradient is gathered, or puts it off (LateGradient); then clears its bit in
  // grad.wanted.
  absl::Status RunRows(const Node& node, GradCall& grad, Call& call);
  absl::Status RunBackward(const Node& node, GradCall& grad, Call& call);
  AxisList PassedAxes(const Decision& decision, const Slot& slot);
  absl::Status Visit(const std::shared_ptr<Node>& visited, absl::InlinedVector<Slot, 2>& slots);
  absl::Status FindWanted(const Node& node, const AxisList& passed, Call& made);
  absl::Status DeliverAll(const Node& node, Call& made);
  absl::Status CrossMeshes(const Node& node, Slot& slot);
  absl::StatusOr<Contribution> MovedBack(const Node& node, Slot& slot);
  absl::Status RunAgain(Node& node, absl::InlinedVector<Slot, 2>& slots);
  void Forget(Node& node);
  absl::Status Complete(const GatherWalk::Completed& completed);
  absl::Status ReduceEarly(const std::vector<TensorImplPtr>& leaves);
  absl::Status AddToBucket(const TensorImplPtr& leaf);
  absl::Status FinishGroups();
  absl::Status FinishBuckets();
  absl::Status Keep(const Node& node, absl::InlinedVector<Slot, 2>& slots);
  absl::StatusOr<TensorImplPtr> Sum(const TensorImplPtr& tensor, Slot& slot, uint64_t lineage);

  Context& context_;
  const Options options_;
  TapeWalk walk_;
  std::map<uint64_t, Pending> pending_;  // by creation order; the last is visited next
  std::vector<TensorImplPtr> leaves_;    // in order of arrival
  HashMap<GradientPlace, Slot> arrived_;
  std::vector<Deferred> deferred_;
  GradientBuckets buckets_;
  // Leaves whose gradients went to buckets_; and those of them for which the gradient that they
  // already had was included.
  HashSet<const TensorImpl*> in_buckets_, added_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TAPE_H_
