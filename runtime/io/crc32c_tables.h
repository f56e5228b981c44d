// CRC-32C by tables, for processors without the instruction, and to compare the two.
#ifndef DTENSOR_RUNTIME_IO_CRC32C_TABLES_H_
#define DTENSOR_RUNTIME_IO_CRC32C_TABLES_H_

#include <cstddef>
#include <cstdint>

namespace dtensor {

// As Crc32c.
uint32_t Crc32cByTables(uint32_t crc, const void* bytes, size_t size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_CRC32C_TABLES_H_
