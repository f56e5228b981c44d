// Attrs: an operator's arguments that are not tensors, as one value of a type of the operator's
// own.
//
//   struct SliceAttrs {
//     int dim = 0;
//     int64_t size = 0;
//     auto fields() const { return std::tie(dim, size); }
//   };
//
//   OpDef kSliceOp = {.name = "Slice", .attrs = &kAttrsType<SliceAttrs>, ...};
//   Dispatch(kSliceOp, {&x}, SliceAttrs{1, 3});
//   call.attrs<SliceAttrs>().dim                // in the operator's functions
//
// fields() lists what the value consists of: whole numbers, bools, enums, floats, strings, types
// that have fields() themselves, and containers of all these. Two values are equal if their fields
// are equal bit by bit: a NaN equals itself, and 0 differs from -0. The struct must own its data (a
// std::string, not a string_view), because copies outlive the call. The type must be compiled into
// one shared object only, because types are told apart by an address. Attributes are part of the
// dispatch cache's key and of the digests by which ranks compare calls, so they are equal on all
// ranks. An argument that changes from call to call, and on which no layout, shape or type depends,
// is not an attribute: pass it as CallValues (op.h).
#ifndef DTENSOR_TENSOR_ATTRS_H_
#define DTENSOR_TENSOR_ATTRS_H_

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/status.h"

namespace DTENSOR_EXPORT dtensor {

template <typename T>
concept HasFields = requires(const T& value) {
  value.fields();
};

namespace internal {

template <typename T>
inline constexpr bool kIsNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <typename T>
inline constexpr bool kIsText = std::is_convertible_v<const T&, absl::string_view>;

// A number's 64 bits.
template <typename T>
int64_t BitsOf(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<int64_t>(static_cast<double>(value));
  } else {
    return static_cast<int64_t>(value);
  }
}

template <typename T>
void AddField(const T& field, Digest& digest) {
  if constexpr (kIsNumber<T>) {
    digest.Add(BitsOf(field));
  } else if constexpr (kIsText<T>) {
    digest.Add(absl::string_view(field));
  } else if constexpr (HasFields<T>) {
    std::apply([&](const auto&... each) { (AddField(each, digest), ...); }, field.fields());
  } else {
    digest.Add(static_cast<int64_t>(field.size()));
    for (const auto& element : field) AddField(element, digest);
  }
}

template <typename T>
bool SameField(const T& a, const T& b) {
  if constexpr (kIsNumber<T>) {
    return BitsOf(a) == BitsOf(b);
  } else if constexpr (kIsText<T>) {
    return absl::string_view(a) == absl::string_view(b);
  } else if constexpr (HasFields<T>) {
    const auto x = a.fields(), y = b.fields();
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return (SameField(std::get<i>(x), std::get<i>(y)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(x)>>());
  } else {
    return absl::c_equal(a, b, [](const auto& x, const auto& y) { return SameField(x, y); });
  }
}

template <typename T>
void PrintField(const T& field, std::string& out) {
  const absl::string_view space = out.empty() ? "" : " ";
  if constexpr (std::is_floating_point_v<T>) {
    absl::StrAppend(&out, space, field);
  } else if constexpr (kIsNumber<T>) {
    absl::StrAppend(&out, space, static_cast<int64_t>(field));
  } else if constexpr (kIsText<T>) {
    absl::StrAppend(&out, space, absl::string_view(field));
  } else if constexpr (HasFields<T>) {
    std::apply([&](const auto&... each) { (PrintField(each, out), ...); }, field.fields());
  } else {
    for (const auto& element : field) PrintField(element, out);
  }
}

}  // namespace internal

// Functions for attributes of one type. Its address identifies the type.
struct AttrsType {
  uint64_t (*digest)(const void* value);  // the same in every process
  bool (*same)(const void* a, const void* b);
  std::shared_ptr<const void> (*copy)(const void* value);
  std::string (*text)(const void* value);
};

template <HasFields T>
inline constexpr AttrsType kAttrsType = {
    [](const void* value) {
      Digest digest;
      internal::AddField(*static_cast<const T*>(value), digest);
      return digest.value();
    },
    [](const void* a, const void* b) {
      return internal::SameField(*static_cast<const T*>(a), *static_cast<const T*>(b));
    },
    [](const void* value) -> std::shared_ptr<const void> {
      return std::make_shared<const T>(*static_cast<const T*>(value));
    },
    [](const void* value) {
      std::string text;
      internal::PrintField(*static_cast<const T*>(value), text);
      return text;
    },
};

// Attributes of some type, or none, that it does not own: for parameters, as a string_view.
class AttrsView {
 public:
  AttrsView() = default;  // none
  template <HasFields T>
  AttrsView(const T& value) : type_(&kAttrsType<T>), value_(&value) {}  // implicit

  const AttrsType* type() const { return type_; }  // null: none
  // Requires: of this type.
  template <HasFields T>
  const T& as() const {
    DT_REQUIRE(type_ == &kAttrsType<T>, "AttrsView::as: the attributes are of another type");
    return *static_cast<const T*>(value_);
  }
  uint64_t digest() const { return type_ == nullptr ? 0 : type_->digest(value_); }
  // The fields, separated by spaces.
  std::string ToString() const { return type_ == nullptr ? "" : type_->text(value_); }
  friend bool operator==(const AttrsView& a, const AttrsView& b) {
    return a.type_ == b.type_ && (a.value_ == b.value_ || a.type_->same(a.value_, b.value_));
  }

 private:
  friend class Attrs;
  AttrsView(const AttrsType* type, const void* value) : type_(type), value_(value) {}
  const AttrsType* type_ = nullptr;
  const void* value_ = nullptr;
};

// Attributes that it owns: a copy.
class Attrs {
 public:
  Attrs() = default;  // none
  template <HasFields T>
  Attrs(const T& value) : Attrs(AttrsView(value)) {}  // implicit
  explicit Attrs(AttrsView view) : type_(view.type_) {
    if (type_ != nullptr) value_ = type_->copy(view.value_);
  }
  operator AttrsView() const { return {type_, value_.get()}; }

 private:
  const AttrsType* type_ = nullptr;
  std::shared_ptr<const void> value_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_ATTRS_H_
