#include "dtensor/runtime/core/no_throw.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"

namespace dtensor {

absl::Status NoThrow(absl::FunctionRef<absl::Status()> fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the system has no more memory for the host");
  } catch (const std::exception& exception) {
    return absl::InternalError(absl::StrCat("threw an exception: ", exception.what()));
  } catch (...) {
    return absl::InternalError("threw an exception that is no std::exception");
  }
}

absl::Status ExceptionWatch::status() const {
  return std::uncaught_exceptions() > before_
             ? absl::InternalError("an exception ended its thread's work")
             : absl::OkStatus();
}

}  // namespace dtensor
