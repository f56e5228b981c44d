// LateValues: a tensor whose memory is there, and whose values are made when they are asked for. So
// what is asked for next decides what they are made beside (docs/overlap.md):
//
//   LateGather    an all-gather that an edge, or an operator's operand, wants. A product that reads
//                 it is made row by row, while the rest arrives; anybody else waits for all of it.
//   LateProduct   a product that is Partial, or the gradient of one's operand. A reduce-scatter of
//                 it moves row by row, while the rest is made; anybody else has it made at once.
//
// There are some only where the Context overlaps (OverlapOptions). Everything of a tensor that is
// read goes through Settle(), which makes it (tensor_impl.h); what it reads itself is not written
// to before (Context::AddLateRead). A LateGather is made where all ranks are at one place of the
// program, as for Redistribute() with `async`.
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
  // Makes them, once. Errors: failures; each time the same. What they were made of is let go.
  absl::Status Make();

  virtual LateGather* gather() { return nullptr; }
  virtual LateProduct* product() { return nullptr; }

 protected:
  LateValues(Context& context, Tensor values)
      : context_(context), values_(std::move(values)), scope_(context.scope()) {}
  virtual absl::Status MakeAll() = 0;
  virtual void Forget() = 0;  // what they are made of
  absl::Status Made(absl::Status status) {
    made_ = true;
    Forget();
    return status_ = std::move(status);
  }

  Context& context_;
  const Tensor values_;
  const void* const scope_;  // in which they were asked for: whose work they are (work_scope.h)

 private:
  bool made_ = false;
  absl::Status status_;
};
using LateValuesPtr = std::shared_ptr<LateValues>;

// How rows of a product are made, or all of it. `rows` is told `only_asks` for all rows before
// anything is launched: where it says kUnimplemented, `all` is called instead, and what moves is
// the same.
struct ProductRows {
  absl::FunctionRef<absl::Status(const RowRange& rows, bool only_asks)> rows;
  absl::FunctionRef<absl::Status()> all;
};

class LateGather final : public LateValues {
 public:
  // Of `source`. Errors: failures.
  static absl::StatusOr<std::shared_ptr<LateGather>> Create(
      Context& context, std::shared_ptr<const RankChunks> chunks, const Tensor& source,
      const ExchangeCaller& caller);
  LateGather* gather() override { return this; }

  // Of which the rows are indices.
  int dim() const { return chunks_->schedule().dim(); }
  // Makes the values, and beside them a product that reads them. Requires: !made().
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
  ExchangeCaller caller_;  // whose op is the above
};

class LateProduct : public LateValues {
 public:
  LateProduct* product() override { return this; }
  // Whether its rows can be indices of this dimension: alike on all ranks.
  virtual bool HasRows(int dim) const = 0;
  // As RowFunctions. Requires: HasRows(dim), !made().
  virtual absl::Status MakeRows(int dim, const RowRange& rows, bool only_asks) = 0;

  // Makes the values, and moves them, in the two halves of each exchange. The result of the plan.
  // Requires: !made(), HasRows(the schedule's dim). Errors: failures.
  absl::StatusOr<Tensor> MakeAndScatter(const RankChunks& chunks, const ExchangeCaller& caller);

 protected:
  using LateValues::LateValues;
};

// What is made by now, moved in the same exchanges. Errors: failures.
absl::StatusOr<Tensor> Scatter(Context& context, const RankChunks& chunks, const Tensor& made,
                               const ExchangeCaller& caller);

// Result 0 of a call of decision->op, which has rows. Keeps what it refers to.
std::shared_ptr<LateProduct> LateResult(Context& context, DecisionPtr decision,
                                        std::vector<Tensor> operands, Tensor result,
                                        const CallValues& values, uint64_t lineage);
// The gradient of operand 0, of the layout of decision->gradients[0].
std::shared_ptr<LateProduct> LateGradient(Context& context, DecisionPtr decision,
                                          std::vector<Tensor> operands, Tensor result_gradient,
                                          Tensor gradient, const CallValues& values,
                                          uint64_t lineage);
// into = sum + more: the term that comes last. `into` may be `sum`.
std::shared_ptr<LateProduct> LateSum(Context& context, Tensor sum, Tensor into,
                                     std::shared_ptr<LateProduct> more);

// Whether a call of the decision may make its result late: it overlaps, and the result is a sum
// over ranks of enough bytes. Alike on all ranks.
bool MakesResultLate(Context& context, const Decision& decision);
bool MakesGradientLate(Context& context, const Decision& decision);
// Whether rows of operand 0 can be read while others arrive.
bool ReadsRows(const Decision& decision, int dim);

// The plan from one spec to the other in chunks, if it is an all-gather, or a reduce-scatter, that
// overlaps; else null. Errors: those of Context::Plan.
absl::StatusOr<std::shared_ptr<const RankChunks>> GatherInChunks(Context& context, const Spec* from,
                                                                 const Spec* to);
absl::StatusOr<std::shared_ptr<const RankChunks>> ScatterInChunks(Context& context,
                                                                  const Spec* from, const Spec* to);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LATE_VALUES_H_
