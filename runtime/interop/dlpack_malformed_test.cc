// Random descriptions of tensors, most of them nonsense: each is refused, or is a tensor whose
// every element can be read and lies in the memory that was described.

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/interop/dlpack.h"
#include "dtensor/runtime/interop/dlpack_abi.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int kTries = 50'000;
constexpr int64_t kMemory = 4096;  // bytes

class RandomDescription {
 public:
  explicit RandomDescription(std::mt19937_64& random, char* memory) : random_(random) {
    for (int i = 0; i < 70; ++i) {
      shape_.push_back(Size());
      strides_.push_back(Chance(8) ? Any() : Small(9));
    }
    DLTensor& t = managed_.dl_tensor;
    t.data = Chance(30) ? nullptr : memory + (Chance(10) ? Small(9) : 0);
    t.device = {Chance(30) ? DLDeviceType(Any()) : kDLCPU, Chance(20) ? int32_t(Any()) : 0};
    t.ndim = Chance(30) ? int32_t(Any()) : Small(4);
    if (t.ndim > 70) t.ndim = 70;  // a true description has as many sizes as it says
    t.dtype = {uint8_t(Chance(10) ? Any() : int64_t{Chance(2) ? kDLFloat : kDLInt}),
               uint8_t(Chance(10) ? Any() : (Chance(2) ? 32 : 64)),
               uint16_t(Chance(30) ? Any() : 1)};
    t.shape = Chance(40) ? nullptr : shape_.data();
    t.strides = Chance(3) ? nullptr : strides_.data();
    t.byte_offset = Chance(20) ? uint64_t(Any()) : 4 * Small(8);
    managed_.version = {Chance(40) ? uint32_t(Any()) : 1, uint32_t(Any())};
    managed_.flags = Chance(4) ? uint64_t(Any()) : 0;
    managed_.manager_ctx = this;
    if (!Chance(10)) {
      managed_.deleter = [](DLManagedTensorVersioned* self) {
        ++static_cast<RandomDescription*>(self->manager_ctx)->deleted;
      };
    }
  }
  DlpackTensor get() { return DlpackTensor(&managed_); }
  bool has_deleter() const { return managed_.deleter != nullptr; }
  int deleted = 0;

 private:
  bool Chance(int of) { return random_() % of == 0; }
  int64_t Small(int below) { return random_() % below; }
  int64_t Any() {
    const int64_t edges[] = {-1,
                             -2,
                             std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max(),
                             int64_t{1} << 56,
                             1 << 30};
    return Chance(2) ? edges[random_() % 6] : static_cast<int64_t>(random_());
  }
  int64_t Size() { return Chance(20) ? Any() : Small(5); }

  std::mt19937_64& random_;
  std::vector<int64_t> shape_, strides_;
  DLManagedTensorVersioned managed_ = {};
};

// Of one that was accepted: bytes from its first element to its last.
int64_t Reach(const Tensor& tensor) {
  int64_t last = 0;
  for (int d = 0; d < tensor.ndim(); ++d) last += (tensor.size(d) - 1) * tensor.strides()[d];
  return (last + 1) * SizeOf(tensor.dtype());
}

TEST(DlpackMalformedTest, IsRefusedOrHoldsWhatItSays) {
  std::mt19937_64 random(TestSeed());
  const auto device = MakeCpuDevice();
  std::vector<double> memory(kMemory / sizeof(double));
  char* const begin = reinterpret_cast<char*>(memory.data());
  int accepted = 0, read = 0;
  for (int i = 0; i < kTries; ++i) {
    RandomDescription description(random, begin);
    {
      const auto tensor = FromDlpack(*device, description.get());
      if (tensor.ok() && ++accepted && tensor->numel() > 0) {
        const char* first = static_cast<const char*>(tensor->raw());
        for (const int64_t stride : tensor->strides()) ASSERT_GE(stride, 0);
        // What lies in our memory can be read: AddressSanitizer sees the rest.
        if (first >= begin && Reach(*tensor) <= begin + kMemory - first && tensor->numel() < 9999) {
          VisitDType(tensor->dtype(), [&](auto element) {
            if (ToHost<decltype(element)>(*tensor).ok()) ++read;
          });
        }
      }
    }
    ASSERT_EQ(description.deleted, description.has_deleter());
  }
  // Neither all nor nothing.
  EXPECT_GT(accepted, kTries / 100);
  EXPECT_LT(accepted, kTries);
  EXPECT_GT(read, kTries / 1000);
  EXPECT_EQ(device->tensors(), 0);
}

}  // namespace
}  // namespace dtensor
