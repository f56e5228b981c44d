// Kernels that must know which global indices their shard holds (index_set.h). Conventions:
// elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_INDEXED_H_
#define DTENSOR_RUNTIME_KERNELS_INDEXED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::kernels {

// y[t, :] = table[position of ids[t] in `rows`, :], or 0 where `rows` lacks it. ids: [...] i32 or
// i64; table: [rows.size(), d]; y: [..., d]. `num_rows` is the global number of rows. Fails
// (kOutOfRange, naming the id and num_rows) for an id outside [0, num_rows): a failure, not a
// refusal.
absl::Status Embedding(Device& device, const Tensor& ids, const Tensor& table, const IndexSet& rows,
                       int64_t num_rows, const Tensor& y);
// dtable[r, :] = sum over t with ids[t] = row r of dy[t, :], in ascending t, accumulated in f32.
absl::Status EmbeddingGrad(Device& device, const Tensor& ids, const Tensor& dy,
                           const IndexSet& rows, const Tensor& dtable);

// Rotary position embedding, the rotate-half convention of Hugging Face's LLaMA: with i < d/2,
//
//   y[i]       = x[i] cos(p w_i)       - x[i + d/2] sin(p w_i)
//   y[i + d/2] = x[i + d/2] cos(p w_i) + x[i] sin(p w_i)
//
// w_i = theta^(-2i/d), and p the global position: the t-th element of `positions`. `inverse`
// rotates back (the gradient). x, y: [b, t, h, d], any strides for x. Cosines and sines are
// computed in f64 and, but for f64, rounded to f32 once.
absl::Status Rope(Device& device, const Tensor& x, const IndexSet& positions, double theta,
                  bool inverse, const Tensor& y);

// Cross-entropy of logits [T, V'] whose columns are the global classes `classes`, targets [T] i32
// or i64. Stage 1: stats[T, 3] f32 (f64 for f64) = (max, sum exp(x - max), logit of the target or 0
// if not here). No classes: (-inf, 0, 0). A target equal to `ignore` counts nowhere; other targets
// outside [0, num_classes) fail (kOutOfRange).
absl::Status CrossEntropyStats(Device& device, const Tensor& logits, const Tensor& targets,
                               const IndexSet& classes, int64_t num_classes, int64_t ignore,
                               const Tensor& stats);
// Stage 2, from the stats of all P shards [P, T, 3]: lse[T], loss[T] = lse - target logit (0 where
// ignored).
absl::Status CrossEntropyMerge(Device& device, const Tensor& stats, const Tensor& targets,
                               int64_t ignore, const Tensor& lse, const Tensor& loss);
// dlogits = (exp(logits - lse) - onehot(target)) * dloss[t]; dloss: [T] (any strides), 0 rows where
// ignored.
absl::Status CrossEntropyGrad(Device& device, const Tensor& logits, const Tensor& targets,
                              const IndexSet& classes, int64_t ignore, const Tensor& lse,
                              const Tensor& dloss, const Tensor& dlogits);

// Random numbers keyed by the global index: element with global row-major index g of the tensor
// gets the same value on every mesh. Philox4x32-10 with key `seed` and counter (g / 4, stream);
// Box-Muller in f64. `region` has one set per dimension of `out` (the indices this rank holds),
// `shape` is the global shape.
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

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_INDEXED_H_
