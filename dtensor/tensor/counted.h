// CountedPtr: shared ownership within one thread. The count is in the value and is not atomic, so
// adding an owner takes less than a nanosecond. That matters because each tensor owns interned
// values of its Context.
#ifndef DTENSOR_TENSOR_COUNTED_H_
#define DTENSOR_TENSOR_COUNTED_H_

#include <cstdint>
#include <utility>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Base class of values with a count. A copy is another value and starts without owners.
class Counted {
 public:
  Counted() = default;
  Counted(const Counted&) {}
  Counted& operator=(const Counted&) { return *this; }

 private:
  template <typename T>
  friend class CountedPtr;
  mutable uint32_t owners_ = 0;
};

// Deletes the value with its last owner. T derives from Counted, perhaps const; the value was made
// by `new`. All owners of a value belong to one thread at a time.
template <typename T>
class CountedPtr {
 public:
  CountedPtr() = default;
  CountedPtr(T* value) : value_(value) {  // implicit, as is the conversion back
    if (value_ != nullptr) ++value_->owners_;
  }
  CountedPtr(const CountedPtr& other) : CountedPtr(other.value_) {}
  CountedPtr(CountedPtr&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  CountedPtr& operator=(CountedPtr other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~CountedPtr() {
    if (value_ != nullptr && --value_->owners_ == 0) delete value_;
  }

  T* get() const { return value_; }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }
  // Not for temporaries: one may be the last owner.
  operator T*() const& { return value_; }
  operator T*() && = delete;

  // Requires: not null.
  bool is_only_owner() const { return value_->owners_ == 1; }

 private:
  T* value_ = nullptr;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_COUNTED_H_
