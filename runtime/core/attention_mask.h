// AttentionMask: which keys a query may see, as a rule on global positions.
//
//   full               every key
//   causal             query i sees keys 0..i
//   window:W           query i sees keys i-W+1..i; the same as causal for sequences up to length W
//   prefix:N           as causal, and every query also sees keys 0..N-1
//   documents:0,100    documents begin at these positions; causal within each, nothing across
//
// The keys that a query sees are always one interval of positions. A block is a set of query
// positions and a set of key positions; since positions are global, it does not matter which ranks
// hold them. A pure value; Parse(ToString(m)) == m.
#ifndef DTENSOR_RUNTIME_CORE_ATTENTION_MASK_H_
#define DTENSOR_RUNTIME_CORE_ATTENTION_MASK_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"

namespace DTENSOR_EXPORT dtensor {

// Which pairs of a block a mask allows. i and j number its queries and keys in ascending order:
enum class BlockCase : uint8_t {
  kEmpty,     // no pair is allowed, or there are no pairs
  kFull,      // every pair is allowed
  kDiagonal,  // i sees j exactly if j <= i, for equally many of both: a local causal mask
  kPartial    // anything else
};
absl::string_view ToString(BlockCase block_case);  // "empty", "full", "diagonal", "partial"

// Positions [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
  friend bool operator==(const KeyRange&, const KeyRange&) = default;
};

class AttentionMask {
 public:
  enum class Kind : uint8_t { kFull, kCausal, kWindow, kPrefix, kDocuments };

  AttentionMask() = default;  // full
  static AttentionMask Full() { return AttentionMask(); }
  static AttentionMask Causal();
  // Errors: kInvalidArgument unless width >= 1, or size >= 0, or the starts ascend from 0.
  static absl::StatusOr<AttentionMask> Window(int64_t width);
  static absl::StatusOr<AttentionMask> Prefix(int64_t size);
  static absl::StatusOr<AttentionMask> Documents(std::vector<int64_t> starts);

  Kind kind() const { return kind_; }
  int64_t width() const { return size_; }  // of a window
  int64_t prefix() const { return size_; }
  absl::Span<const int64_t> starts() const { return starts_; }  // of documents
  // Whether no query sees a later key.
  bool is_causal() const { return kind_ != Kind::kFull && (kind_ != Kind::kPrefix || size_ == 0); }

  // The keys that query q sees; for full, `end` is the largest int64_t. O(log documents). Requires:
  // q >= 0.
  KeyRange KeysOf(int64_t q) const;
  bool Allows(int64_t q, int64_t k) const {
    const KeyRange keys = KeysOf(q);
    return keys.begin <= k && k < keys.end;
  }

  // The number of allowed pairs of a block, and its case. A pair of runs costs O(1) if one of them
  // is an interval or their strides are equal, else O(intervals of the run that has fewer). For
  // documents, each document costs that much. Requires: positions from 0, below 2^40; at most 2^62
  // pairs.
  int64_t Count(const IndexSet& q, const IndexSet& k) const;
  BlockCase Classify(const IndexSet& q, const IndexSet& k) const;

  // Errors: kInvalidArgument if the mask refers to positions beyond a sequence of this length: a
  // longer prefix, or a document that begins at its end or later.
  absl::Status CheckFits(int64_t length) const;

  std::string ToString() const;
  // Errors: kInvalidArgument, showing the valid spellings.
  static absl::StatusOr<AttentionMask> Parse(absl::string_view text);

  friend bool operator==(const AttentionMask&, const AttentionMask&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const AttentionMask& m) {
    return H::combine(std::move(h), m.kind_, m.size_, m.starts_);
  }

 private:
  explicit AttentionMask(Kind kind, int64_t size = 0) : kind_(kind), size_(size) {}
  int64_t CountInDocuments(const IndexSet& q, const IndexSet& k) const;
  Kind kind_ = Kind::kFull;
  int64_t size_ = 0;             // of a window or prefix
  std::vector<int64_t> starts_;  // of documents
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_ATTENTION_MASK_H_
