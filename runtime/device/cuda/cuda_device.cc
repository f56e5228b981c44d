#include "dtensor/runtime/device/cuda/cuda_device.h"

// A device whose queue is a CUDA stream. Written against the documentation: it has been compiled
// and linked, and not yet run on a GPU.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cublaslt_gemm.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {
namespace {

absl::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error != cudaErrorMemoryAllocation) return absl::InternalError(message);
  cudaGetLastError();  // or the next call would report it again
  return absl::ResourceExhaustedError(message);
}

#define DT_CUDA(function, ...) DT_RETURN_IF_ERROR(ToStatus(function(__VA_ARGS__), #function))

// A failed GPU reports its error at once to whoever waits, so that all points are reached.
class CudaPoint final : public DeviceEvent::State {
 public:
  ~CudaPoint() override { cudaEventDestroy(event_); }
  static absl::StatusOr<std::shared_ptr<CudaPoint>> Record(cudaStream_t stream) {
    auto point = std::make_shared<CudaPoint>();
    DT_CUDA(cudaEventCreateWithFlags, &point->event_, cudaEventDisableTiming);
    DT_CUDA(cudaEventRecord, point->event_, stream);
    return point;
  }
  void Block() override { cudaEventSynchronize(event_); }
  bool reached() const { return cudaEventQuery(event_) != cudaErrorNotReady; }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : Device(Kind::kCuda), ordinal_(ordinal) {}

  absl::Status Start() {
    DT_RETURN_IF_ERROR(MakeCurrent());
    DT_CUDA(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking);
    // Freed memory stays with the process, as the cpu device's does.
    DT_RETURN_IF_ERROR(KeepBytes(UINT64_MAX));
    DT_ASSIGN_OR_RETURN(gemm_, CublasLtGemm::Make(stream_));
    return absl::OkStatus();
  }

  ~CudaDevice() override {
    if (stream_ == nullptr) return;
    DoSynchronize().IgnoreError();  // there is nobody left to tell
    gemm_.reset();
    cudaStreamDestroy(stream_);
  }

 private:
  struct Deferred {
    std::shared_ptr<CudaPoint> after;  // null: the device could not record it, and waits for all
    std::function<void()> fn;
  };

  // CUDA keeps a current device for each thread.
  absl::Status MakeCurrent() { return ToStatus(cudaSetDevice(ordinal_), "cudaSetDevice"); }

  // For what the caller launched: an error there is a failure of the device.
  absl::Status Launched(const absl::Status& status) {
    Fail(status);
    return status;
  }

  absl::StatusOr<void*> DoAllocate(int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    RunDeferred();
    void* data = nullptr;
    DT_CUDA(cudaMallocAsync, &data, bytes, stream_);
    return data;
  }
  void DoFree(void* data, int64_t) override {
    if (absl::Status status = MakeCurrent(); !status.ok()) return Fail(status);
    Fail(ToStatus(cudaFreeAsync(data, stream_), "cudaFreeAsync"));
  }

  // What the pool holds while the stream works on, what is in use among it.
  absl::Status KeepBytes(uint64_t bytes) {
    DT_RETURN_IF_ERROR(MakeCurrent());
    cudaMemPool_t pool;
    DT_CUDA(cudaDeviceGetDefaultMemPool, &pool, ordinal_);
    DT_CUDA(cudaMemPoolSetAttribute, pool, cudaMemPoolAttrReleaseThreshold, &bytes);
    return absl::OkStatus();
  }
  absl::Status TrimPool() {
    DT_RETURN_IF_ERROR(DoSynchronize());
    cudaMemPool_t pool;
    DT_CUDA(cudaDeviceGetDefaultMemPool, &pool, ordinal_);
    DT_CUDA(cudaMemPoolTrimTo, pool, 0);
    return absl::OkStatus();
  }
  void DoSetKeptBytes(int64_t bytes) override { Fail(KeepBytes(bytes)); }
  void DoTrim() override { Fail(TrimPool()); }

  absl::Status LaunchHost(const char* kernel, std::function<absl::Status()>) override {
    return absl::UnimplementedError(
        absl::StrCat(kernel, ": there is no cuda kernel; run this operator on the cpu device"));
  }
  absl::Status DoCopy(void* dst, const void* src, int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    return Launched(
        ToStatus(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync"));
  }
  absl::Status DoFill(void* dst, uint8_t value, int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    return Launched(ToStatus(cudaMemsetAsync(dst, value, bytes, stream_), "cudaMemsetAsync"));
  }
  absl::Status DoGemm(const GemmProblem& gemm) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    absl::Status status = gemm_->Run(gemm);
    return absl::IsUnimplemented(status) ? status : Launched(status);
  }

  DeviceEvent DoRecord() override {
    auto point = RecordPoint();
    if (point.ok()) return DeviceEvent(*std::move(point));
    Fail(point.status());
    return DeviceEvent();
  }
  absl::Status DoWait(const DeviceEvent& event) override {
    const auto* point = dynamic_cast<const CudaPoint*>(event.state().get());
    if (point == nullptr) {
      event.state()->Block();
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(MakeCurrent());
    return ToStatus(cudaStreamWaitEvent(stream_, point->get(), 0), "cudaStreamWaitEvent");
  }
  absl::Status DoSynchronize() override {
    absl::Status status = MakeCurrent();
    if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    // The stream is empty, or will never do anything again.
    while (!deferred_.empty()) RunFirstDeferred();
    return status;
  }

  // On the host thread, when it comes by: a deleter may call CUDA, which the stream's own callbacks
  // must not.
  void DoDefer(std::function<void()> fn) override {
    auto point = RecordPoint();
    deferred_.push_back({point.ok() ? *std::move(point) : nullptr, std::move(fn)});
    RunDeferred();
  }
  void RunDeferred() {
    while (!deferred_.empty() && deferred_.front().after && deferred_.front().after->reached()) {
      RunFirstDeferred();
    }
  }
  void RunFirstDeferred() {
    const std::function<void()> fn = std::move(deferred_.front().fn);
    deferred_.pop_front();  // first: `fn` may drop tensors, which defer again
    fn();
  }

  absl::StatusOr<std::shared_ptr<CudaPoint>> RecordPoint() {
    DT_RETURN_IF_ERROR(MakeCurrent());
    return CudaPoint::Record(stream_);
  }

  const int ordinal_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CublasLtGemm> gemm_;
  std::deque<Deferred> deferred_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(absl::StrCat("there is no GPU ", ordinal, ": ",
                                               error != cudaSuccess
                                                   ? cudaGetErrorString(error)
                                                   : absl::StrCat("CUDA sees ", count).c_str()));
  }
  auto device = std::make_unique<CudaDevice>(ordinal);
  DT_RETURN_IF_ERROR(device->Start());
  return device;
}

}  // namespace dtensor
