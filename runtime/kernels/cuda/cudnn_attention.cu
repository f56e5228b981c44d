#include "dtensor/runtime/kernels/cuda/cudnn_attention.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/attention_rows-inl.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_choice.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_key.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_plans.h"
#include "dtensor/runtime/kernels/cuda/cudnn_join-inl.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// For a dimension of one element any stride is correct; cuDNN gets a row-major one.
AttentionStrides StridesOf(const AttentionOperand& x, int64_t batch, int64_t heads, int64_t rows,
                           int64_t dim) {
  const AttentionOperand usual = RowMajorRows(nullptr, rows, heads, dim);
  return {batch == 1 ? usual.batch_stride : x.batch_stride,
          heads == 1 ? usual.head_stride : x.head_stride,
          rows == 1 ? usual.row_stride : x.row_stride};
}

AttentionKey KeyOf(const AttentionArgs& args, bool causal, int64_t batch, int64_t kv_heads) {
  const AttentionSizes& sizes = args.sizes;
  AttentionKey key;
  key.causal = causal;
  key.dtype = sizes.dtype;
  key.batch = batch;
  key.kv_heads = kv_heads;
  key.q_heads = kv_heads * (sizes.q_heads / sizes.kv_heads);
  key.q_rows = sizes.q_rows;
  key.keys = sizes.keys;
  key.dim = sizes.dim;
  key.q = StridesOf(args.operands.q, batch, key.q_heads, key.q_rows, key.dim);
  key.k = StridesOf(args.operands.k, batch, kv_heads, key.keys, key.dim);
  key.v = StridesOf(args.operands.v, batch, kv_heads, key.keys, key.dim);
  return key;
}

// Null if cuDNN must not be used, or does not exist.
AttentionPlans* PlansOf(Device& device) {
  AttentionPlans* const plans = AttentionPlans::Of(device);
  return plans != nullptr && plans->allowed ? plans : nullptr;
}

bool IsAligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kCudnnAlignment == 0;
}

// Runs the plan for `rows` queries, whose statistics are row-major. These begin where the previous
// ones end, which may be less aligned than cuDNN's plan requires: they are then copied from there
// before the run, or to there after it.
absl::Status RunPlan(Device& device, AttentionPlans& plans, const AttentionPlan& plan,
                     AttentionPointers pointers, double scale, int64_t rows) {
  DT_ASSIGN_OR_RETURN(const Scratch workspace, Scratch::Make(device, plans.WorkspaceBytes(plan)));
  if (IsAligned(pointers.lse)) return plans.Run(plan, pointers, scale, workspace.get());
  const int64_t bytes = rows * int64_t{sizeof(float)};
  DT_ASSIGN_OR_RETURN(const Scratch lse, Scratch::Make(device, bytes));
  void* const theirs = std::exchange(pointers.lse, lse.get());
  const bool is_read = pointers.dout != nullptr;
  if (is_read) DT_RETURN_IF_ERROR(device.CopyOnDevice(lse.get(), theirs, bytes));
  DT_RETURN_IF_ERROR(plans.Run(plan, pointers, scale, workspace.get()));
  return is_read ? absl::OkStatus() : device.CopyOnDevice(theirs, lse.get(), bytes);
}

// --- Forward.

// Computes o and lse of the block in separate memory, then joins them with the carry.
absl::Status RunAndJoin(Device& device, const char* kernel, const AttentionArgs& args,
                        AttentionPlans& plans, const AttentionPlan& plan) {
  const AttentionSizes& sizes = args.sizes;
  const int64_t rows = sizes.batch * sizes.q_heads * sizes.q_rows;
  DT_ASSIGN_OR_RETURN(const Scratch o,
                      Scratch::Make(device, rows * sizes.dim * SizeOf(sizes.dtype)));
  DT_ASSIGN_OR_RETURN(const Scratch lse, Scratch::Make(device, rows * int64_t{sizeof(float)}));
  const AttentionOperands& x = args.operands;
  DT_RETURN_IF_ERROR(RunPlan(
      device, plans, plan, {x.q.data, x.k.data, x.v.data, o.get(), lse.get()}, sizes.scale, rows));
  const BlockResult block = {RowMajorRows(o.get(), sizes.q_rows, sizes.q_heads, sizes.dim),
                             static_cast<const float*>(lse.get())};
  return JoinBlock(device, kernel, sizes, x, block);
}

absl::StatusOr<bool> Forward(Device& device, const char* kernel, const AttentionArgs& args,
                             AttentionPlans& plans, bool causal) {
  const AttentionSizes& sizes = args.sizes;
  const AttentionOperands& x = args.operands;
  // If cuDNN writes the final results itself, no kernel of ours is needed.
  const bool is_direct = sizes.first && sizes.last;
  AttentionKey key = KeyOf(args, causal, sizes.batch, sizes.kv_heads);
  key.o = StridesOf(is_direct ? x.o : RowMajorRows(nullptr, key.q_rows, key.q_heads, key.dim),
                    key.batch, key.q_heads, key.q_rows, key.dim);
  DT_ASSIGN_OR_RETURN(const AttentionPlan* const plan, plans.Find(key));
  if (plan == nullptr) return false;
  if (is_direct) {
    DT_RETURN_IF_ERROR(RunPlan(device, plans, *plan,
                               {x.q.data, x.k.data, x.v.data, x.o.data, x.lse.data}, sizes.scale,
                               key.rows()));
  } else {
    DT_RETURN_IF_ERROR(RunAndJoin(device, kernel, args, plans, *plan));
  }
  return true;
}

// --- Backward.

// A gradient: the memory that cuDNN writes, and the step's gradient, into which this is then put.
struct GradientRun {
  AttentionOperand to;
  std::optional<Scratch> memory;  // the memory of `to`, if cuDNN cannot write to `into`
  AttentionOperand into;
  bool adds;
};

absl::StatusOr<GradientRun> MakeGradient(Device& device, const AttentionSizes& sizes,
                                         const AttentionOperand& into, bool is_query, bool adds) {
  if (sizes.out_dtype == sizes.dtype && !adds) return GradientRun{into, std::nullopt, into, false};
  const int64_t rows = is_query ? sizes.q_rows : sizes.keys;
  const int64_t heads = is_query ? sizes.q_heads : sizes.kv_heads;
  DT_ASSIGN_OR_RETURN(Scratch memory, Scratch::Make(device, sizes.batch * rows * heads * sizes.dim *
                                                                SizeOf(sizes.dtype)));
  const AttentionOperand to = RowMajorRows(memory.get(), rows, heads, sizes.dim);
  return GradientRun{to, std::move(memory), into, adds};
}

void* Offset(const AttentionOperand& x, DType dtype, int64_t batch, int64_t head) {
  return static_cast<char*>(x.data) +
         (batch * x.batch_stride + head * x.head_stride) * SizeOf(dtype);
}

class Backward {
 public:
  Backward(Device& device, const AttentionArgs& args, AttentionPlans& plans)
      : device_(device),
        args_(args),
        sizes_(args.sizes),
        runs_(RunsOf(args.sizes, plans.score_bytes)),
        plans_(plans) {}

  // Returns whether cuDNN has a plan.
  absl::StatusOr<bool> Run(const char* kernel, bool causal) {
    const AttentionOperands& x = args_.operands;
    DT_ASSIGN_OR_RETURN(auto dq, MakeGradient(device_, sizes_, x.dq, true, !sizes_.first));
    DT_ASSIGN_OR_RETURN(auto dk, MakeGradient(device_, sizes_, x.dk, false, false));
    DT_ASSIGN_OR_RETURN(auto dv, MakeGradient(device_, sizes_, x.dv, false, false));
    const AttentionKey key = Key(causal, dq, dk, dv);
    DT_ASSIGN_OR_RETURN(const AttentionPlan* const plan, plans_.Find(key));
    if (plan == nullptr) return false;
    for (int64_t batch = 0; batch < sizes_.batch; batch += runs_.batch) {
      for (int64_t head = 0; head < sizes_.kv_heads; head += runs_.kv_heads) {
        DT_RETURN_IF_ERROR(RunPlan(device_, plans_, *plan, Pointers(batch, head, dq, dk, dv),
                                   sizes_.scale, key.rows()));
      }
    }
    DT_RETURN_IF_ERROR(Put(kernel, dq, sizes_.q_heads, sizes_.q_rows));
    DT_RETURN_IF_ERROR(Put(kernel, dk, sizes_.kv_heads, sizes_.keys));
    DT_RETURN_IF_ERROR(Put(kernel, dv, sizes_.kv_heads, sizes_.keys));
    return true;
  }

 private:
  AttentionKey Key(bool causal, const GradientRun& dq, const GradientRun& dk,
                   const GradientRun& dv) const {
    const AttentionOperands& x = args_.operands;
    AttentionKey key = KeyOf(args_, causal, runs_.batch, runs_.kv_heads);
    key.backward = true;
    const auto queries = [&](const AttentionOperand& one) {
      return StridesOf(one, key.batch, key.q_heads, key.q_rows, key.dim);
    };
    const auto keys = [&](const AttentionOperand& one) {
      return StridesOf(one, key.batch, key.kv_heads, key.keys, key.dim);
    };
    key.o = queries(x.o);
    key.dout = queries(x.dout);
    key.dq = queries(dq.to);
    key.dk = keys(dk.to);
    key.dv = keys(dv.to);
    return key;
  }
  AttentionPointers Pointers(int64_t batch, int64_t head, const GradientRun& dq,
                             const GradientRun& dk, const GradientRun& dv) const {
    const AttentionOperands& x = args_.operands;
    const int64_t q_head = head * (sizes_.q_heads / sizes_.kv_heads);
    const DType type = sizes_.dtype;
    return {.q = Offset(x.q, type, batch, q_head),
            .k = Offset(x.k, type, batch, head),
            .v = Offset(x.v, type, batch, head),
            .o = Offset(x.o, type, batch, q_head),
            .lse = Offset(x.lse, DType::kF32, batch, q_head),
            .dout = Offset(x.dout, type, batch, q_head),
            .dq = Offset(dq.to, type, batch, q_head),
            .dk = Offset(dk.to, type, batch, head),
            .dv = Offset(dv.to, type, batch, head)};
  }
  absl::Status Put(const char* kernel, const GradientRun& gradient, int64_t heads, int64_t rows) {
    if (!gradient.memory) return absl::OkStatus();
    return PutRows(
        device_, kernel,
        {gradient.to, gradient.into, sizes_.batch, heads, rows, sizes_.dim, gradient.adds},
        sizes_.dtype, sizes_.out_dtype);
  }

  Device& device_;
  const AttentionArgs& args_;
  const AttentionSizes& sizes_;
  const AttentionRuns runs_;
  AttentionPlans& plans_;
};

}  // namespace

absl::StatusOr<bool> TryCudnnAttention(Device& device, const char* kernel,
                                       const AttentionArgs& args) {
  const AttentionChoice choice = ChooseAttention(args);
  if (!choice.by_cudnn) return false;
  AttentionPlans* const plans = PlansOf(device);
  if (plans == nullptr) return false;
  DT_ASSIGN_OR_RETURN(const bool done, Forward(device, kernel, args, *plans, choice.causal));
  plans->steps += done ? 1 : 0;
  return done;
}

absl::StatusOr<bool> TryCudnnAttentionGrad(Device& device, const char* kernel,
                                           const AttentionArgs& args) {
  AttentionPlans* const plans = PlansOf(device);
  if (plans == nullptr) return false;
  const AttentionChoice choice = ChooseAttentionGrad(args, plans->score_bytes);
  if (!choice.by_cudnn) return false;
  DT_ASSIGN_OR_RETURN(const bool done, Backward(device, args, *plans).Run(kernel, choice.causal));
  plans->steps += done ? 1 : 0;
  return done;
}

void AllowCudnn(Device& device, bool allowed) {
  AttentionPlans* const plans = AttentionPlans::Of(device);
  if (plans != nullptr) plans->allowed = allowed;
}

void SetCudnnScoreBytes(Device& device, int64_t bytes) {
  AttentionPlans* const plans = AttentionPlans::Of(device);
  if (plans != nullptr) plans->score_bytes = bytes;
}

int64_t CudnnSteps(const Device& device) {
  const AttentionPlans* const plans = AttentionPlansOf(device);
  return plans == nullptr ? 0 : plans->steps;
}

}  // namespace dtensor::kernels::cuda
