// For tests of the attention operator: operands in any layouts, what comes out of them, forward and
// gradients, and one rank's results to compare with.
#ifndef DTENSOR_TESTING_ATTENTION_CASES_H_
#define DTENSOR_TESTING_ATTENTION_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor::attention_testing {

struct Shapes {
  int64_t batch = 2, s = 12, t = 12, heads = 8, kv_heads = 4, head_dim = 4;
  Dims q() const { return {batch, s, heads, head_dim}; }
  Dims kv() const { return {batch, t, kv_heads, head_dim}; }
};

struct Case {
  std::string mesh, q, kv;  // layouts
  AttentionOptions options;
  Shapes shapes;
  DType dtype = DType::kF64;
  std::string v = "";  // its layout, if it is not k's
  // AttentionOptions::key_lengths and its layout; none: all keys are seen.
  std::vector<int64_t> key_lengths = {};
  std::string lengths = "[]";
};
std::string Describe(const Case& c);

Doubles Values(const Dims& shape, int seed);  // in [-1, 1)

// Leaves that want gradients.
struct Operands {
  DistributedTensor q, k, v;
};
absl::StatusOr<Operands> MakeOperands(Context& context, const Case& c);

// Forward, and backward from a weighted sum of o. Returns o and lse.
absl::StatusOr<AttentionResults> RunCase(Context& context, const Case& c, const Operands& in);

int RanksOf(const Case& c);

// Global values, of any rank: they are alike. Adds to `traffic` what all ranks count. Errors:
// RunCase's.
absl::StatusOr<AttentionDoubles> TryOn(const Case& c, TrafficTable* traffic = nullptr);
// The same; an error fails the test.
AttentionDoubles RunOn(const Case& c, TrafficTable* traffic = nullptr);
AttentionDoubles OneRank(Case c);  // in f64

// Each tensor's difference in norm is at most `tolerance` times the norm of `want`, or, if that is
// less, of as many numbers of this size.
void ExpectSame(const AttentionDoubles& got, const AttentionDoubles& want, double tolerance,
                const std::string& what, double least = 0);

// A run on a device without memory counts what each rank counts in a run with data. Fails the test
// on any error.
void ExpectPredicted(const Case& c);

struct Placed {
  const char *mesh, *q, *kv;
};
inline constexpr Placed kPlaced[] = {
    {"cp=2", "[] [cp] [] []", "[] [cp] [] []"},
    {"cp=4", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []"},
    {"cp=3", "[] [cp] [] []", "[] [cp:zigzag] [] []"},  // unlike orders
    {"cp=2,tp=2", "[] [cp:zigzag] [tp] []", "[] [cp:zigzag] [tp] []"},
    {"tp=2,cp=2", "[] [cp:zigzag] [tp] []", "[] [cp:zigzag] [tp] []"},
    {"dp=2,cp=2", "[dp] [_ x 2(cp)] [] []", "[dp] [_ x 2(cp)] [] []"},  // striped
    {"u=2,r=2", "[] [u:zigzag,r:zigzag] [] []", "[] [u:zigzag,r:zigzag] [] []"},
    {"u=2,r=2", "[] [u,r] [] []", "[] [r,u] [] []"},
    {"cp=3", "[] [cp] [] []", "[] [] [] []"},              // keys whole
    {"cp=3", "[] [] [] []", "[] [cp:zigzag] [] []"},       // queries whole: merged
    {"a=2,b=2", "[] [a] [] []", "[] [b] [] []"},           // both
    {"cp=2,tp=2", "[] [cp,tp] [] []", "[] [cp] [tp] []"},  // something has to move
    {"cp=2,tp=4", "[] [cp] [tp] []", "[] [cp] [] []"},     // heads, too
    {"dp=2,cp=2", "[] [cp] [] []", "[dp] [cp] [] []"},     // batches
};

}  // namespace dtensor::attention_testing

#endif  // DTENSOR_TESTING_ATTENTION_CASES_H_
