// TypeSet: the types of elements that an operator takes.
#ifndef DTENSOR_TENSOR_TYPE_SET_H_
#define DTENSOR_TENSOR_TYPE_SET_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class TypeSet {
 public:
  constexpr TypeSet() = default;  // empty
  constexpr TypeSet(std::initializer_list<DType> types) {
    for (DType type : types) bits_ |= uint32_t{1} << static_cast<int>(type);
  }
  static constexpr TypeSet Floats() {
    return {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
  }
  static constexpr TypeSet Integers() { return {DType::kI32, DType::kI64}; }
  static constexpr TypeSet Numbers() { return Floats() | Integers(); }
  static constexpr TypeSet All() { return Numbers() | TypeSet({DType::kBool}); }

  constexpr bool contains(DType type) const { return bits_ >> static_cast<int>(type) & 1; }
  constexpr bool empty() const { return bits_ == 0; }
  // "floating numbers", "numbers", or the types: "i32 or i64".
  std::string ToString() const;

  friend constexpr bool operator==(TypeSet, TypeSet) = default;
  friend constexpr TypeSet operator|(TypeSet a, TypeSet b) {
    TypeSet both;
    both.bits_ = a.bits_ | b.bits_;
    return both;
  }

 private:
  uint32_t bits_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TYPE_SET_H_
