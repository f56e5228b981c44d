// How errors travel: absl::Status for whatever a caller can cause, DT_REQUIRE where a call that
// returns no status says "Requires:", DT_CHECK for our own bugs.
//
//   DT_RETURN_IF_ERROR(expr);               // returns the status from the enclosing function
//   DT_ASSIGN_OR_RETURN(auto x, StatusOr);  // unwraps, or returns the status
//   DT_REQUIRE(i < n, "Dims::at: " ...);    // else prints what the caller did, and aborts
//   DT_CHECK(i < n);                        // else prints file and line, and aborts
//
// A message names the operator, the placements, the shape, the mesh axis, and the remedy.
#ifndef DTENSOR_RUNTIME_CORE_STATUS_H_
#define DTENSOR_RUNTIME_CORE_STATUS_H_

#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// kInvalidArgument with the pieces of the message joined. Out of line: errors are the cold path.
absl::Status InvalidArgument(std::initializer_list<absl::string_view> pieces);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
[[noreturn]] void RequireFailed(const char* message);
}  // namespace internal

#define DT_CHECK(condition) \
  ((condition) ? (void)0 : ::dtensor::internal::CheckFailed(__FILE__, __LINE__, #condition))

// `message` is a string literal: the call, what was wrong with it, and what to do.
#define DT_REQUIRE(condition, message) \
  ((condition) ? (void)0 : ::dtensor::internal::RequireFailed(message))
#define DT_REQUIRE_DEFINED(defined, call)                                        \
  DT_REQUIRE(defined, call                                                       \
             " of an undefined tensor (default-made, moved from, or a gradient " \
             "that is not there); ask defined() first")

#define DT_RETURN_IF_ERROR(expr)                                                 \
  do {                                                                           \
    if (::absl::Status dt_status_ = (expr); !dt_status_.ok()) return dt_status_; \
  } while (false)

#define DT_CONCAT_INNER_(a, b) a##b
#define DT_CONCAT_(a, b) DT_CONCAT_INNER_(a, b)
#define DT_ASSIGN_OR_RETURN(lhs, expr) \
  DT_ASSIGN_OR_RETURN_IMPL_(DT_CONCAT_(dt_statusor_, __COUNTER__), lhs, expr)
#define DT_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                              \
  if (!var.ok()) return std::move(var).status();  \
  lhs = *std::move(var)

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_STATUS_H_
