// Kernels that need to know which global indices their shard has (index_set.h). Conventions:
// elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_INDEXED_H_
#define DTENSOR_RUNTIME_KERNELS_INDEXED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/rope_frequency.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// y[t, :] = table[position of ids[t] in `rows`, :], or 0 if `rows` does not contain ids[t]. ids:
// [...] i32 or i64; table: [rows.size(), d]; y: [..., d]. `num_rows` is the global number of rows.
// An id outside [0, num_rows) makes the device fail (kOutOfRange, naming the id and num_rows): it
// is a failure, not a refusal.
absl::Status Embedding(Device& device, const Tensor& ids, const Tensor& table, const IndexSet& rows,
                       int64_t num_rows, const Tensor& y);
// dtable[r, :] = sum over t with ids[t] = row r of dy[t, :], in ascending t, accumulated in f32.
absl::Status EmbeddingGrad(Device& device, const Tensor& ids, const Tensor& dy,
                           const IndexSet& rows, const Tensor& dtable);

// Rotary position embedding, the rotate-half convention of Hugging Face's LLaMA: with i < d/2,
//
//   y[i]       = a (x[i] cos(p w_i)       - x[i + d/2] sin(p w_i))
//   y[i + d/2] = a (x[i + d/2] cos(p w_i) + x[i] sin(p w_i))
//
// w_i are the frequencies of `base` (rope_frequency.h), theta^(-2i/d) unless scaled, a is its
// amplitude, and p is the global position: the t-th element of `positions`. `inverse` rotates back,
// with the same amplitude (the gradient). x, y: [b, t, h, d], any strides for x. a cos(p w_i) and a
// sin(p w_i) are computed in f64 and, except for f64, rounded to f32 once.
absl::Status Rope(Device& device, const Tensor& x, const IndexSet& positions, const RopeBase& base,
                  bool inverse, const Tensor& y);

// Cross-entropy of logits [T, V'] whose first columns are the global classes `classes`, of
// `num_classes`; further columns are padding, which is not read. Targets: [T] i32 or i64. Targets
// equal to `ignore` are skipped. With s = label_smoothing and K = num_classes,
//
//   loss = lse - (1 - s) x[target] - s / K sum_j x[j],   lse = log sum_j exp(x[j])
//
// This is the cross-entropy of softmax(x) and (1 - s) onehot(target) + s / K: Szegedy et al.,
// "Rethinking the Inception Architecture" (2016), and
// torch.nn.functional.cross_entropy(label_smoothing=). Everything is computed from x - max x, so
// that a large number in all logits costs no precision; lse itself, which would be rounded to 2^-24
// of its size in f32, is never formed.
struct CrossEntropyTerms {
  int64_t num_classes = 0;
  int64_t ignore = -100;
  double label_smoothing = 0;
  // For each row and shard: (max, sum exp(x - max), logit of the target or 0 if not in this shard),
  // and, if labels are smoothed, (sum of x - max, how many x). For no classes: (-inf, 0, 0, 0, 0).
  int64_t num_stats() const { return label_smoothing == 0 ? 3 : 5; }
};
// log sum_j exp(x[j]) = max + log_sum of each row: [T] each, f32 (f64 for f64).
struct LogSumExp {
  Tensor max, log_sum;
};
// Stage 1: stats [T, terms.num_stats()] f32 (f64 for f64). Targets outside [0, num_classes) fail
// (kOutOfRange).
absl::Status CrossEntropyStats(Device& device, const Tensor& logits, const Tensor& targets,
                               const IndexSet& classes, const CrossEntropyTerms& terms,
                               const Tensor& stats);
// Stage 2, from the stats of all P shards [P, T, ...]: lse, and loss[T] (0 where ignored).
absl::Status CrossEntropyMerge(Device& device, const Tensor& stats, const Tensor& targets,
                               const CrossEntropyTerms& terms, const LogSumExp& lse,
                               const Tensor& loss);
// dlogits = (exp(logits - lse) - (1 - s) onehot(target) - s / K) * dloss[t], 0 in padding; dloss:
// [T] (any strides); rows with ignored targets are 0.
absl::Status CrossEntropyGrad(Device& device, const Tensor& logits, const Tensor& targets,
                              const IndexSet& classes, const CrossEntropyTerms& terms,
                              const LogSumExp& lse, const Tensor& dloss, const Tensor& dlogits);

// The mean of losses [T] (f32 or f64) over the targets that are not ignored, on all shards of the
// tokens. Stage 1: stats[2] f64 = (their sum, their count).
absl::Status TargetMeanStats(Device& device, const Tensor& loss, const Tensor& targets,
                             int64_t ignore, const Tensor& stats);
// Stage 2, from the stats of all P shards [P, 2], in ascending order: mean, a scalar of loss's type
// (NaN if all targets are ignored), and count, an f64 scalar.
absl::Status TargetMeanMerge(Device& device, const Tensor& stats, const Tensor& mean,
                             const Tensor& count);
// dloss = dmean / count, 0 where ignored.
absl::Status TargetMeanGrad(Device& device, const Tensor& targets, int64_t ignore,
                            const Tensor& count, const Tensor& dmean, const Tensor& dloss);

// Random numbers keyed by the global index: the element with global row-major index g gets the same
// value on every mesh. Philox4x32-10 with key `seed` and counter (g / 4, stream); Box-Muller in
// f64, by operations that processors and GPUs round identically (arguments/normal_pair.h), rounded
// once. `region` has one set per dimension of `out` (the indices that this rank holds), `shape` is
// the global shape.
absl::Status RandomNormal(Device& device, absl::Span<const IndexSet> region,
                          absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream,
                          double mean, double stddev, const Tensor& out);
// Uniform in [0, 1).
absl::Status RandomUniform(Device& device, absl::Span<const IndexSet> region,
                           absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream,
                           const Tensor& out);
// out = x * mask / (1 - p), where the mask of the element with global index g is uniform(g) >= p.
absl::Status Dropout(Device& device, const Tensor& x, absl::Span<const IndexSet> region,
                     absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream, double p,
                     const Tensor& out);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_INDEXED_H_
