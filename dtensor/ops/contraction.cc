// A contraction of two tensors is a batch of matrix products: letters that both operands and the
// result have are its batch, those that the result lacks are summed, and the others are rows and
// columns. Tensors are turned and joined by strides, and copied only if strides cannot say it.
#include "dtensor/ops/contraction.h"

#include <iterator>

#include "absl/algorithm/container.h"
#include "dtensor/ops/batched_product.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {
namespace {

bool Has(const TensorLetters& letters, int letter) {
  return absl::c_linear_search(letters, letter);
}

// The letters for which `keeps` holds.
template <typename Keeps>
TensorLetters Those(const TensorLetters& letters, Keeps keeps) {
  TensorLetters kept;
  absl::c_copy_if(letters, std::back_inserter(kept), keeps);
  return kept;
}

TensorLetters Joined(TensorLetters a, const TensorLetters& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

int64_t ExtentOf(const LetteredTensor& x, int letter) {
  return x.tensor.size(static_cast<int>(absl::c_find(x.letters, letter) - x.letters.begin()));
}

int64_t ExtentOf(const LetteredTensor& x, const TensorLetters& letters) {
  int64_t size = 1;
  for (const int letter : letters) size *= ExtentOf(x, letter);
  return size;
}

// x as a view with the dimensions `letters`, which have the sizes that they have in `like`. Along
// those that x lacks it has stride 0. Requires: x has no other letters.
Tensor Along(const LetteredTensor& x, const TensorLetters& letters, const LetteredTensor& like) {
  Dims shape, strides;
  for (const int letter : letters) {
    const auto at = absl::c_find(x.letters, letter);
    shape.push_back(ExtentOf(like, letter));
    strides.push_back(at == x.letters.end() ? 0 : x.tensor.strides()[at - x.letters.begin()]);
  }
  return x.tensor.View(shape, strides, 0);
}

// x summed over the letters that neither of the others has.
absl::StatusOr<LetteredTensor> Summed(Device& device, const LetteredTensor& x,
                                      const TensorLetters& kept, const TensorLetters& also_kept) {
  LetteredTensor sum;
  Dims shape;
  absl::InlinedVector<int, 4> dims;
  for (int d = 0; d < x.tensor.ndim(); ++d) {
    if (!Has(kept, x.letters[d]) && !Has(also_kept, x.letters[d])) {
      dims.push_back(d);
      continue;
    }
    sum.letters.push_back(x.letters[d]);
    shape.push_back(x.tensor.size(d));
  }
  if (dims.empty()) return x;
  DT_ASSIGN_OR_RETURN(sum.tensor, Tensor::Empty(device, x.tensor.dtype(), shape));
  DT_RETURN_IF_ERROR(kernels::Reduce(device, ReduceOp::kSum, x.tensor, dims, sum.tensor));
  return sum;
}

// The letters of a batch of products, in the order in which the tensors lie.
struct ProductLetters {
  TensorLetters batch, rows, columns;
};

// A tensor with a dimension for each letter of a product, and the shape in which the rows are one
// dimension, and the columns.
struct TurnedTensor {
  Tensor turned;
  Dims shape;
};
TurnedTensor Turned(const LetteredTensor& x, const ProductLetters& letters) {
  TurnedTensor out;
  out.turned = Along(x, Joined(Joined(letters.batch, letters.rows), letters.columns), x);
  for (const int letter : letters.batch) out.shape.push_back(ExtentOf(x, letter));
  out.shape.push_back(ExtentOf(x, letters.rows));
  out.shape.push_back(ExtentOf(x, letters.columns));
  return out;
}

// `out` as matrices into which a product can be written; undefined if strides cannot say it.
Tensor WritableMatrices(const LetteredTensor& out, const ProductLetters& letters) {
  const TurnedTensor matrices = Turned(out, letters);
  const absl::StatusOr<Tensor> view = matrices.turned.Reshape(matrices.shape);
  if (!view.ok()) return Tensor();
  const bool has_columns = view->shape().back() > 1;
  return has_columns && view->strides().back() != 1 ? Tensor() : *view;
}

// out = a b, into matrices that WritableMatrices gave.
absl::Status Multiply(Device& device, const LetteredTensor& a, const LetteredTensor& b,
                      const ProductLetters& out_letters, const Tensor& out) {
  const auto is_summed = [&](int letter) {
    return Has(a.letters, letter) && Has(b.letters, letter) && !Has(out_letters.batch, letter);
  };
  // In the order of the larger operand, which then needs no copy.
  const LetteredTensor& larger = a.tensor.numel() >= b.tensor.numel() ? a : b;
  const TensorLetters summed = Those(larger.letters, is_summed);
  const TurnedTensor left = Turned(a, {out_letters.batch, out_letters.rows, summed});
  const TurnedTensor right = Turned(b, {out_letters.batch, summed, out_letters.columns});
  DT_ASSIGN_OR_RETURN(const Tensor rows, ReshapeLocal(device, left.turned, left.shape));
  DT_ASSIGN_OR_RETURN(const Tensor columns, ReshapeLocal(device, right.turned, right.shape));
  return BatchedProduct(device, rows, columns, out);
}

// The contraction of a and b, if they share a letter that is summed, and `out` has no letter of its
// own.
absl::Status Product(Device& device, const LetteredTensor& a, const LetteredTensor& b,
                     const LetteredTensor& out) {
  const auto in_both = [&](int letter) { return Has(a.letters, letter) && Has(b.letters, letter); };
  const auto in_a = [&](int letter) { return !Has(b.letters, letter); };
  const auto in_b = [&](int letter) { return !Has(a.letters, letter); };
  const ProductLetters letters = {Those(out.letters, in_both), Those(out.letters, in_a),
                                  Those(out.letters, in_b)};
  if (const Tensor direct = WritableMatrices(out, letters); direct.defined()) {
    return Multiply(device, a, b, letters, direct);
  }
  const ProductLetters turned = {letters.batch, letters.columns, letters.rows};
  if (const Tensor direct = WritableMatrices(out, turned); direct.defined()) {
    return Multiply(device, b, a, turned, direct);
  }
  LetteredTensor made{{}, Joined(Joined(letters.batch, letters.rows), letters.columns)};
  Dims shape;
  for (const int letter : made.letters) shape.push_back(ExtentOf(out, letter));
  DT_ASSIGN_OR_RETURN(made.tensor, Tensor::Empty(device, out.tensor.dtype(), shape));
  DT_RETURN_IF_ERROR(Multiply(device, a, b, letters, WritableMatrices(made, letters)));
  return Contract(device, made, out);
}

}  // namespace

absl::Status Contract(Device& device, const LetteredTensor& x, const LetteredTensor& out) {
  DT_ASSIGN_OR_RETURN(const LetteredTensor sum, Summed(device, x, out.letters, {}));
  return kernels::Copy(device, Along(sum, out.letters, out), out.tensor);
}

absl::Status Contract(Device& device, const LetteredTensor& a, const LetteredTensor& b,
                      const LetteredTensor& out) {
  DT_ASSIGN_OR_RETURN(const LetteredTensor left, Summed(device, a, b.letters, out.letters));
  DT_ASSIGN_OR_RETURN(const LetteredTensor right, Summed(device, b, a.letters, out.letters));
  const auto is_summed = [&](int letter) {
    return Has(right.letters, letter) && !Has(out.letters, letter);
  };
  if (absl::c_none_of(left.letters, is_summed)) {
    return kernels::Binary(device, kernels::BinaryOp::kMul, Along(left, out.letters, out),
                           Along(right, out.letters, out), out.tensor);
  }
  const auto is_made = [&](int letter) {
    return Has(left.letters, letter) || Has(right.letters, letter);
  };
  LetteredTensor made{{}, Those(out.letters, is_made)};
  if (made.letters.size() == out.letters.size()) return Product(device, left, right, out);
  Dims shape;
  for (const int letter : made.letters) shape.push_back(ExtentOf(out, letter));
  DT_ASSIGN_OR_RETURN(made.tensor, Tensor::Empty(device, out.tensor.dtype(), shape));
  DT_RETURN_IF_ERROR(Product(device, left, right, made));
  return Contract(device, made, out);
}

}  // namespace dtensor::internal
