// Scratch: working memory for one thread's kernels, which only grows.
#ifndef DTENSOR_RUNTIME_DEVICE_HOST_SCRATCH_H_
#define DTENSOR_RUNTIME_DEVICE_HOST_SCRATCH_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace dtensor {

class Scratch {
 public:
  // Returns at least `bytes`, 64-byte aligned; null if the system has no more. If the memory has to
  // grow, the previous result becomes invalid, and its contents are lost.
  void* Reserve(int64_t bytes) {
    if (bytes <= bytes_) return data_.get();
    // Freed first, so that the two never add up.
    data_.reset();
    bytes_ = (bytes + 63) / 64 * 64;
    data_.reset(std::aligned_alloc(64, bytes_));
    if (data_ == nullptr) bytes_ = 0;
    return data_.get();
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_HOST_SCRATCH_H_
