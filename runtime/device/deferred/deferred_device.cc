#include "dtensor/runtime/device/deferred/deferred_device.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/host/host_gemm.h"

namespace dtensor {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kLargest = int64_t{1} << 47;
constexpr int kPoison = 0xFF;  // NaN in every float type, -1 in integers

class Point final : public DeviceEvent::State {
 public:
  void Reach() {
    std::lock_guard lock(mutex_);
    reached_ = true;
    condition_.notify_all();
  }
  void Block() override {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool reached_ = false;
};

// Tasks for one thread, which runs them in order and ends after the last one.
class Queue {
 public:
  void Push(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    condition_.notify_one();
  }
  // Null: the queue is closed and empty.
  std::function<void()> Pop() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    if (tasks_.empty()) return nullptr;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    condition_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<std::function<void()>> tasks_;
  bool closed_ = false;
};

class DeferredDevice final : public Device {
 public:
  explicit DeferredDevice(const DeferredOptions& options)
      : Device(Kind::kDeferred),
        random_(options.seed),
        delay_us_(0, std::max(options.max_delay_us, 0)),
        thread_([this] { RunTasks(); }) {}

  ~DeferredDevice() override {
    TakeBack();
    queue_.Close();
    thread_.join();
    // A deleter of adopted memory in the queue may have released memory of this device.
    TakeBack();
    RunTasks();
  }

 private:
  // Directly from malloc, so that AddressSanitizer sees each block; a cache would only hide errors.
  absl::StatusOr<void*> DoAllocate(int64_t bytes) override {
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* data = bytes > kLargest ? nullptr : std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("the system refused ", bytes, " bytes"));
    }
    std::memset(data, kPoison, bytes);
    return data;
  }
  void DoFree(void* data, int64_t) override {
    queue_.Push([data] { std::free(data); });
  }

  absl::Status LaunchHost(const char* kernel, std::function<absl::Status()> fn) override {
    queue_.Push([this, kernel, fn = std::move(fn)] {
      if (failed()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us_(random_)));
      if (absl::Status status = NoThrow(fn); !status.ok()) FailKernel(kernel, status).IgnoreError();
    });
    return absl::OkStatus();
  }
  absl::Status DoCopy(void* dst, const void* src, int64_t bytes) override {
    return Launch("Copy", [=] { std::memcpy(dst, src, bytes); });
  }
  absl::Status DoFill(void* dst, uint8_t value, int64_t bytes) override {
    return Launch("Fill", [=] { std::memset(dst, value, bytes); });
  }
  absl::Status DoGemm(const GemmProblem& gemm) override {
    const absl::Status rows = asked_.CheckRows(gemm);
    if (!rows.ok() || gemm.only_asks) return rows;
    return Launch("Gemm", [this, gemm] { return gemm_.Run(gemm); });
  }

  DeviceEvent DoRecord() override {
    auto point = std::make_shared<Point>();
    queue_.Push([point] { point->Reach(); });
    return DeviceEvent(point);
  }
  absl::Status DoWait(const DeviceEvent& event) override {
    queue_.Push([event] { event.state()->Block(); });
    return absl::OkStatus();
  }
  absl::Status DoSynchronize() override {
    DoRecord().state()->Block();
    return absl::OkStatus();
  }
  void DoDefer(std::function<void()> fn) override { queue_.Push(std::move(fn)); }

  void RunTasks() {
    // Linux rounds sleeps up by 50 us by default.
    prctl(PR_SET_TIMERSLACK, 1000);
    while (std::function<void()> task = queue_.Pop()) task();
  }

  Queue queue_;
  // Used by the queue's thread alone.
  std::mt19937_64 random_;
  std::uniform_int_distribution<int> delay_us_;
  HostGemm gemm_;       // the queue's
  HostGemm asked_;      // the rank's thread's
  std::thread thread_;  // last: it uses the others
};

}  // namespace

std::unique_ptr<Device> MakeDeferredDevice(DeferredOptions options) {
  return std::make_unique<DeferredDevice>(options);
}

}  // namespace dtensor
