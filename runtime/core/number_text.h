// Numbers as text that does not depend on the program's locale. absl::StrFormat passes values below
// 2^-73 or above 2^128 to snprintf, which writes a decimal comma if the locale has one.
#ifndef DTENSOR_RUNTIME_CORE_NUMBER_TEXT_H_
#define DTENSOR_RUNTIME_CORE_NUMBER_TEXT_H_

#include <string>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The shortest text that reads back as the same number.
std::string ExactText(double value);
// As printf writes "%.*g". Requires: digits from 1 to 17.
std::string RoundedText(double value, int digits);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_NUMBER_TEXT_H_
