#include "dtensor/runtime/device/cuda/cuda_device.h"

// A device whose queue is a CUDA stream. docs/status.md lists the GPUs on which it has run.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cublaslt_gemm.h"
#include "dtensor/runtime/device/cuda/cuda_point.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"
#include "dtensor/runtime/device/cuda/cuda_transfers.h"
#include "dtensor/runtime/device/cuda/current_gpu.h"
#include "dtensor/runtime/device/cuda/deferred_queue.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/kernel_error.h"
#include "dtensor/runtime/device/cuda/limit_cuda_capability.h"
#include "dtensor/runtime/device/cuda/pinned_staging.h"
#include "dtensor/runtime/device/cuda/polled_wait.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::optional<cudaStream_t> stream, CudaAllocator allocator)
      : Device(Kind::kCuda, ordinal),
        has_own_stream_(!stream),
        stream_(stream.value_or(nullptr)),
        allocator_(std::move(allocator)) {}

  cudaStream_t stream() const { return stream_; }
  // The stream for a launch that is made now.
  cudaStream_t BeginWork() {
    ++work_;
    return queue_;
  }
  void set_patience(double seconds) { wait_.set_patience(std::chrono::duration<double>(seconds)); }
  void* scratch() const { return scratch_; }
  KernelError* kernel_error() const { return kernel_error_; }
  int capability() const { return capability_; }
  void limit_capability(int at_most) { capability_ = std::min(capability_, at_most); }
  std::unique_ptr<CudaState>& state() { return state_; }
  void set_wait_limit(std::function<bool()> gives_up) { wait_.set_gives_up(std::move(gives_up)); }

  absl::Status Start() {
    const CurrentGpu current(ordinal());
    DT_RETURN_IF_ERROR(current.status());
    if (has_own_stream_) DT_CUDA(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking);
    queue_ = stream_;
    // Freed memory stays with the process, as the cpu device's does.
    int major = 0, minor = 0;
    DT_CUDA(cudaDeviceGetAttribute, &major, cudaDevAttrComputeCapabilityMajor, ordinal());
    DT_CUDA(cudaDeviceGetAttribute, &minor, cudaDevAttrComputeCapabilityMinor, ordinal());
    capability_ = 10 * major + minor;
    DT_CUDA(cudaDeviceGetDefaultMemPool, &pool_, ordinal());
    if (!allocator_.allocate) DT_RETURN_IF_ERROR(KeepBytes(UINT64_MAX));
    DT_CUDA(cudaMallocFromPoolAsync, &scratch_, kCudaScratchBytes, pool_, stream_);
    void* error = nullptr;
    DT_CUDA(cudaMallocHost, &error, sizeof(KernelError));
    kernel_error_ = new (error) KernelError{};
    DT_RETURN_IF_ERROR(staging_.Reserve());
    DT_ASSIGN_OR_RETURN(gemm_, CublasLtGemm::Make(pool_, stream_));
    return absl::OkStatus();
  }

  ~CudaDevice() override {
    const CurrentGpu current(ordinal());
    if (gemm_ != nullptr) {  // it was started
      // Errors can no longer be reported to anybody. Deferred functions may defer more, and free
      // memory.
      do {
        Finish().IgnoreError();
        TakeBack();
      } while (!deferred_.empty() && !works_on_);
    }
    if (works_on_) {
      Abandon();
      return;
    }
    state_.reset();
    gemm_.reset();
    if (kernel_error_ != nullptr) cudaFreeHost(kernel_error_);
    if (scratch_ != nullptr) cudaFreeAsync(scratch_, stream_);
    if (transfers_ != nullptr) cudaStreamDestroy(transfers_);
    if (has_own_stream_ && stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Managed memory can be reached, too.
  absl::Status CheckReach(const void* data) const override {
    const CurrentGpu current(ordinal());
    DT_RETURN_IF_ERROR(current.status());
    cudaPointerAttributes known;
    DT_CUDA(cudaPointerGetAttributes, &known, data);
    const bool is_of_other = known.type == cudaMemoryTypeDevice && known.device != ordinal();
    if (known.type != cudaMemoryTypeUnregistered && !is_of_other) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the memory is ",
        is_of_other ? absl::StrCat("of GPU ", known.device) : "the host's, and not page-locked",
        ", which kernels of GPU ", ordinal(), " cannot reach; copy it there first"));
  }

  bool BeginTransfers(const DeviceEvent& begin) {
    const auto* point = dynamic_cast<const CudaPoint*>(begin.state().get());
    if (point == nullptr || point->work() == work_ || queue_ != stream_) return false;
    const absl::Status status = StartTransfers(*point);
    Fail(status);
    return status.ok();
  }
  void EndTransfers() {
    auto end = RecordPoint(queue_);
    queue_ = stream_;
    Fail(end.ok() ? MakeWait(stream_, **end) : end.status());
    for (const auto& [data, bytes] : freed_) DoFree(data, bytes);
    freed_.clear();
  }

 private:
  // CUDA keeps a current device for each thread.
  absl::Status MakeCurrent() { return ToStatus(cudaSetDevice(ordinal()), "cudaSetDevice"); }

  // Checks what the caller launched: an error there is a failure of the device.
  absl::Status Launched(const absl::Status& status) {
    Fail(status);
    return status;
  }

  absl::StatusOr<void*> DoAllocate(int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    deferred_.Run();
    void* data = nullptr;
    if (allocator_.allocate) {
      data = allocator_.allocate(bytes, queue_);
      if (data != nullptr) return data;
      return absl::ResourceExhaustedError(
          absl::StrCat("the program's allocator has no ", bytes, " bytes on GPU ", ordinal()));
    }
    DT_CUDA(cudaMallocFromPoolAsync, &data, bytes, pool_, queue_);
    return data;
  }
  void DoFree(void* data, int64_t bytes) override {
    if (works_on_) return;  // the GPU may still use it
    // What was launched on the other queue may still use it.
    if (queue_ != stream_) {
      freed_.emplace_back(data, bytes);
      return;
    }
    const CurrentGpu current(ordinal());  // the thread may not be ours
    if (!current.status().ok()) return Fail(current.status());
    if (allocator_.allocate) return allocator_.free(data, bytes, stream_);
    Fail(ToStatus(cudaFreeAsync(data, stream_), "cudaFreeAsync"));
  }

  absl::Status StartTransfers(const CudaPoint& begin) {
    DT_RETURN_IF_ERROR(MakeCurrent());
    if (transfers_ == nullptr) {
      DT_ASSIGN_OR_RETURN(transfers_, MakeUrgentStream(ordinal()));
    }
    DT_RETURN_IF_ERROR(MakeWait(transfers_, begin));
    queue_ = transfers_;
    return absl::OkStatus();
  }
  static absl::Status MakeWait(cudaStream_t stream, const CudaPoint& point) {
    return ToStatus(cudaStreamWaitEvent(stream, point.get(), 0), "cudaStreamWaitEvent");
  }

  // The GPU continues to work, perhaps for ever: what it may access is leaked. CUDA's calls would
  // wait for it.
  void Abandon() {
    state_.release();
    gemm_.release();
    staging_.Leak();
    deferred_.Leak();
  }

  // How much the pool keeps while the stream works, including memory in use.
  absl::Status KeepBytes(uint64_t bytes) {
    DT_RETURN_IF_ERROR(MakeCurrent());
    DT_CUDA(cudaMemPoolSetAttribute, pool_, cudaMemPoolAttrReleaseThreshold, &bytes);
    return absl::OkStatus();
  }
  absl::Status TrimPool() {
    DT_RETURN_IF_ERROR(Finish());
    DT_CUDA(cudaMemPoolTrimTo, pool_, 0);
    return absl::OkStatus();
  }
  void DoSetKeptBytes(int64_t bytes) override {
    if (allocator_.allocate) return;  // the pool is the program's
    const CurrentGpu current(ordinal());
    Fail(KeepBytes(bytes));
  }
  void DoTrim() override {
    if (allocator_.allocate) return;
    const CurrentGpu current(ordinal());
    Fail(TrimPool());
  }

  absl::Status LaunchHost(const char* kernel, std::function<absl::Status()>) override {
    return absl::UnimplementedError(
        absl::StrCat(kernel, ": there is no cuda kernel; run this operator on the cpu device"));
  }
  absl::Status DoCopy(void* dst, const void* src, int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    ++work_;
    return Launched(CopyAny(dst, src, bytes));
  }
  absl::Status CopyAny(void* dst, const void* src, int64_t bytes) {
    DT_ASSIGN_OR_RETURN(const bool from_host, PinnedStaging::IsPageable(src));
    DT_ASSIGN_OR_RETURN(const bool to_host, PinnedStaging::IsPageable(dst));
    if (from_host && !to_host) return staging_.ToGpu(dst, src, bytes, queue_);
    if (to_host && !from_host) return staging_.ToHost(dst, src, bytes, queue_);
    return ToStatus(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, queue_), "cudaMemcpyAsync");
  }
  absl::Status DoFill(void* dst, uint8_t value, int64_t bytes) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    ++work_;
    return Launched(ToStatus(cudaMemsetAsync(dst, value, bytes, queue_), "cudaMemsetAsync"));
  }
  absl::Status DoGemm(const GemmProblem& gemm) override {
    DT_RETURN_IF_ERROR(MakeCurrent());
    if (gemm.only_asks) return gemm_->CheckRows(gemm);
    ++work_;
    absl::Status status = gemm_->Run(gemm);
    return absl::IsUnimplemented(status) ? status : Launched(status);
  }

  DeviceEvent DoRecord() override {
    auto point = RecordPoint(queue_, work_);
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
    ++work_;
    return MakeWait(queue_, *point);
  }
  absl::Status DoSynchronize() override {
    const CurrentGpu current(ordinal());
    DT_RETURN_IF_ERROR(Finish());
    return ToStatus(*kernel_error_);
  }
  absl::Status Finish() {
    const uint64_t end = deferred_.End();  // other threads may defer more while this one waits
    auto point = RecordPoint(stream_);
    const absl::Status status = point.ok() ? wait_.For(**point) : point.status();
    works_on_ = absl::IsDeadlineExceeded(status);
    // The stream has done what it had at that time, or will never do anything again.
    if (!works_on_) deferred_.RunBefore(end);
    return status;
  }

  // Deferred functions run on a host thread, at its next opportunity: a deleter may call CUDA,
  // which callbacks of the stream must not do.
  void DoDefer(std::function<void()> fn) override {
    const CurrentGpu current(ordinal());  // the thread may not be ours
    std::function<bool()> is_done;        // null if no point was recorded: fn waits for Finish
    if (auto point = RecordPoint(stream_); point.ok()) {
      is_done = [point = *std::move(point)] { return point->reached(); };
    }
    deferred_.Push(std::move(is_done), std::move(fn));
    deferred_.Run();
  }

  absl::StatusOr<std::shared_ptr<CudaPoint>> RecordPoint(cudaStream_t stream, uint64_t work = 0) {
    DT_RETURN_IF_ERROR(MakeCurrent());
    return CudaPoint::Record(events_, stream, work);
  }

  const bool has_own_stream_;
  cudaStream_t stream_;
  cudaStream_t transfers_ = nullptr;  // created for the first transfers
  // The GPU's default pool, to which AllowPeerReads gives access; the program may have made another
  // one current.
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t queue_ = nullptr;                  // the one of the two that gets new work
  uint64_t work_ = 0;                             // how much the device was given
  std::vector<std::pair<void*, int64_t>> freed_;  // since transfers began
  const CudaAllocator allocator_;
  int capability_ = 0;
  bool works_on_ = false;  // after a wait that gave up
  PolledWait wait_{*this};
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>(ordinal());
  PinnedStaging staging_{events_, wait_};
  void* scratch_ = nullptr;
  KernelError* kernel_error_ = nullptr;
  std::unique_ptr<CublasLtGemm> gemm_;
  std::unique_ptr<CudaState> state_;
  DeferredQueue deferred_;
};

const CudaDevice& AsCuda(const Device& device) {
  DT_REQUIRE(device.kind() == Device::Kind::kCuda, "cuda_device.h: the device is not a GPU");
  return static_cast<const CudaDevice&>(device);
}
CudaDevice& AsCuda(Device& device) {
  return const_cast<CudaDevice&>(AsCuda(std::as_const(device)));
}

absl::Status CheckIsOf(int ordinal, cudaStream_t stream) {
  const CurrentGpu current(ordinal);
  DT_RETURN_IF_ERROR(current.status());
  int gpu = ordinal;
  DT_CUDA(cudaStreamGetDevice, stream, &gpu);
  if (gpu == ordinal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("MakeCudaDevice: the stream is of GPU ", gpu,
                                                 ", the device of GPU ", ordinal,
                                                 "; give the ordinal of the stream's GPU"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int ordinal,
                                                       std::optional<cudaStream_t> stream,
                                                       const CudaAllocator& allocator) {
  DT_ASSIGN_OR_RETURN(const int count, CountGpus());
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(
        absl::StrCat("there is no GPU ", ordinal, ": CUDA sees ", count, ", from 0 on"));
  }
  if (static_cast<bool>(allocator.allocate) != static_cast<bool>(allocator.free)) {
    return absl::InvalidArgumentError(
        "MakeCudaDevice: an allocator needs both `allocate` and `free`, or neither");
  }
  if (stream == cudaStreamPerThread) {
    return absl::InvalidArgumentError(
        "MakeCudaDevice: cudaStreamPerThread is another stream on each thread, and a device has "
        "one; make a stream, or give nullptr, CUDA's default one");
  }
  if (stream.value_or(nullptr) != nullptr) DT_RETURN_IF_ERROR(CheckIsOf(ordinal, *stream));
  auto device = std::make_unique<CudaDevice>(ordinal, stream, allocator);
  DT_RETURN_IF_ERROR(device->Start());
  return device;
}

absl::StatusOr<cudaStream_t> BeginCudaLaunch(Device& device) {
  DT_RETURN_IF_ERROR(device.failure());
  const cudaStream_t stream = AsCuda(device).BeginWork();
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

cudaStream_t CudaStreamOf(const Device& device) { return AsCuda(device).stream(); }

void* CudaScratchOf(const Device& device) { return AsCuda(device).scratch(); }

KernelError* CudaKernelErrorOf(const Device& device) { return AsCuda(device).kernel_error(); }

int CudaCapabilityOf(const Device& device) { return AsCuda(device).capability(); }

void LimitCudaCapability(Device& device, int at_most) { AsCuda(device).limit_capability(at_most); }

std::unique_ptr<CudaState>& CudaStateOf(const Device& device) {
  return const_cast<CudaDevice&>(AsCuda(device)).state();
}

void SetCudaPatience(Device& device, double seconds) { AsCuda(device).set_patience(seconds); }

void SetCudaWaitLimit(Device& device, std::function<bool()> gives_up) {
  AsCuda(device).set_wait_limit(std::move(gives_up));
}

bool HasHappened(const DeviceEvent& event) {
  const auto* const point = dynamic_cast<const CudaPoint*>(event.state().get());
  return point == nullptr || point->reached();
}

absl::StatusOr<cudaStream_t> MakeUrgentStream(int ordinal) {
  const CurrentGpu current(ordinal);
  DT_RETURN_IF_ERROR(current.status());
  int least = 0, greatest = 0;
  DT_CUDA(cudaDeviceGetStreamPriorityRange, &least, &greatest);
  cudaStream_t stream = nullptr;
  DT_CUDA(cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking, greatest);
  return stream;
}

void DestroyStream(cudaStream_t stream) { cudaStreamDestroy(stream); }

CudaTransfers::CudaTransfers(Device& device, const DeviceEvent& begin) {
  if (device.kind() != Device::Kind::kCuda) return;
  if (AsCuda(device).BeginTransfers(begin)) device_ = &device;
}

CudaTransfers::~CudaTransfers() {
  if (device_ != nullptr) AsCuda(*device_).EndTransfers();
}

}  // namespace dtensor
