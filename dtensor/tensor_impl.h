// What is behind a DistributedTensor, and the tape. For dispatch, autograd and the factories only.
#ifndef DTENSOR_TENSOR_IMPL_H_
#define DTENSOR_TENSOR_IMPL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/context.h"
#include "dtensor/executor.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

struct Node;
struct Decision;
struct TensorImpl;
using TensorImplPtr = std::shared_ptr<TensorImpl>;

// Where a tensor's gradient goes: a recorded operator's result, a leaf, or (both null) nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;  // which result of node
  TensorImplPtr leaf;
  bool wanted() const { return node != nullptr || leaf != nullptr; }
  friend bool operator==(const Edge&, const Edge&) = default;
};

struct TensorImpl {
  Context* context = nullptr;
  const Spec* spec = nullptr;
  Tensor local;
  // `local` is on its way: see Settle().
  std::shared_ptr<PendingRedistribution> pending;

  Edge edge;                   // of a tensor that an operator or a redistribution made
  bool requires_grad = false;  // a leaf that wants a gradient
  bool pinned = false;
  unsigned version = 0;  // how often a leaf was written in place
  TensorImplPtr grad;

  // Redistributions of this tensor. Leaves that want gradients and what is pinned hold them weakly:
  // parameters live on, and a gathered copy must not (nor keep alive the leaf that its edge names).
  struct Remembered {
    const Spec* spec;
    unsigned version;
    TensorImplPtr strong;
    std::weak_ptr<TensorImpl> weak;
  };
  std::vector<Remembered> remembered;
  bool remembers_weakly() const { return requires_grad || pinned; }
};

// One recorded operator. Holds local tensors, not TensorImpls: what a tensor remembers is not kept
// alive.
struct Node {
  uint64_t sequence = 0;
  const Decision* decision = nullptr;
  uint64_t seed = 0;                                 // of the call's Attrs
  bool consumed = false;                             // by a Backward, which cleared what follows
  absl::InlinedVector<Edge, 3> edges;                // of the operands
  absl::InlinedVector<unsigned, 3> versions;         // of the leaves among them when they were read
  absl::InlinedVector<Tensor, 3> operands, results;  // those that backward reads; others undefined
};

// Waits for impl.local. Errors: what went wrong on the way.
absl::Status Settle(TensorImpl& impl);

TensorImplPtr MakeImpl(Context& context, const Spec* spec, Tensor local);
Edge EdgeOf(const TensorImplPtr& impl);

// `impl` in the layout of `target` (same mesh, shape and type), remembered. `op` is what the user
// called. While the Context records, gradients of what is returned are those of `impl`.
absl::StatusOr<TensorImplPtr> RedistributeTo(const TensorImplPtr& impl, const Spec* target,
                                             absl::string_view op);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_IMPL_H_
