#include "dtensor/runtime/io/crc32c.h"

#include <array>
#include <cstring>

#include "dtensor/runtime/io/crc32c_tables.h"

namespace dtensor {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// kTables[k][b]: what byte b does to the remainder when k bytes follow it.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables = {};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

uint64_t LoadWord(const unsigned char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(uint32_t crc, const unsigned char* bytes,
                                                         size_t size) {
  uint64_t state = ~crc;
  for (; size >= 8; bytes += 8, size -= 8) {
    state = __builtin_ia32_crc32di(state, LoadWord(bytes));
  }
  auto rest = static_cast<uint32_t>(state);
  for (; size > 0; ++bytes, --size) rest = __builtin_ia32_crc32qi(rest, *bytes);
  return ~rest;
}
#endif

}  // namespace

uint32_t Crc32cByTables(uint32_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t word = LoadWord(bytes) ^ crc;  // little-endian, as all we write
    crc = 0;
    for (int i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++bytes, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *bytes) & 0xff];
  return ~crc;
}

uint32_t Crc32c(uint32_t crc, const void* bytes, size_t size) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ByInstruction(crc, static_cast<const unsigned char*>(bytes), size);
#endif
  return Crc32cByTables(crc, bytes, size);
}

}  // namespace dtensor
