// Context: what one rank has. Its place in the world, device, communicator, and the caches that
// make a dispatch one look-up. Handed in, never global: two of them in one process work side by
// side.
//
// A Context and everything made with it belong to one thread (the rank's), and the Context must
// outlive its tensors. Operators refuse operands of two Contexts.
#ifndef DTENSOR_CONTEXT_H_
#define DTENSOR_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/executor.h"
#include "dtensor/layout.h"
#include "dtensor/redistribution_plan.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/run_ranks.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

struct DispatchCache;  // dispatch_cache.h

// (mesh, layout, shape, dtype), interned in a Context: equal Specs have one address.
struct Spec {
  Layout layout;
  Dims shape;  // global
  DType dtype = DType::kF32;
  // This rank's; [0] if it is not on the mesh.
  Dims local_shape;
  bool on_mesh = true;  // this rank is

  const DeviceMesh& mesh() const { return layout.mesh(); }
  int rank() const { return static_cast<int>(shape.size()); }
  int64_t local_numel = 0;
  // "[8, 4] f32 on ["tp"=2] as [tp] []"
  std::string ToString() const;
};

class Context {
 public:
  // Both must outlive the Context.
  Context(Communicator& communicator, Device& device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int rank() const { return communicator_.rank(); }
  int world_size() const { return communicator_.size(); }
  Communicator& communicator() { return communicator_; }
  Device& device() { return device_; }

  // The one Spec with these values. Errors: kInvalidArgument when the mesh has not as many ranks as
  // the world and does not say which it lies on (DeviceMesh::OnRanks), naming both and the remedy;
  // when it lies on ranks that the world lacks; when layout and shape differ in rank.
  absl::StatusOr<const Spec*> Intern(const Layout& layout, absl::Span<const int64_t> shape,
                                     DType dtype);

  // How plans are chosen where a call does not say. The same on all ranks.
  const RedistributionOptions& redistribution_options() const;
  void set_redistribution_options(const RedistributionOptions& options);

  // The cached plan, of the Context's options or others; the types are those of the specs.
  // Requires: specs of this Context. Errors: as RedistributionPlan::Create.
  absl::StatusOr<std::shared_ptr<const RankPlan>> Plan(
      const Spec* from, const Spec* to, const RedistributionOptions* options = nullptr);

  // Operators record for Backward() while this is on (the default) and an operand requires
  // gradients.
  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }
  uint64_t NextSequence() { return ++sequence_; }  // creation order of autograd nodes

  DispatchCache& dispatch_cache() { return *dispatch_cache_; }

 private:
  struct Tables;  // specs, plans
  Communicator& communicator_;
  Device& device_;
  bool recording_ = true;
  uint64_t sequence_ = 0;
  std::unique_ptr<Tables> tables_;
  std::unique_ptr<DispatchCache> dispatch_cache_;
};

// Turns recording off while it lives: evaluation, optimizers.
class NoGrad {
 public:
  explicit NoGrad(Context& context) : context_(context), before_(context.recording()) {
    context_.set_recording(false);
  }
  ~NoGrad() { context_.set_recording(before_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Context& context_;
  bool before_;
};

// Runs fn on one thread per rank, each with its own Context: the world of a laptop. See
// RunLocalRanks.
absl::Status RunRanks(int n, const std::function<absl::Status(Context&)>& fn,
                      const RunOptions& options = {});

// Runs fn once, as rank `rank` of `size`, on a meta device with a simulated communicator: the same
// program, with shapes and no bytes. What it would communicate is in
// context.communicator().traffic(), and what it would hold in context.device().memory().
absl::Status Simulate(int rank, int size, const std::function<absl::Status(Context&)>& fn);

}  // namespace dtensor

#endif  // DTENSOR_CONTEXT_H_
