#include "dtensor/runtime/device/device.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {

struct Device::Failure {
  mutable std::mutex mutex;
  absl::Status status;
  std::function<void(const absl::Status&)> handler;
};

Device::Device(Kind kind, int ordinal)
    : kind_(kind), ordinal_(ordinal), failure_(std::make_shared<Failure>()) {}

absl::StatusOr<void*> Device::Allocate(int64_t bytes) {
  DT_REQUIRE(bytes >= 0, "Device::Allocate: there are no fewer than 0 bytes");
  TakeBack();
  if (failed()) return failure();
  if (bytes == 0) return nullptr;
  // Memory that is only counted (meta) has no other limit.
  const bool countable = bytes <= std::numeric_limits<int64_t>::max() - memory_.live_bytes;
  absl::StatusOr<void*> data =
      countable ? DoAllocate(bytes)
                : absl::ResourceExhaustedError(absl::StrCat(
                      "Device::Allocate: ", bytes, " bytes more are too many to be counted"));
  if (!data.ok()) {
    return absl::Status(data.status().code(),
                        absl::StrCat(data.status().message(), "; tensors on this ", ToString(kind_),
                                     " device hold ", memory_.live_bytes, " bytes already"));
  }
  memory_.live_bytes += bytes;
  memory_.peak_bytes = std::max(memory_.peak_bytes, memory_.live_bytes);
  return data;
}

void Device::Free(void* data, int64_t bytes) {
  memory_.live_bytes -= bytes;
  if (data != nullptr) DoFree(data, bytes);
}

void Device::set_kept_bytes(int64_t bytes) {
  DT_REQUIRE(bytes >= 0, "Device::set_kept_bytes: there are no fewer than 0 bytes");
  DoSetKeptBytes(bytes);
}

void Device::Trim() {
  TakeBack();
  DoTrim();
}

void Device::FreeFromAnyThread(void* data, int64_t bytes) {
  std::lock_guard lock(returned_mutex_);
  returned_.emplace_back(data, bytes);
  has_returned_.store(true, std::memory_order_relaxed);
}

void Device::TakeBack() {
  if (!has_returned_.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<void*, int64_t>> returned;
  {
    std::lock_guard lock(returned_mutex_);
    returned.swap(returned_);
    has_returned_.store(false, std::memory_order_relaxed);
  }
  for (const auto& [data, bytes] : returned) Free(data, bytes);
}

absl::Status Device::CopyFromHost(void* dst, const void* src, int64_t bytes) {
  return CopyOnDevice(dst, src, bytes);
}

absl::Status Device::CopyToHost(void* dst, const void* src, int64_t bytes) {
  return CopyOnDevice(dst, src, bytes);
}

absl::Status Device::CopyOnDevice(void* dst, const void* src, int64_t bytes) {
  if (failed()) return failure();
  return bytes == 0 ? absl::OkStatus() : DoCopy(dst, src, bytes);
}

absl::Status Device::FillBytes(void* dst, uint8_t value, int64_t bytes) {
  if (failed()) return failure();
  return bytes == 0 ? absl::OkStatus() : DoFill(dst, value, bytes);
}

absl::Status Device::Gemm(const GemmProblem& p) {
  if (failed()) return failure();
  DT_RETURN_IF_ERROR(ValidateGemm(p));
  if (p.batch == 0 || p.m == 0 || p.n == 0) return absl::OkStatus();
  if (p.only_asks && (p.k == 0 || is_meta())) return absl::OkStatus();
  return p.k == 0 && !is_meta() ? GemmOfNothing(p) : DoGemm(p);
}

absl::Status Device::GemmOfNothing(const GemmProblem& p) {
  if (p.accumulate) return absl::OkStatus();
  const int64_t size = SizeOf(p.out_dtype);
  for (int64_t i = 0; i < p.batch; ++i) {
    for (int64_t row = 0; row < p.m; ++row) {
      const int64_t offset = i * p.c.batch_stride + row * p.c.row_stride;
      DT_RETURN_IF_ERROR(DoFill(static_cast<char*>(p.c.data) + offset * size, 0, p.n * size));
    }
  }
  return absl::OkStatus();
}

DeviceEvent Device::Record() { return DoRecord(); }

absl::Status Device::Wait(const DeviceEvent& event) {
  if (event.state() != nullptr) {
    // Also on a failed device: the ranks that recorded the event may still read what it frees next.
    if (absl::Status status = DoWait(event); !status.ok()) Fail(status);
  }
  return failure();
}

absl::Status Device::Synchronize() {
  // Also on a failed device: its caller is about to free memory that the queue may still use.
  if (absl::Status status = DoSynchronize(); !status.ok()) Fail(status);
  TakeBack();  // including what deleters in the queue released
  return failure();
}

void Device::Defer(std::function<void()> fn) {
  if (fn) DoDefer(std::move(fn));
}

void Device::Fail(const absl::Status& status) {
  std::function<void(const absl::Status&)> handler;
  {
    std::lock_guard lock(failure_->mutex);
    if (status.ok() || !failure_->status.ok()) return;
    failure_->status = status;
    failed_.store(true, std::memory_order_release);
    handler = failure_->handler;
  }
  if (handler) handler(status);
}

absl::Status Device::FailKernel(const char* kernel, const absl::Status& status) {
  const absl::Status named(status.code(), absl::StrCat(kernel, ": ", status.message()));
  Fail(named);
  return named;
}

absl::Status Device::failure() const {
  if (!failed()) return absl::OkStatus();
  std::lock_guard lock(failure_->mutex);
  return failure_->status;
}

void Device::set_failure_handler(std::function<void(const absl::Status&)> handler) {
  absl::Status status;
  {
    std::lock_guard lock(failure_->mutex);
    failure_->handler = handler;
    status = failure_->status;
  }
  if (!status.ok() && handler) handler(status);
}

absl::string_view ToString(Device::Kind kind) {
  switch (kind) {
    case Device::Kind::kCpu:
      return "cpu";
    case Device::Kind::kDeferred:
      return "deferred";
    case Device::Kind::kMeta:
      return "meta";
    case Device::Kind::kCuda:
      return "cuda";
  }
  return "unknown";
}

}  // namespace dtensor
