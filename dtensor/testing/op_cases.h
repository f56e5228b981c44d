// Every operator on small shapes, for tests that walk over all of them: odd sizes, sizes of 1,
// fewer elements than ranks.
#ifndef DTENSOR_TESTING_OP_CASES_H_
#define DTENSOR_TESTING_OP_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

struct OpCase {
  struct Operand {
    Dims shape;
    int64_t ids = 0;        // > 0: i64 numbers in [0, ids), which have no gradient
    bool flags = false;     // bools, which have no gradient
    bool positive = false;  // floats, at least 1/4
    bool is_float() const { return ids == 0 && !flags; }
    DType type(DType floats) const;  // floats, i64 or bool
  };
  const OpDef* op;
  Attrs attrs;
  std::vector<Operand> operands;
  // Whole numbers in, whole numbers out, in the gradients too: every order of summation gives the
  // same bits.
  bool exact = false;
  // Bit r: gradients flow into result r. The others are kept for backward only.
  uint32_t used_results = 1;
  CallValues values;

  std::string ToString() const;  // "Linear([3, 5], [4, 5])"
};

std::vector<OpCase> AllOpCases();

// A number that depends on its arguments alone: every rank makes the same.
uint64_t TestHash(uint64_t a, uint64_t b, uint64_t c);
double SmallInteger(uint64_t hash);  // -3 to 3

// The global row-major values of operand i. Small whole numbers if the case is exact.
std::vector<double> OperandValues(const OpCase& c, int i, uint64_t seed);
// What the loss of Evaluate multiplies each element of result r with.
std::vector<double> LossWeights(const OpCase& c, int r, int64_t size, uint64_t seed);

// A tensor of these values. In a Partial layout each rank gets a term of its own; only together do
// they give the values. A rank that is not on the layout's mesh gets a tensor without elements.
TensorOr Place(Context& context, const Layout& layout, absl::Span<const int64_t> shape, DType dtype,
               absl::Span<const double> values, uint64_t seed);
// The values, whatever the type; none on a rank that is not on the tensor's mesh. Collective.
absl::StatusOr<std::vector<double>> GlobalValues(const DistributedTensor& tensor);

// What an operator gave: values are global and row-major. A rank that is not on the operands' mesh
// has the layouts alone.
struct OpOutcome {
  std::vector<std::vector<double>> results, gradients;  // no gradient: empty
  std::vector<Layout> result_layouts, gradient_layouts;
};

// The operands of `c` in these layouts; those that may have gradients want them if `wanted`.
absl::StatusOr<std::vector<DistributedTensor>> MakeOperands(Context& context, const OpCase& c,
                                                            DType dtype,
                                                            absl::Span<const Layout> layouts,
                                                            uint64_t seed, bool wanted);
// Applies the operator; then, if asked to, Backward from the sum over results of values times
// LossWeights. kPartial: the weights are Partial wherever the result is replicated, so that its
// gradient is so too. In two parts: by BackwardForInputs.
enum class Gradients { kNone, kWhole, kPartial };
absl::StatusOr<OpOutcome> Evaluate(Context& context, const OpCase& c,
                                   absl::Span<const DistributedTensor> operands, uint64_t seed,
                                   Gradients gradients, bool in_two_parts = false);
// On one rank. The reference for every mesh.
absl::StatusOr<OpOutcome> EvaluateDense(const OpCase& c, DType dtype, uint64_t seed);

}  // namespace dtensor

#endif  // DTENSOR_TESTING_OP_CASES_H_
