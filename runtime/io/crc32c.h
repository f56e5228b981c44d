// CRC-32C (Castagnoli, RFC 3720): whether bytes are still those that were written. It finds every
// flipped bit, every two and three in less than 256 MiB, and every burst of 32 bits or less; of
// other damage it misses one in 2^32. It is no defence against somebody who forges.
#ifndef DTENSOR_RUNTIME_IO_CRC32C_H_
#define DTENSOR_RUNTIME_IO_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// That of `crc`'s bytes followed by these; 0 is that of none. Crc32c(0, "123456789", 9) is
// 0xe3069283. By the processor's instruction where it has one, some GB a second; else by tables.
uint32_t Crc32c(uint32_t crc, const void* bytes, size_t size);

namespace internal {
// By tables, on any processor: the same numbers.
uint32_t Crc32cByTables(uint32_t crc, const void* bytes, size_t size);
}  // namespace internal

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_CRC32C_H_
