// Writing safetensors files: a JSON header and raw little-endian tensors, as Hugging Face's library
// reads them.
#ifndef DTENSOR_RUNTIME_IO_SAFETENSORS_H_
#define DTENSOR_RUNTIME_IO_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"

namespace dtensor {

// Row-major; `data` outlives the call that writes it.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  const void* data = nullptr;
};

// Errors: kInvalidArgument for a name that occurs twice; kUnavailable, with path and reason, when
// it cannot be written.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsEntry> entries,
                              const std::map<std::string, std::string>& metadata);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_H_
