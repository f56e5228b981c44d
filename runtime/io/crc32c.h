// CRC-32C (Castagnoli, RFC 3720) detects whether bytes have changed since they were written. It
// finds every flipped bit, every two and three in less than 256 MiB, and every burst of 32 bits or
// less; of other damage it misses one in 2^32. It is no protection against forgery.
#ifndef DTENSOR_RUNTIME_IO_CRC32C_H_
#define DTENSOR_RUNTIME_IO_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Returns the CRC of the bytes whose CRC is `crc`, followed by these; 0 is the CRC of no bytes.
// Crc32c(0, "123456789", 9) is 0xe3069283. Uses the processor's instruction if it has one, at some
// GB/s; else tables.
uint32_t Crc32c(uint32_t crc, const void* bytes, size_t size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_CRC32C_H_
