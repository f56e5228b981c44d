#include "dtensor/runtime/io/safetensors/safetensors_format.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Type = SafetensorsType;
constexpr std::array kTypes = {Type{"F32", 4, DType::kF32},      Type{"F64", 8, DType::kF64},
                               Type{"BF16", 2, DType::kBF16},    Type{"F16", 2, DType::kF16},
                               Type{"I32", 4, DType::kI32},      Type{"I64", 8, DType::kI64},
                               Type{"BOOL", 1, DType::kBool},    Type{"U8", 1, std::nullopt},
                               Type{"I8", 1, std::nullopt},      Type{"U16", 2, std::nullopt},
                               Type{"I16", 2, std::nullopt},     Type{"U32", 4, std::nullopt},
                               Type{"U64", 8, std::nullopt},     Type{"F8_E4M3", 1, std::nullopt},
                               Type{"F8_E5M2", 1, std::nullopt}, Type{"F8_E8M0", 1, std::nullopt},
                               Type{"C64", 8, std::nullopt}};

}  // namespace

SafetensorsType SafetensorsTypeOf(DType dtype) {
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [dtype](const Type& type) { return type.dtype == dtype; });
}

absl::StatusOr<SafetensorsType> FindSafetensorsType(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Type& type : kTypes) {
    if (name == type.name) return type;
    names.push_back(type.name);
  }
  return InvalidArgument({"dtype ", name, " is unknown; known are ", absl::StrJoin(names, ", ")});
}

absl::StatusOr<int64_t> SafetensorsBytes(absl::Span<const int64_t> shape, int64_t element) {
  if (shape.size() > kMaxSafetensorsDimensions) {
    return InvalidArgument({"shape has ", absl::StrCat(shape.size()), " dimensions; at most ",
                            absl::StrCat(kMaxSafetensorsDimensions), " dimensions can be read"});
  }
  DT_ASSIGN_OR_RETURN(const int64_t elements, CheckedNumElements("shape", shape));
  return elements * element;
}

absl::Status OfSafetensor(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("tensor '", absl::CHexEscape(Shortened(name)),
                                                  "': ", status.message()));
}

}  // namespace dtensor
