#include "dtensor/tensor/type_set.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace dtensor {

std::string TypeSet::ToString() const {
  if (*this == Floats()) return "floating numbers";
  if (*this == Numbers()) return "numbers";
  std::vector<absl::string_view> names;
  for (DType type : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64,
                     DType::kBool}) {
    if (contains(type)) names.push_back(dtensor::ToString(type));
  }
  return absl::StrJoin(names, " or ");
}

}  // namespace dtensor
