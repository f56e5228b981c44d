// Where exceptions stop: those of a user's functions, and those of the standard library when memory
// runs out.
#ifndef DTENSOR_RUNTIME_CORE_NO_THROW_H_
#define DTENSOR_RUNTIME_CORE_NO_THROW_H_

#include <exception>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Returns what `fn` returns; an exception that leaves it becomes a status: kResourceExhausted for
// std::bad_alloc, kInternal with its text for others.
absl::Status NoThrow(absl::FunctionRef<absl::Status()> fn);

// For destructors that have to report how a program ended.
class ExceptionWatch {
 public:
  // OK; kInternal if an exception is unwinding the calling thread that was not when this was made.
  absl::Status status() const;

 private:
  const int before_ = std::uncaught_exceptions();
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_NO_THROW_H_
