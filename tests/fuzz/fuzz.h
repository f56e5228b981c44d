// What every fuzz target is made of. A target is a source that defines Try; fuzz.bzl makes of it a
// libFuzzer program under --config=fuzz, and elsewhere a program that tries kept inputs.
//
// Whatever the input is, nothing may crash, hang, or take memory that grows faster than it;
// libFuzzer watches that. What else must hold, Try asserts with the functions below, which end the
// program.
#ifndef DTENSOR_TESTS_FUZZ_FUZZ_H_
#define DTENSOR_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor::fuzz {

// Defined by each target: any bytes.
void Try(absl::string_view input);

void Require(bool holds, absl::string_view what);

// What readers answer to what they cannot read: one of the codes of refusals (docs/errors.md), and
// a message that is not empty and, however long the input, fits a screen.
void RequireRefusal(const absl::Status& status);

// Whether there is a value. If not, the status must be a refusal.
template <typename T>
bool IsRead(const absl::StatusOr<T>& value) {
  if (!value.ok()) RequireRefusal(value.status());
  return value.ok();
}

// `again` is what reading `text`, the text form of `value`, gave.
template <typename T>
void RequireSame(const T& value, const absl::StatusOr<T>& again, absl::string_view text) {
  Require(again.ok() && *again == value, text);
}

// The input's first lines, as many as asked for, which are empty where it has fewer.
std::vector<absl::string_view> Lines(absl::string_view input, size_t count);

}  // namespace dtensor::fuzz

#endif  // DTENSOR_TESTS_FUZZ_FUZZ_H_
