#include "dtensor/runtime/core/dtype.h"

#include <iterator>

#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// In the order of the enumerators.
constexpr absl::string_view kNames[] = {"f32", "f64", "bf16", "f16", "i32", "i64", "bool"};
constexpr int64_t kSizes[] = {4, 8, 2, 2, 4, 8, 1};
static_assert(std::size(kNames) == static_cast<size_t>(DType::kBool) + 1);
static_assert(std::size(kSizes) == std::size(kNames));

size_t Index(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  DT_CHECK(index < std::size(kNames));
  return index;
}

}  // namespace

int64_t SizeOf(DType dtype) { return kSizes[Index(dtype)]; }

absl::string_view ToString(DType dtype) { return kNames[Index(dtype)]; }

absl::StatusOr<DType> ParseDType(absl::string_view text) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) return static_cast<DType>(i);
  }
  return InvalidArgument(
      {"\"", text, "\" is no dtype; write one of ", absl::StrJoin(kNames, ", ")});
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

DType AccumulatorOf(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

bool ConvertsOnTheWay(DType from, DType to) {
  const auto in_f32 = [](DType t) { return IsFloat(t) && AccumulatorOf(t) == DType::kF32; };
  return from == to || (in_f32(from) && in_f32(to));
}

}  // namespace dtensor
