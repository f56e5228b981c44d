// The header of a safetensors file: JSON that lists its tensors and their positions.
#ifndef DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_HEADER_H_
#define DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The header's entry for a tensor. Row-major.
struct SafetensorsInfo {
  std::string type;            // as the file spells it: "F32"
  std::optional<DType> dtype;  // none for types that the library lacks: U8, F8_E4M3, ...
  Dims shape;
  int64_t begin = 0, end = 0;  // its bytes, relative to the header's end
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsInfo, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses in one pass: besides the result it holds no more than one name and one tensor, and it
// stops at the first error. Unknown members of a tensor are skipped. Errors: kInvalidArgument, in
// at most a few thousand bytes, for text that is no JSON object of tensors with each name once,
// metadata that are not texts, and a tensor of an unknown type, with negative sizes, with more than
// 2^56 elements or 64 dimensions, or with another number of bytes than its shape and type need.
// Positions in the file are not checked.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& text);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_HEADER_H_
