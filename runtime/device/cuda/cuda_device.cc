#include "dtensor/runtime/device/cuda/cuda_device.h"

// A device whose queue is a CUDA stream. It runs over fakes of CUDA's libraries (docs/cuda.md), and
// has not yet run on a GPU.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cublaslt_gemm.h"
#include "dtensor/runtime/device/cuda/cuda_point.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"
#include "dtensor/runtime/device/cuda/deferred_queue.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/kernel_error.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::optional<cudaStream_t> stream)
      : Device(Kind::kCuda, ordinal), has_own_stream_(!stream), stream_(stream.value_or(nullptr)) {}

  cudaStream_t stream() const { return stream_; }
  void* scratch() const { return scratch_; }
  KernelError* kernel_error() const { return kernel_error_; }

  absl::Status Start() {
    DT_RETURN_IF_ERROR(MakeCurrent());
    if (has_own_stream_) DT_CUDA(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking);
    // Freed memory stays with the process, as the cpu device's does.
    DT_RETURN_IF_ERROR(KeepBytes(UINT64_MAX));
    DT_CUDA(cudaMallocAsync, &scratch_, kCudaScratchBytes, stream_);
    void* error = nullptr;
    DT_CUDA(cudaMallocHost, &error, sizeof(KernelError));
    kernel_error_ = new (error) KernelError{};
    DT_ASSIGN_OR_RETURN(gemm_, CublasLtGemm::Make(stream_));
    return absl::OkStatus();
  }

  ~CudaDevice() override {
    if (gemm_ != nullptr) {  // it was started
      TakeBack();
      // There is nobody left to tell of errors. What is deferred may defer more.
      do Finish().IgnoreError();
      while (!deferred_.empty());
      gemm_.reset();
    }
    if (kernel_error_ != nullptr) cudaFreeHost(kernel_error_);
    if (scratch_ != nullptr) cudaFreeAsync(scratch_, stream_);
    if (has_own_stream_ && stream_ != nullptr) cudaStreamDestroy(stream_);
  }

 private:
  // CUDA keeps a current device for each thread.
  absl::Status MakeCurrent() { return ToStatus(cudaSetDevice(ordinal()), "cudaSetDevice"); }

  // For what the caller launched: an error there is a failure of the device.
  absl::Status Launched(const absl::Status& status) {
    Fail(status);
    return status;
  }

  absl::StatusOr<void*> DoAllocate(int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    deferred_.Run();
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
    DT_CUDA(cudaDeviceGetDefaultMemPool, &pool, ordinal());
    DT_CUDA(cudaMemPoolSetAttribute, pool, cudaMemPoolAttrReleaseThreshold, &bytes);
    return absl::OkStatus();
  }
  absl::Status TrimPool() {
    DT_RETURN_IF_ERROR(Finish());
    cudaMemPool_t pool;
    DT_CUDA(cudaDeviceGetDefaultMemPool, &pool, ordinal());
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
    DT_RETURN_IF_ERROR(Finish());
    return ToStatus(*kernel_error_);
  }
  absl::Status Finish() {
    const uint64_t end = deferred_.End();  // other threads defer on while this one waits
    absl::Status status = MakeCurrent();
    if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    // The stream has done what it had then, or will never do anything again.
    deferred_.RunBefore(end);
    return status;
  }

  // On a host thread, when one comes by: a deleter may call CUDA, which the stream's own callbacks
  // must not.
  void DoDefer(std::function<void()> fn) override {
    int current = -1;  // GPU of a thread that may be none of ours
    cudaGetDevice(&current);
    std::function<bool()> is_done;  // null, until a wait for all, if it cannot be recorded
    if (auto point = RecordPoint(); point.ok()) {
      is_done = [point = *std::move(point)] { return point->reached(); };
    }
    deferred_.Push(std::move(is_done), std::move(fn));
    deferred_.Run();
    if (current >= 0) cudaSetDevice(current);
  }

  absl::StatusOr<std::shared_ptr<CudaPoint>> RecordPoint() {
    DT_RETURN_IF_ERROR(MakeCurrent());
    return CudaPoint::Record(events_, stream_);
  }

  const bool has_own_stream_;
  cudaStream_t stream_;
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  void* scratch_ = nullptr;
  KernelError* kernel_error_ = nullptr;
  std::unique_ptr<CublasLtGemm> gemm_;
  DeferredQueue deferred_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int ordinal,
                                                       std::optional<cudaStream_t> stream) {
  DT_ASSIGN_OR_RETURN(const int count, CountGpus());
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(
        absl::StrCat("there is no GPU ", ordinal, ": CUDA sees ", count, ", from 0 on"));
  }
  auto device = std::make_unique<CudaDevice>(ordinal, stream);
  DT_RETURN_IF_ERROR(device->Start());
  return device;
}

absl::StatusOr<cudaStream_t> BeginCudaLaunch(Device& device) {
  DT_RETURN_IF_ERROR(device.failure());
  const cudaStream_t stream = CudaStreamOf(device);
  absl::Status status = ToStatus(cudaSetDevice(device.ordinal()), "cudaSetDevice");
  device.Fail(status);
  if (!status.ok()) return status;
  return stream;
}

absl::Status EndCudaLaunch(Device& device, const char* kernel, int error) {
  absl::Status status = ToStatus(static_cast<cudaError_t>(error), kernel);
  device.Fail(status);
  return status;
}

cudaStream_t CudaStreamOf(const Device& device) {
  DT_REQUIRE(device.kind() == Device::Kind::kCuda, "CudaStreamOf: the device is not a GPU");
  return static_cast<const CudaDevice&>(device).stream();
}

void* CudaScratchOf(const Device& device) {
  DT_REQUIRE(device.kind() == Device::Kind::kCuda, "CudaScratchOf: the device is not a GPU");
  return static_cast<const CudaDevice&>(device).scratch();
}

KernelError* CudaKernelErrorOf(const Device& device) {
  DT_REQUIRE(device.kind() == Device::Kind::kCuda, "CudaKernelErrorOf: the device is not a GPU");
  return static_cast<const CudaDevice&>(device).kernel_error();
}

}  // namespace dtensor
