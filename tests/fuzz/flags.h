// Flags in an input, a line each: "shape 8,6".
#ifndef DTENSOR_TESTS_FUZZ_FLAGS_H_
#define DTENSOR_TESTS_FUZZ_FLAGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtensor::fuzz {

class Flags {
 public:
  explicit Flags(absl::string_view input);
  std::optional<std::string> Text(absl::string_view name) const;
  std::string TextOr(absl::string_view name, absl::string_view otherwise) const;
  std::optional<int64_t> Number(absl::string_view name) const;  // none where it is no number

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace dtensor::fuzz

#endif  // DTENSOR_TESTS_FUZZ_FLAGS_H_
