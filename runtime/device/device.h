// Device: one rank's memory and its in-order queue of work. Everything is stream-ordered.
//
// A call that launches work may return before the work is done; work runs in the order in which it
// was launched. So nothing above this line may assume that a result is ready when a call returns:
// reading a value on the host needs Synchronize(). Memory is stream-ordered too: Free() returns at
// once and the memory is reused only by work launched later on this device, so a kernel may keep
// the bare pointers of tensors that the caller drops right after the launch.
//
//   cpu       runs each launch before Launch returns
//   deferred  a test device that exposes code that relies on readiness: runs launches later on its
//             own thread, after random delays, with memory poisoned until then
//   meta      shapes without bytes: Allocate returns null, launches do nothing
//   cuda      a CUDA stream (only under --config=cuda)
//
// If a kernel fails (an index out of range, a launch error), the device fails for good: the first
// status is kept, passed to the failure handler, and returned by every later call. One rank's
// thread uses a device. Any thread may call, at any time: Defer, Fail, failure, FreeFromAnyThread,
// UncountTensorFromAnyThread, tensors, kind and ordinal.
#ifndef DTENSOR_RUNTIME_DEVICE_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A point in a device's queue. Cheap to copy. Other devices of the same kind may wait for it. A
// default-constructed DeviceEvent has already happened.
class DeviceEvent {
 public:
  class State {
   public:
    virtual ~State() = default;
    // Blocks the calling host thread until the point is reached. A device that failed skips the
    // rest of its work, so every point is reached.
    virtual void Block() = 0;
  };
  DeviceEvent() = default;
  explicit DeviceEvent(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

struct GemmProblem;  // gemm.h

struct MemoryStats {
  int64_t live_bytes = 0;  // allocated and not freed, as requested (no rounding)
  int64_t peak_bytes = 0;  // the largest live_bytes since the last ResetPeak()
};

class Device {
 public:
  enum class Kind : uint8_t { kCpu, kDeferred, kMeta, kCuda };
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Kind kind() const { return kind_; }
  int ordinal() const { return ordinal_; }  // of the GPU, among those of this process; else 0
  bool is_meta() const { return kind_ == Kind::kMeta; }

  // --- Memory. 64-byte aligned; null for 0 bytes and on meta. The device outlives what it
  // allocated. Errors: kResourceExhausted, the device's failure.
  absl::StatusOr<void*> Allocate(int64_t bytes);
  void Free(void* data, int64_t bytes);  // what Allocate returned; stream-ordered
  // As Free, from any thread, while the device's own thread continues. The memory is counted as
  // free, and may be reused, from the next Allocate, Trim or Synchronize on.
  void FreeFromAnyThread(void* data, int64_t bytes);
  const MemoryStats& memory() const { return memory_; }
  void ResetPeak() { memory_.peak_bytes = memory_.live_bytes; }
  // Bounds how much freed memory is kept for reuse; what was freed first goes back to the system.
  // Unset, the bound is the most that was in use at one time since the last Trim(). Applies at
  // once; 0 keeps none. Requires: bytes >= 0.
  // - cpu: blocks below 2 MiB go back by whole slabs, once 16 MiB more than the bound are free.
  // - cuda: this is the pool of the GPU, which all devices of this process share. What is free goes
  //   back when the program next waits for the GPU by CUDA's own calls (cudaDeviceSynchronize), not
  //   at once.
  // - deferred and meta keep nothing.
  void set_kept_bytes(int64_t bytes);
  // Gives free memory back to the system, on cpu and cuda, except memory that shares pages with
  // memory in use, and, on cuda, memory of which CUDA has not yet seen that it is no longer used.
  void Trim();
  // Errors: kInvalidArgument if this device's kernels cannot reach memory of the program's, as far
  // as the device can tell: on cuda, memory of the host that is not page-locked, or of another GPU.
  virtual absl::Status CheckReach(const void*) const { return absl::OkStatus(); }
  // The number of memory blocks that tensors refer to. Counted by Tensor, with views counted once.
  int64_t tensors() const {
    const int64_t gone = tensors_gone_.load(std::memory_order_acquire);  // first: never too few
    return tensors_.load(std::memory_order_acquire) - gone;
  }
  void CountTensor(int change) {
    tensors_.store(tensors_.load(std::memory_order_relaxed) + change, std::memory_order_release);
  }
  // As CountTensor(-1), from any thread, since any thread may drop a keeper (Tensor::Keep()).
  void UncountTensorFromAnyThread() { tensors_gone_.fetch_add(1, std::memory_order_release); }

  // --- Work.
  // Runs `fn` on this queue. `fn` returns void or absl::Status, captures bare pointers and plain
  // values, and works on host memory; `kernel` names it in errors (a string literal). Does nothing
  // on meta. Errors: the device's failure (on cpu also this kernel's, which fails the device);
  // kUnimplemented on cuda, whose kernels are not host code.
  template <typename Fn>
  absl::Status Launch(const char* kernel, Fn&& fn) {
    if (failed()) return failure();
    if (kind_ == Kind::kCpu) {
      if constexpr (std::is_void_v<decltype(fn())>) {
        fn();
        return absl::OkStatus();
      } else {
        absl::Status status = fn();
        return status.ok() ? status : FailKernel(kernel, status);
      }
    }
    if (kind_ == Kind::kMeta) return absl::OkStatus();
    return LaunchHost(kernel, [fn = std::forward<Fn>(fn)]() mutable -> absl::Status {
      if constexpr (std::is_void_v<decltype(fn())>) {
        fn();
        return absl::OkStatus();
      } else {
        return fn();
      }
    });
  }

  // Copies between the host and this device, stream-ordered. The host memory must stay valid until
  // Synchronize(). Source and destination must not overlap.
  absl::Status CopyFromHost(void* dst, const void* src, int64_t bytes);
  absl::Status CopyToHost(void* dst, const void* src, int64_t bytes);
  absl::Status CopyOnDevice(void* dst, const void* src, int64_t bytes);
  absl::Status FillBytes(void* dst, uint8_t value, int64_t bytes);

  // C[i] (+)= A[i] * B[i] for i < batch; see gemm.h. Repeating a product gives the same bits.
  // Errors: kInvalidArgument (types or strides that a GemmProblem does not allow), the device's
  // failure.
  absl::Status Gemm(const GemmProblem& gemm);

  // --- Order across devices.
  DeviceEvent Record();                         // everything launched so far
  absl::Status Wait(const DeviceEvent& event);  // later work here starts after `event`
  absl::Status Synchronize();                   // blocks the host until all work is done or skipped
  // Runs `fn` after all work launched so far, also on a failed device, on the thread that calls
  // Defer, on the device's or on the queue's. At the latest, it runs when the device is destroyed.
  // For deleters of adopted memory. From any thread.
  void Defer(std::function<void()> fn);
  // `thing` is destroyed with the device. For what its tensors refer to as well.
  void KeepAlive(std::shared_ptr<const void> thing) { kept_alive_.push_back(std::move(thing)); }

  // --- Failure.
  void Fail(const absl::Status& status);  // the first one is kept; from any thread
  absl::Status failure() const;           // OK while the device works
  // Called once, by the thread that failed; immediately if the device has failed already.
  void set_failure_handler(std::function<void(const absl::Status&)> handler);

 protected:
  explicit Device(Kind kind, int ordinal = 0);
  // Frees what FreeFromAnyThread was given; called by destructors of backends.
  void TakeBack();
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // Fail() with the kernel's name before the message; returns the resulting status.
  absl::Status FailKernel(const char* kernel, const absl::Status& status);

  // Implemented by a backend. `bytes` > 0 everywhere; no dimension of a product is 0, and its
  // strides are checked. Allocation, launches, copies and products are not called on a failed
  // device; freeing, events, synchronizing and deferring are.
  virtual absl::StatusOr<void*> DoAllocate(int64_t bytes) = 0;
  virtual void DoFree(void* data, int64_t bytes) = 0;
  virtual void DoSetKeptBytes(int64_t) {}  // default: for devices that keep nothing
  virtual void DoTrim() {}
  virtual absl::Status LaunchHost(const char* kernel, std::function<absl::Status()> fn) = 0;
  virtual absl::Status DoCopy(void* dst, const void* src, int64_t bytes) = 0;
  virtual absl::Status DoFill(void* dst, uint8_t value, int64_t bytes) = 0;
  virtual absl::Status DoGemm(const GemmProblem& gemm) = 0;
  virtual DeviceEvent DoRecord() = 0;
  virtual absl::Status DoWait(const DeviceEvent& event) = 0;
  virtual absl::Status DoSynchronize() = 0;
  virtual void DoDefer(std::function<void()> fn) = 0;

 private:
  struct Failure;

  absl::Status GemmOfNothing(const GemmProblem& gemm);  // k == 0

  const Kind kind_;
  const int ordinal_;
  std::atomic<bool> failed_{false};
  MemoryStats memory_;
  std::atomic<int64_t> tensors_{0};  // atomic for threads that ask when the rank has ended
  std::atomic<int64_t> tensors_gone_{0};
  std::atomic<bool> has_returned_{false};
  std::mutex returned_mutex_;
  std::vector<std::pair<void*, int64_t>> returned_;
  std::shared_ptr<Failure> failure_;
  std::vector<std::shared_ptr<const void>> kept_alive_;
};

absl::string_view ToString(Device::Kind kind);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_DEVICE_H_
