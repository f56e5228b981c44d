#include "dtensor/runtime/core/no_throw.h"

#include <execinfo.h>

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"

namespace dtensor {
namespace {

// Created before memory runs out: creating them then would throw again. Copying allocates nothing.
struct Made {
  // The first exception that passes a function of glibc's, such as pthread_once() in oneDNN, has
  // glibc load libgcc_s; without memory for that, it aborts the process. backtrace() loads it, too.
  Made() {
    void* caller = nullptr;
    backtrace(&caller, 1);
  }

  absl::Status no_memory =
      absl::ResourceExhaustedError("the system has no more memory for the host");
  absl::Status exception = absl::InternalError("an exception ended its thread's work");
};
const Made& Beforehand() {
  static const Made* const made = new Made;
  return *made;
}

// Handles every exception but std::bad_alloc, which describing another exception may throw, too.
absl::Status ThrowsNoOther(absl::FunctionRef<absl::Status()> fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& exception) {
    return absl::InternalError(absl::StrCat("threw an exception: ", exception.what()));
  } catch (...) {
    return absl::InternalError("threw an exception that is no std::exception");
  }
}

}  // namespace

absl::Status NoThrow(absl::FunctionRef<absl::Status()> fn) {
  const Made& made = Beforehand();
  try {
    return ThrowsNoOther(fn);
  } catch (const std::bad_alloc&) {
    return made.no_memory;
  }
}

absl::Status ExceptionWatch::status() const {
  return std::uncaught_exceptions() > before_ ? Beforehand().exception : absl::OkStatus();
}

}  // namespace dtensor
