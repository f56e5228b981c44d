// ByteRows: where the bytes of one message lie, in order: in one row, or in several if the memory
// has gaps. A transport that accepts several rows (MessageTransport::least_row_bytes) reads and
// writes them in place, so that they need not be packed.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_BYTE_ROWS_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_BYTE_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Byte is `const std::byte` for sending and `std::byte` for receiving. Owns no bytes.
template <typename Byte>
class ByteRows {
 public:
  using Row = absl::Span<Byte>;
  using Rows = absl::InlinedVector<Row, 1>;

  ByteRows() = default;  // no bytes
  // One row, the usual case: from anything that converts to a span.
  template <typename Memory>
  requires(std::is_convertible_v<const Memory&, Row>) ByteRows(const Memory& memory) {  // NOLINT
    const Row row = memory;
    if (!row.empty()) rows_.push_back(row);
    bytes_ = row.size();
  }
  // Requires: no row is empty.
  explicit ByteRows(Rows rows) : rows_(std::move(rows)) {
    for (const Row& row : rows_) bytes_ += row.size();
  }
  // Rows to write may also be sent.
  template <typename Other>
  requires(std::is_same_v<const Other, Byte>) ByteRows(const ByteRows<Other>& rows)  // NOLINT
  {
    for (const absl::Span<Other> row : rows.rows()) rows_.push_back(row);
    bytes_ = rows.bytes();
  }

  size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  // In order, none of them empty.
  absl::Span<const Row> rows() const { return absl::MakeSpan(rows_).subspan(first_); }
  // The whole message as one row. Requires: there is no more than one row.
  Row only() const { return empty() ? Row() : rows_.back(); }

  // Drops the first `bytes`, which are done. Requires: as many are left.
  void RemovePrefix(size_t bytes) {
    bytes_ -= bytes;
    while (bytes > 0) {
      const size_t some = std::min(bytes, rows_[first_].size());
      rows_[first_].remove_prefix(some);
      first_ += rows_[first_].empty();
      bytes -= some;
    }
  }

 private:
  Rows rows_;
  size_t first_ = 0;  // rows before it are done
  size_t bytes_ = 0;
};

using SentRows = ByteRows<const std::byte>;
using TakenRows = ByteRows<std::byte>;

// Writes `bytes` into the rows. Requires: `bytes` has as many bytes as the rows.
inline void CopyInto(const TakenRows& rows, absl::Span<const std::byte> bytes) {
  for (const absl::Span<std::byte> row : rows.rows()) {
    std::memcpy(row.data(), bytes.data(), row.size());
    bytes.remove_prefix(row.size());
  }
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_BYTE_ROWS_H_
