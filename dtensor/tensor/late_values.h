// LateValues: a tensor whose memory is allocated, and whose values are made later. Two kinds are
// made when they are first used. The first user decides with what the work can overlap
// (docs/overlap.md):
//
//   LateGather    an all-gather for a module's edge or an operator's operand. If a matrix product
//                 reads it, the product computes rows that are there while others arrive; any other
//                 user waits for all of it.
//   LateProduct   a matrix product with a Partial result, or the gradient of a product's operand.
//                 If it is reduce-scattered, rows that are computed are sent while others are still
//                 being computed; any other user has all of it computed at once.
//
// They exist only if the Context overlaps (OverlapOptions). Code that reads a tensor calls Settle()
// first, which makes their values (tensor_impl.h). A LateGather must be made at the same place of
// the program on all ranks, as the result of Redistribute() with `async` must be used.
//
//   LateSend      this rank's part in a redistribution from which it receives nothing. No use makes
//                 it, only Context::FinishLateSends(), or a write to its source (late_send.h).
//
// The tensors that LateValues will read are not overwritten before they are made: a program's write
// makes them first (Context::AddLateRead); those of Backward do not outlive it, and it writes to
// nothing that they read.
#ifndef DTENSOR_TENSOR_LATE_VALUES_H_
#define DTENSOR_TENSOR_LATE_VALUES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/redistribution/chunked_move.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

class LateGather;
class LateProduct;

class LateValues {
 public:
  virtual ~LateValues() = default;
  LateValues(const LateValues&) = delete;
  LateValues& operator=(const LateValues&) = delete;

  bool made() const { return made_; }
  const Tensor& values() const { return values_; }  // the memory, made or not
  // Makes the values at the first call, and releases what they are made from. Errors: failures;
  // each call returns the same.
  absl::Status Make();

  virtual LateGather* gather() { return nullptr; }
  virtual LateProduct* product() { return nullptr; }

 protected:
  LateValues(Context& context, Tensor values)
      : context_(context), values_(std::move(values)), scope_(context.scope()) {}
  virtual absl::Status MakeAll() = 0;
  virtual void Forget() = 0;  // releases what the values are made from
  absl::Status Made(absl::Status status) {
    made_ = true;
    Forget();
    return status_ = std::move(status);
  }

  Context& context_;
  const Tensor values_;
  const void* const scope_;  // the scope to which the work is attributed (work_scope.h)

 private:
  bool made_ = false;
  absl::Status status_;
};
using LateValuesPtr = std::shared_ptr<LateValues>;

// Functions that compute rows of a product, or all of it. Before anything is launched, `rows` is
// called for all rows with `only_asks`. If it returns kUnimplemented, `all` is called instead; the
// communication is the same either way.
struct ProductRows {
  absl::FunctionRef<absl::Status(const RowRange& rows, bool only_asks)> rows;
  absl::FunctionRef<absl::Status()> all;
};

class LateGather final : public LateValues {
 public:
  // An all-gather of `source`. Errors: failures.
  static absl::StatusOr<std::shared_ptr<LateGather>> Create(
      Context& context, std::shared_ptr<const RankChunks> chunks, const Tensor& source,
      const ExchangeCaller& caller);
  LateGather* gather() override { return this; }

  // The dimension whose indices are the rows.
  int dim() const { return chunks_->schedule().dim(); }
  // Gathers the values, and meanwhile computes a product that reads them. Requires: !made().
  absl::Status MakeBeside(const ProductRows& product);

 private:
  LateGather(Context& context, std::shared_ptr<const RankChunks> chunks, const Tensor& source,
             Tensor values, const ExchangeCaller& caller);
  absl::Status MakeAll() override;
  void Forget() override;
  absl::Status Move(MakeRows make);

  const std::shared_ptr<const RankChunks> chunks_;
  Tensor source_;
  const std::string op_;
  ExchangeCaller caller_;  // its `op` refers to op_
};

class LateProduct : public LateValues {
 public:
  LateProduct* product() override { return this; }
  // Whether it can be computed by rows of this dimension: the same on all ranks.
  virtual bool HasRows(int dim) const = 0;
  // As RowFunctions. Requires: HasRows(dim), !made().
  virtual absl::Status MakeRows(int dim, const RowRange& rows, bool only_asks) = 0;

  // Computes the values and reduce-scatters them, computing rows while others are in flight.
  // Returns the result of the plan. Requires: !made(), HasRows(the schedule's dim). Errors:
  // failures.
  absl::StatusOr<Tensor> MakeAndScatter(const RankChunks& chunks, const ExchangeCaller& caller);

 protected:
  using LateValues::LateValues;
};

// Reduce-scatters values that are already made, in the same exchanges as MakeAndScatter (other
// ranks may call that). Errors: failures.
absl::StatusOr<Tensor> Scatter(Context& context, const RankChunks& chunks, const Tensor& made,
                               const ExchangeCaller& caller);

// Result 0 of a call of decision->op, which has RowFunctions. Keeps what it refers to.
std::shared_ptr<LateProduct> LateResult(Context& context, DecisionPtr decision,
                                        std::vector<Tensor> operands, Tensor result,
                                        const CallValues& values, uint64_t lineage);
// The gradient of operand 0, in the layout of decision->gradients[0].
std::shared_ptr<LateProduct> LateGradient(Context& context, DecisionPtr decision,
                                          std::vector<Tensor> operands, Tensor result_gradient,
                                          Tensor gradient, const CallValues& values,
                                          uint64_t lineage);
// into = sum + more, where `more` is still to be made. `into` may be `sum`.
std::shared_ptr<LateProduct> LateSum(Context& context, Tensor sum, Tensor into,
                                     std::shared_ptr<LateProduct> more);

// Whether a call of the decision may make its result (or gradient 0) late: the Context overlaps,
// the operator has RowFunctions, and the tensor is Partial(sum) with at least
// OverlapOptions::min_bytes. The same on all ranks.
bool MakesResultLate(Context& context, const Decision& decision);
bool MakesGradientLate(Context& context, const Decision& decision);
// Whether a call of the decision can read rows of operand 0, along `dim`, while others arrive.
bool ReadsRows(const Decision& decision, int dim);

// The plan from one spec to the other in chunks, if it is an all-gather (or a reduce-scatter) that
// can overlap; else null. Errors: those of Context::Plan.
absl::StatusOr<std::shared_ptr<const RankChunks>> GatherInChunks(Context& context, const Spec* from,
                                                                 const Spec* to);
absl::StatusOr<std::shared_ptr<const RankChunks>> ScatterInChunks(Context& context,
                                                                  const Spec* from, const Spec* to);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LATE_VALUES_H_
