// Windows along a dimension, and what is made of them: convolutions and pooling. Features are the
// last dimension, as everywhere in this library: images are [batch, height, width, channels].
//
// The windows' dimension may be sharded. Each rank then receives what its windows reach of other
// shards (the halo), and nothing else; in backward it sends the gradients of that back. If two
// dimensions of a convolution are sharded, the second halo is of the windows along the first.
//
// Errors: as in ops.h.
#ifndef DTENSOR_OPS_WINDOWS_H_
#define DTENSOR_OPS_WINDOWS_H_

#include <cstdint>
#include <vector>

#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct WindowOptions {
  int64_t size = 1;      // elements of a window, at least 1
  int64_t step = 1;      // from one window to the next; divides the dimension
  int64_t before = 0;    // window 0 begins so many elements before x, or, if negative, behind its
                         // first
  int64_t dilation = 1;  // from one element of a window to the next
  int64_t limit = kMaxElements;  // windows from this number on have no element of x
  double value = 0;              // of elements that are not in x
};
// The windows of dimension `dim` (negative: from the end), n / step of them: x [..., n, ...] gives
// [..., n / step, ..., size, ...], in which the new dimension has the number `at` > dim (negative:
// from the result's end):
//
//   y[..., i, ..., j, ...] = x[..., i * step - before + j * dilation, ...]
//
// Any type; gradients of floats. With a step of s the rule is "(o s!) d -> o k! d": o is sharded as
// x is, if x is sharded in groups of s. An order of many rounds, such as cyclic, is brought to a
// contiguous one first.
TensorOr Windows(const TensorOr& x, int dim, int at, const WindowOptions& options);

// For each of the d dimensions that windows move along; empty: the default for all of them; one
// number: the same for all.
struct ConvOptions {
  std::vector<int64_t> stride = {};    // 1
  std::vector<int64_t> before = {};    // zeros in front of x, 0. PyTorch's padding is both this
  std::vector<int64_t> after = {};     // and these, behind it: 0
  std::vector<int64_t> dilation = {};  // 1
  int64_t groups = 1;                  // of features, which see each other alone
};
// A convolution (cross-correlation) of floats, as torch.nn.functional.conv1d to conv3d: x [...,
// n..., c] with weight [f, c / groups, k...], d numbers each in n... and k..., gives [..., o..., f]
// with o = (n + before + after - dilation * (k - 1) - 1) / stride + 1, rounded down:
//
//   y[o, f] = sum over c, j of x[o * stride - before + j * dilation, c] weight[f, c, j]
//
// A causal convolution has before = dilation * (k - 1). Windows, then a product: of c sharded,
// Partial(sum). A dimension n stays sharded, and only halos move, if o * stride = n: with stride 1
// if before + after = dilation * (k - 1). Otherwise it is also padded or sliced, as Pad and Slice
// do. The windows take k... times the memory of x, and Backward needs them: Recompute
// (recompute.h) gives it back.
TensorOr Conv(const TensorOr& x, const TensorOr& weight, const ConvOptions& options = {});

struct PoolOptions {
  std::vector<int64_t> size;         // of the windows: a number for each of the d >= 1 dimensions
  std::vector<int64_t> stride = {};  // empty: size
  std::vector<int64_t> before = {};  // elements in front of x, and behind it, which are -inf for
  std::vector<int64_t> after = {};   // MaxPool, and count as zeros for AveragePool
  // stride, before and after: one number for each dimension, or one for all.
};
// The largest elements, and the averages, of windows of x [..., n..., c], as torch's max_pool1d to
// max_pool3d, avg_pool1d to avg_pool3d with count_include_pad. Floats. Elements that tie share
// MaxPool's gradient evenly (PyTorch: the first gets it), and if a window has a NaN, all of its
// elements' gradients are NaN; a window without any element gives -inf.
TensorOr MaxPool(const TensorOr& x, const PoolOptions& options);
TensorOr AveragePool(const TensorOr& x, const PoolOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_OPS_WINDOWS_H_
