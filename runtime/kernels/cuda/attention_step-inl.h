// What a step of attention is on a GPU: which keys each query sees, and which weights are dropped.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_STEP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_STEP_INL_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/arguments/index_lookup.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"

namespace dtensor::kernels::cuda {

// Scores are computed in units of log(2): the exponential is then 2^x.
inline constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

// The keys that a query row sees, as rows of the block: [begin, end). Neither end decreases from a
// row to the next.
struct SeenKeys {
  int64_t begin, end;
};
static_assert(sizeof(SeenKeys) == kSeenKeysBytes);

// The keys, of kKeys from `key` on, that a row sees: [begin, end), counted from `key`.
template <int kKeys>
struct SeenOfTile {
  __device__ SeenOfTile(const SeenKeys& seen, int64_t key)
      : begin(Within(seen.begin - key)), end(Within(seen.end - key)) {}
  __device__ bool Has(int offset) const { return offset >= begin && offset < end; }
  int begin, end;

 private:
  static __device__ int Within(int64_t offset) {
    return offset < 0 ? 0 : offset < kKeys ? static_cast<int>(offset) : kKeys;
  }
};

// AttentionMask as a flat kernel argument.
struct MaskRule {
  AttentionMask::Kind kind;
  int64_t size;             // of a window or prefix
  List<int64_t, 4> starts;  // of documents

  __device__ SeenKeys KeysOf(int64_t q) const {
    switch (kind) {
      case AttentionMask::Kind::kCausal:
        return {0, q + 1};
      case AttentionMask::Kind::kWindow:
        return {q + 1 > size ? q + 1 - size : 0, q + 1};
      case AttentionMask::Kind::kPrefix:
        return {0, q + 1 > size ? q + 1 : size};
      case AttentionMask::Kind::kDocuments:
        return {StartOf(q), q + 1};
      default:
        return {0, INT64_MAX};
    }
  }
  // The start of q's document: the last start that is not after q.
  __device__ int64_t StartOf(int64_t q) const {
    int64_t low = 0, high = starts.size;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (starts[middle] <= q ? low : high) = middle;
    }
    return starts[low];
  }
};

// Which weights are dropped: see AttentionDropout.
struct DropRule {
  uint64_t seed;
  uint32_t threshold;  // for the upper 24 bits of a word
  double scale;        // of what is kept
  IndexRuns batches, heads;
};

// Among the arguments of a step's kernels.
struct StepRule {
  AttentionSizes sizes;
  AttentionOperands operands;
  IndexRuns q_positions, k_positions;
  DropRule drop;
  const SeenKeys* seen;  // for each query row, or one for all rows if seen_rows = 1
  int64_t seen_rows;

  // Whether results have the type in which they are computed, which is wider than the operands'.
  __device__ bool is_wide() const { return sizes.out_dtype != sizes.dtype; }
  __device__ SeenKeys SeenBy(int64_t row) const { return seen[Lesser(row, seen_rows - 1)]; }
  // Whether the weight of a query row and a key is kept. Requires: some are dropped.
  __device__ bool Keeps(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    const auto position = static_cast<uint32_t>(k_positions.At(key));
    const auto words = Philox(
        {position / 4, static_cast<uint32_t>(q_positions.At(query)),
         static_cast<uint32_t>(drop.heads.At(head)), static_cast<uint32_t>(drop.batches.At(batch))},
        {static_cast<uint32_t>(drop.seed), static_cast<uint32_t>(drop.seed >> 32)});
    const uint32_t w = position % 4;
    const uint32_t word = w < 2 ? (w == 0 ? words[0] : words[1]) : (w == 2 ? words[2] : words[3]);
    return (word >> 8) >= drop.threshold;
  }
};

namespace internal {

// How many of a set's indices are less than `index`.
__device__ inline int64_t CountBelow(const IndexRuns& set, int64_t index) {
  int64_t count = 0;
  for (int64_t r = 0; r < set.runs.size && index > set.runs[r].begin; ++r) {
    const PlacedRun& run = set.runs[r];
    const int64_t past = Lesser(index, run.end) - run.begin;
    const int64_t intervals = run.stride == 0 ? 0 : past / run.stride;
    count += intervals * run.length + Lesser(past - intervals * run.stride, run.length);
  }
  return count;
}

static __global__ void SeenKeysKernel(MaskRule mask, IndexRuns q, IndexRuns k, SeenKeys* seen,
                                      int64_t rows) {
  ForEachPiece<int64_t>(rows, [&](int64_t row) {
    const SeenKeys keys = mask.KeysOf(q.At(row));
    seen[row] = {CountBelow(k, keys.begin), CountBelow(k, keys.end)};
  });
}

inline absl::Status FindSeenKeys(Device& device, const char* kernel, const AttentionArgs& args,
                                 const IndexRuns& q, const IndexRuns& k) {
  const AttentionMask& mask = args.mask;
  const int64_t rows = args.sizes.q_rows;
  if (rows == 0) return absl::OkStatus();
  return WithList<4>(device, kernel, mask.starts(), [&](const auto& starts) {
    const MaskRule rule = {mask.kind(), mask.width(), starts};
    return Launch(device, kernel, BlocksFor(rows), kThreads, SeenKeysKernel, rule, q, k,
                  static_cast<SeenKeys*>(args.scratch), rows);
  });
}

inline DropRule DropRuleOf(const AttentionArgs& args, const IndexRuns& batches,
                           const IndexRuns& heads) {
  return {args.dropout_seed, static_cast<uint32_t>(std::ceil(args.dropout_rate * 0x1p24)),
          1 / (1 - args.dropout_rate), batches, heads};
}

}  // namespace internal

// Calls launch(rule), while rule.seen is being brought to args.scratch. Errors: as WithList.
template <typename Fn>
absl::Status WithStepRule(Device& device, const char* kernel, const AttentionArgs& args,
                          Fn launch) {
  const auto with_runs = [&](const IndexSet& set, auto next) {
    return WithIndexRuns(device, kernel, IndexLookup(set), next);
  };
  return with_runs(args.q_positions, [&](const IndexRuns& q) {
    return with_runs(args.k_positions, [&](const IndexRuns& k) -> absl::Status {
      DT_RETURN_IF_ERROR(internal::FindSeenKeys(device, kernel, args, q, k));
      return with_runs(args.batches, [&](const IndexRuns& batches) {
        return with_runs(args.heads, [&](const IndexRuns& heads) {
          return launch(StepRule{args.sizes, args.operands, q, k,
                                 internal::DropRuleOf(args, batches, heads),
                                 static_cast<const SeenKeys*>(args.scratch), args.sizes.q_rows});
        });
      });
    });
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_STEP_INL_H_
