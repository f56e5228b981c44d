#include "dtensor/runtime/kernels/cuda/cudnn/attention_plans.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_graphs.h"
#include "dtensor/runtime/kernels/cuda/cudnn/descriptor.h"
#include "dtensor/runtime/kernels/cuda/cudnn/graph.h"

namespace dtensor::kernels::cuda {

struct AttentionPlan {
  AttentionKey key;
  GraphPlan graph;
  int64_t delta_offset = 0;  // in the workspace, after cuDNN's own part
};

namespace {

constexpr size_t kLeastVersion = 91900;  // the graphs follow this version; older ones have gaps
constexpr size_t kMostPlans = 1024;

// Applies before anything is launched: the portable kernel computes what cuDNN cannot, for whatever
// reason. If the GPU itself has failed, that kernel fails as well.
bool IsRefusal(const absl::Status& status) { return !absl::IsResourceExhausted(status); }

class Plans final : public AttentionPlans {
 public:
  explicit Plans(Device& device) : device_(device) {}
  ~Plans() override {
    plans_.clear();
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  absl::StatusOr<const AttentionPlan*> Find(const AttentionKey& key) override {
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    DT_RETURN_IF_ERROR(BeginCudaLaunch(device_).status());
    DT_RETURN_IF_ERROR(Start());
    if (handle_ == nullptr || (key.backward && !has_backward_)) return nullptr;
    auto made = Make(key);
    if (!made.ok() && !IsRefusal(made.status())) return Checked(made.status());
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_.emplace(key, made.ok() ? *std::move(made) : nullptr).first->second.get();
  }

  int64_t WorkspaceBytes(const AttentionPlan& plan) const override {
    const int64_t delta = plan.key.backward ? plan.key.rows() * int64_t{sizeof(float)} : 0;
    return plan.delta_offset + delta;
  }

  absl::Status Run(const AttentionPlan& plan, const AttentionPointers& x, double scale,
                   void* workspace) override {
    DT_ASSIGN_OR_RETURN(const cudaStream_t stream, BeginCudaLaunch(device_));
    DT_RETURN_IF_ERROR(Checked(ToStatus(cudnnSetStream(handle_, stream), "cudnnSetStream")));
    float narrow_scale = static_cast<float>(scale), one = 1;
    float hidden = -std::numeric_limits<float>::infinity();
    std::vector<std::pair<int64_t, void*>> pointers = {{kIdQ, x.q},     {kIdK, x.k},
                                                       {kIdV, x.v},     {kIdO, x.o},
                                                       {kIdLse, x.lse}, {kIdScale, &narrow_scale}};
    if (plan.key.causal) pointers.emplace_back(kIdHidden, &hidden);
    if (plan.key.backward) {
      void* const delta = static_cast<char*>(workspace) + plan.delta_offset;
      pointers.insert(pointers.end(), {{kIdDout, x.dout},
                                       {kIdDelta, delta},
                                       {kIdDq, x.dq},
                                       {kIdDk, x.dk},
                                       {kIdDv, x.dv},
                                       {kIdOne, &one}});
    }
    return Checked(plan.graph.Run(handle_, pointers, workspace));
  }

 private:
  // Runs once. Then there is a handle, which is for the current GPU, or cuDNN cannot start.
  absl::Status Start() {
    if (is_started_) return absl::OkStatus();
    is_started_ = true;
    const int major = CudaCapabilityOf(device_) / 10;
    has_backward_ = major == 8 || major == 9;
    const absl::Status made = ToStatus(cudnnCreate(&handle_), "cudnnCreate");
    if (made.ok()) return made;
    handle_ = nullptr;
    return IsRefusal(made) ? absl::OkStatus() : Checked(made);
  }

  absl::StatusOr<std::unique_ptr<AttentionPlan>> Make(const AttentionKey& key) {
    auto plan = std::make_unique<AttentionPlan>();
    plan->key = key;
    Graph graph = key.backward ? AttentionBackwardGraph(key) : AttentionForwardGraph(key);
    DT_ASSIGN_OR_RETURN(plan->graph, std::move(graph).MakePlan(handle_));
    plan->delta_offset = (plan->graph.workspace_bytes + 255) / 256 * 256;
    return plan;
  }

  absl::Status Checked(absl::Status status) {
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat("attention by cuDNN ", cudnnGetVersion(),
                                                        ": ", status.message()));
    }
    device_.Fail(status);
    return status;
  }

  Device& device_;
  cudnnHandle_t handle_ = nullptr;
  bool is_started_ = false;
  bool has_backward_ = false;
  HashMap<AttentionKey, std::unique_ptr<AttentionPlan>> plans_;  // null: refused
};

}  // namespace

AttentionPlans* AttentionPlansOf(const Device& device) {
  return static_cast<AttentionPlans*>(CudaStateOf(device).get());
}

AttentionPlans* AttentionPlans::Of(Device& device) {
  if (AttentionPlans* const plans = AttentionPlansOf(device); plans != nullptr) return plans;
  if (cudnnGetVersion() < kLeastVersion) return nullptr;
  CudaStateOf(device) = std::make_unique<Plans>(device);
  return AttentionPlansOf(device);
}

}  // namespace dtensor::kernels::cuda
