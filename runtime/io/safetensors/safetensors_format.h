// What writing and reading of safetensors files share: types, limits, sizes. As both use these,
// every file that is written can be read.
#ifndef DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FORMAT_H_
#define DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FORMAT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The format's own limit. It allows a million tensors, if their names have ten bytes.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int kMaxSafetensorsDimensions = 64;
// The member of a header that is not a tensor.
inline constexpr absl::string_view kSafetensorsMetadata = "__metadata__";

struct SafetensorsType {
  absl::string_view name;
  int64_t bytes;               // of an element
  std::optional<DType> dtype;  // none for types that the library lacks
};
SafetensorsType SafetensorsTypeOf(DType dtype);
// Errors: kInvalidArgument, listing the valid names.
absl::StatusOr<SafetensorsType> FindSafetensorsType(absl::string_view name);

// The size of a tensor in bytes. Errors: kInvalidArgument for too many dimensions, and for a shape
// that no tensor can have (CheckedNumElements).
absl::StatusOr<int64_t> SafetensorsBytes(absl::Span<const int64_t> shape, int64_t element);

// Prefixes the error with the tensor's name, in printable ASCII whatever the name is.
absl::Status OfSafetensor(absl::string_view name, const absl::Status& status);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FORMAT_H_
