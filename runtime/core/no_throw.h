// Where exceptions end: those of a user's functions, and those of the standard library when memory
// runs out.
#ifndef DTENSOR_RUNTIME_CORE_NO_THROW_H_
#define DTENSOR_RUNTIME_CORE_NO_THROW_H_

#include "absl/status/status.h"

namespace dtensor {

namespace internal {
absl::Status StatusOfException();  // Requires: called from a handler.
}  // namespace internal

// What `fn` returns, an absl::Status; an exception that leaves it becomes one: kResourceExhausted
// for std::bad_alloc, kInternal with its text for others.
template <typename Fn>
absl::Status NoThrow(Fn&& fn) {
  try {
    return fn();
  } catch (...) {
    return internal::StatusOfException();
  }
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_NO_THROW_H_
