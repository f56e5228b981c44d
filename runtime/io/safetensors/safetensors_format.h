// What writing and reading safetensors files have in common: types, limits, sizes. A file that is
// written can be read, because both ask here.
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

// The format's own limit. A million tensors fit, if their names have ten bytes.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int kMaxSafetensorsDimensions = 64;
// The member of a header that is no tensor.
inline constexpr absl::string_view kSafetensorsMetadata = "__metadata__";

struct SafetensorsType {
  absl::string_view name;
  int64_t bytes;               // of an element
  std::optional<DType> dtype;  // none for types that the library lacks
};
SafetensorsType SafetensorsTypeOf(DType dtype);
// Errors: kInvalidArgument, with the names that there are.
absl::StatusOr<SafetensorsType> FindSafetensorsType(absl::string_view name);

// The bytes of a tensor. Errors: kInvalidArgument for too many dimensions, and for what no tensor
// has (CheckedNumElements).
absl::StatusOr<int64_t> SafetensorsBytes(absl::Span<const int64_t> shape, int64_t element);

// The error, with the tensor in front, in printable ASCII whatever the name is.
absl::Status OfSafetensor(absl::string_view name, const absl::Status& status);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FORMAT_H_
