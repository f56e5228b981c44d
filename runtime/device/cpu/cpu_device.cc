#include "dtensor/runtime/device/cpu/cpu_device.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/cpu/caching_allocator.h"
#include "dtensor/runtime/device/cpu/memory_left.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/host/host_gemm.h"

namespace dtensor {
namespace {

// Explains a failure to allocate if a configured limit caused it.
std::string Why(int64_t bytes) {
  const std::optional<int64_t> left = MemoryLeft();
  if (!left || *left >= bytes) return "";
  return absl::StrCat("; the container's limit of memory (memory.max of its control group) leaves ",
                      *left, ": raise it, or use more ranks or fewer tensors");
}

// Work is done when a call returns: the queue is always empty, and every Event has happened.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::shared_ptr<PageSource> pages)
      : Device(Kind::kCpu), pages_(std::move(pages)), allocator_(*pages_) {}

 private:
  absl::StatusOr<void*> DoAllocate(int64_t bytes) override {
    if (void* data = allocator_.Allocate(bytes)) return data;
    return absl::ResourceExhaustedError(
        absl::StrCat(pages_->owner(), " refused ", bytes, " bytes", Why(bytes)));
  }
  void DoFree(void* data, int64_t bytes) override { allocator_.Free(data, bytes); }
  void DoSetKeptBytes(int64_t bytes) override { allocator_.set_kept_bytes(bytes); }
  void DoTrim() override { allocator_.Trim(); }

  // Launch runs kernels itself, without a std::function.
  absl::Status LaunchHost(const char*, std::function<absl::Status()> fn) override { return fn(); }

  absl::Status DoCopy(void* dst, const void* src, int64_t bytes) override {
    std::memcpy(dst, src, bytes);
    return absl::OkStatus();
  }
  absl::Status DoFill(void* dst, uint8_t value, int64_t bytes) override {
    std::memset(dst, value, bytes);
    return absl::OkStatus();
  }
  absl::Status DoGemm(const GemmProblem& gemm) override {
    const absl::Status rows = gemm_.CheckRows(gemm);
    if (!rows.ok() || gemm.only_asks) return rows;
    absl::Status status = gemm_.Run(gemm);
    return status.ok() ? status : FailKernel("Gemm", status);
  }

  DeviceEvent DoRecord() override { return DeviceEvent(); }
  absl::Status DoWait(const DeviceEvent& event) override {
    event.state()->Block();
    return absl::OkStatus();
  }
  absl::Status DoSynchronize() override { return absl::OkStatus(); }
  void DoDefer(std::function<void()> fn) override { fn(); }

  const std::shared_ptr<PageSource> pages_;
  CachingAllocator allocator_;
  HostGemm gemm_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(std::shared_ptr<PageSource> pages) {
  if (pages == nullptr) pages = std::make_shared<PrivatePages>();
  return std::make_unique<CpuDevice>(std::move(pages));
}

}  // namespace dtensor
