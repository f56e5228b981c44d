#include "dtensor/runtime/io/crc32c.h"

#include <string>

#include "dtensor/runtime/io/crc32c_tables.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// RFC 3720, B.4, and the check value of the catalogue of parametrised CRCs.
TEST(Crc32c, GivesThePublishedNumbers) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xe3069283);
  EXPECT_EQ(Crc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aa);
  EXPECT_EQ(Crc32c(0, std::string(32, '\xff').data(), 32), 0x62a8ab43);
  EXPECT_EQ(Crc32c(0, nullptr, 0), 0u);
}

TEST(Crc32c, IsTheSameByTablesAndInParts) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes.push_back(static_cast<char>(i * i + i / 7));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); size += 1 + size / 5) {
      const char* data = bytes.data() + begin;
      const uint32_t whole = Crc32c(0, data, size);
      EXPECT_EQ(whole, Crc32cByTables(0, data, size)) << begin << " " << size;
      EXPECT_EQ(whole, Crc32c(Crc32c(0, data, size / 3), data + size / 3, size - size / 3));
    }
  }
}

TEST(Crc32c, SeesEveryFlippedBit) {
  std::string bytes(64, 'x');
  const uint32_t before = Crc32c(0, bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(Crc32c(0, bytes.data(), bytes.size()), before) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace dtensor
