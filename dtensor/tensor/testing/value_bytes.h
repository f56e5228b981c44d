// Values as bytes and back, bit by bit, for tests that hand them from process to process: numbers,
// enums, texts, pairs, vectors and maps of these; and structs for which there is, in namespace
// dtensor,
//
//   auto ValueFields(Struct& s) { return std::tie(s.first, s.second); }
#ifndef DTENSOR_TENSOR_TESTING_VALUE_BYTES_H_
#define DTENSOR_TENSOR_TESTING_VALUE_BYTES_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtensor {

// Writes what it is called with. The operands are not changed.
class ValueWriter {
 public:
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      std::apply([this](auto&... field) { ((*this)(field), ...); }, ValueFields(value));
    }
  }
  void operator()(std::string& text) {
    Size(text.size());
    bytes_ += text;
  }
  template <typename A, typename B>
  void operator()(std::pair<A, B>& pair) {
    (*this)(const_cast<std::remove_const_t<A>&>(pair.first));
    (*this)(pair.second);
  }
  template <typename T>
  void operator()(std::vector<T>& values) {
    Size(values.size());
    for (T& value : values) (*this)(value);
  }
  template <typename K, typename V>
  void operator()(std::map<K, V>& values) {
    Size(values.size());
    for (auto& pair : values) (*this)(pair);
  }
  std::string bytes() && { return std::move(bytes_); }

 private:
  void Size(uint64_t size) { (*this)(size); }
  std::string bytes_;
};

// Reads what a ValueWriter wrote, by the same calls.
class ValueReader {
 public:
  explicit ValueReader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      ok_ = ok_ && bytes_.size() >= sizeof(value);
      if (!ok_) return;
      std::memcpy(&value, bytes_.data(), sizeof(value));
      bytes_.remove_prefix(sizeof(value));
    } else {
      std::apply([this](auto&... field) { ((*this)(field), ...); }, ValueFields(value));
    }
  }
  void operator()(std::string& text) {
    const uint64_t size = Size();
    text = std::string(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
  }
  template <typename A, typename B>
  void operator()(std::pair<A, B>& pair) {
    (*this)(pair.first);
    (*this)(pair.second);
  }
  template <typename T>
  void operator()(std::vector<T>& values) {
    values.clear();
    for (uint64_t left = Size(); ok_ && left > 0; --left) (*this)(values.emplace_back());
  }
  template <typename K, typename V>
  void operator()(std::map<K, V>& values) {
    values.clear();
    for (uint64_t left = Size(); ok_ && left > 0; --left) {
      std::pair<K, V> pair;
      (*this)(pair);
      values.insert(std::move(pair));
    }
  }
  // That all bytes were there, and no more.
  bool ok() const { return ok_ && bytes_.empty(); }

 private:
  uint64_t Size() {
    uint64_t size = 0;
    (*this)(size);
    ok_ = ok_ && size <= bytes_.size();  // nothing takes less than a byte
    return ok_ ? size : 0;
  }

  absl::string_view bytes_;
  bool ok_ = true;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TESTING_VALUE_BYTES_H_
