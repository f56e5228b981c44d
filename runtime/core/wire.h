// The bytes of messages between processes: integers in little-endian order; texts and blocks of
// bytes with their length in front.
#ifndef DTENSOR_RUNTIME_CORE_WIRE_H_
#define DTENSOR_RUNTIME_CORE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtensor {

class WireWriter {
 public:
  void U8(uint8_t value) { Number(value, 1); }
  void U32(uint32_t value) { Number(value, 4); }
  void U64(uint64_t value) { Number(value, 8); }
  void Text(absl::string_view text) {
    U32(static_cast<uint32_t>(text.size()));
    Raw(text);
  }
  void Raw(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }

  const std::string& bytes() const { return bytes_; }

 private:
  void Number(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_.push_back(static_cast<char>(value >> 8 * i));
  }
  std::string bytes_;
};

// Reads what a WireWriter wrote. Reading beyond the end gives 0 or "", and ok() is false from then
// on: so a message can be read as a whole, and checked once.
class WireReader {
 public:
  explicit WireReader(absl::string_view bytes) : left_(bytes) {}

  uint8_t U8() { return static_cast<uint8_t>(Number(1)); }
  uint32_t U32() { return static_cast<uint32_t>(Number(4)); }
  uint64_t U64() { return Number(8); }
  bool Bool() {
    const uint8_t value = U8();
    ok_ = ok_ && value <= 1;
    return ok_ && value == 1;
  }
  std::string Text() { return std::string(Raw(U32())); }
  // A view of the bytes that were given.
  absl::string_view Raw(size_t size) {
    ok_ = ok_ && size <= left_.size();
    if (!ok_) return {};
    const absl::string_view read = left_.substr(0, size);
    left_.remove_prefix(size);
    return read;
  }

  absl::string_view Rest() { return Raw(left_.size()); }

  bool ok() const { return ok_; }
  bool done() const { return ok_ && left_.empty(); }  // everything was read

 private:
  uint64_t Number(int size) {
    const absl::string_view bytes = Raw(size);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(bytes[i])} << 8 * i;
    }
    return value;
  }
  absl::string_view left_;
  bool ok_ = true;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_WIRE_H_
