// Matchers and macros of tests for absl::Status and absl::StatusOr.
//
//   EXPECT_THAT(ParseDType("f32"), IsOkAndHolds(DType::kF32));
//   EXPECT_THAT(ParseDType("f33"), StatusIs(absl::StatusCode::kInvalidArgument,
//   HasSubstr("bf16"))); DT_ASSERT_OK_AND_ASSIGN(Dims dims, ParseDims("[2, 3]"));
#ifndef DTENSOR_RUNTIME_TESTING_STATUS_MATCHERS_H_
#define DTENSOR_RUNTIME_TESTING_STATUS_MATCHERS_H_

#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace internal {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

}  // namespace internal

// Of a Status or a StatusOr: that it is OK.
MATCHER(IsOk, negation ? "is an error" : "is OK") {
  *result_listener << "whose status is " << internal::StatusOf(arg).ToString();
  return arg.ok();
}

// Of a StatusOr: that it is OK and that its value matches; `inner` is a matcher or a value.
MATCHER_P(IsOkAndHolds, inner,
          std::string(negation ? "is an error or holds a value that " : "is OK and holds what ") +
              testing::DescribeMatcher<typename std::decay_t<arg_type>::value_type>(inner,
                                                                                    negation)) {
  if (!arg.ok()) {
    *result_listener << "whose status is " << arg.status().ToString();
    return false;
  }
  *result_listener << "which holds " << testing::PrintToString(*arg) << " ";
  return testing::ExplainMatchResult(inner, *arg, result_listener);
}

// Of a Status or a StatusOr: that it has this code.
MATCHER_P(StatusIs, code,
          std::string(negation ? "has another code than " : "has code ") +
              absl::StatusCodeToString(code)) {
  *result_listener << "whose status is " << internal::StatusOf(arg).ToString();
  return internal::StatusOf(arg).code() == code;
}

// Of a Status or a StatusOr: that it has this code, and a message (a std::string) that matches.
MATCHER_P2(StatusIs, code, message,
           std::string(negation ? "lacks code " : "has code ") + absl::StatusCodeToString(code) +
               (negation ? " or a message that " : " and a message that ") +
               testing::DescribeMatcher<std::string>(message)) {
  const absl::Status& status = internal::StatusOf(arg);
  *result_listener << "whose status is " << status.ToString() << " ";
  return status.code() == code &&
         testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

// Of a Status or a StatusOr: a refusal, kInvalidArgument with a message that matches.
inline auto Refuses(const testing::Matcher<std::string>& message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, message);
}

#define DT_ASSERT_OK(expr) ASSERT_THAT(expr, ::dtensor::IsOk())
#define DT_EXPECT_OK(expr) EXPECT_THAT(expr, ::dtensor::IsOk())

// Unwraps a StatusOr into `lhs`; on an error, fails the test and returns from the function.
#define DT_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  DT_ASSERT_OK_AND_ASSIGN_IMPL_(DT_CONCAT_(dt_statusor_, __COUNTER__), lhs, expr)
#define DT_ASSERT_OK_AND_ASSIGN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                  \
  ASSERT_THAT(var, ::dtensor::IsOk());                \
  lhs = *std::move(var)

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_STATUS_MATCHERS_H_
