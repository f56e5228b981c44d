#include "dtensor/tensor/late_values.h"

#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/noted_plan.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tensor_impl.h"
#include "dtensor/tensor/work_scope.h"

namespace dtensor {
namespace {

// Whether every range of rows that this rank computes by `chunks` can be computed on its own (no
// kUnimplemented). Errors: those of `product.rows`, except kUnimplemented.
absl::StatusOr<bool> AreApart(const RankChunks& chunks, const ProductRows& product) {
  for (int step = 0; step < chunks.schedule().steps(); ++step) {
    for (const RowRange& rows : chunks.rows(step)) {
      const absl::Status status = product.rows(rows, /*only_asks=*/true);
      if (absl::IsUnimplemented(status)) return false;
      DT_RETURN_IF_ERROR(status);
    }
  }
  return true;
}

absl::Status MakeEach(absl::Span<const RowRange> all, const ProductRows& product) {
  for (const RowRange& rows : all) {
    DT_RETURN_IF_ERROR(product.rows(rows, /*only_asks=*/false));
  }
  return absl::OkStatus();
}

bool IsSumOverRanks(const Spec& spec) {
  return spec.layout.is_partial() && spec.layout.partial_op() == ReduceOp::kSum;
}

bool IsLarge(Context& context, const Spec& spec) {
  const OverlapOptions& overlap = context.overlap();
  return overlap.chunks > 0 && NumElements(spec.shape) * SizeOf(spec.dtype) >= overlap.min_bytes;
}

class Result final : public LateProduct {
 public:
  Result(Context& context, DecisionPtr decision, std::vector<Tensor> operands, Tensor result,
         const CallValues& values, uint64_t lineage)
      : LateProduct(context, std::move(result)),
        decision_(std::move(decision)),
        operands_(std::move(operands)),
        call_values_(values),
        lineage_(lineage) {
    for (const Tensor& operand : operands_) refs_.push_back(&operand);
  }

  bool HasRows(int dim) const override { return decision_->op->rows.has(*decision_, dim); }
  absl::Status MakeRows(int dim, const RowRange& rows, bool only_asks) override {
    Tensor result = values_;
    return decision_->op->rows.forward(Call(result), dim, rows, only_asks);
  }

 private:
  absl::Status MakeAll() override {
    Tensor result = values_;
    absl::Status status = decision_->functions.forward(Call(result));
    return status.ok() ? status : FailIn(context_, *decision_->op, status);
  }
  void Forget() override {
    refs_.clear();
    operands_.clear();
  }
  OpCall Call(Tensor& result) {
    return {{context_, *decision_, call_values_, lineage_},
            TensorRefs(refs_),
            absl::MakeSpan(&result, 1)};
  }

  const DecisionPtr decision_;
  std::vector<Tensor> operands_;
  std::vector<const Tensor*> refs_;
  const CallValues call_values_;
  const uint64_t lineage_;
};

class Gradient final : public LateProduct {
 public:
  Gradient(Context& context, DecisionPtr decision, std::vector<Tensor> operands,
           Tensor result_gradient, Tensor gradient, const CallValues& values, uint64_t lineage)
      : LateProduct(context, std::move(gradient)),
        decision_(std::move(decision)),
        operands_(std::move(operands)),
        result_gradient_(std::move(result_gradient)),
        call_values_(values),
        lineage_(lineage) {}

  bool HasRows(int dim) const override { return decision_->op->rows.has(*decision_, dim); }
  absl::Status MakeRows(int dim, const RowRange& rows, bool only_asks) override {
    return Run([&](const GradCall& call) {
      return decision_->op->rows.backward(call, dim, rows, only_asks);
    });
  }

 private:
  absl::Status MakeAll() override {
    absl::Status status = Run(decision_->functions.backward);
    return status.ok() ? status : FailIn(context_, *decision_->op, status);
  }
  void Forget() override {
    operands_.clear();
    result_gradient_ = Tensor();
  }
  absl::Status Run(absl::FunctionRef<absl::Status(const GradCall&)> backward) {
    absl::InlinedVector<Tensor, 3> gradients(decision_->gradients.size());
    gradients[0] = values_;
    Device& device = context_.device();
    const GradCall call{{context_, *decision_, call_values_, lineage_},
                        SavedTensors(device, operands_, decision_->operands),
                        SavedTensors(device, {}, decision_->results),
                        absl::MakeConstSpan(&result_gradient_, 1),
                        OperandGradients(absl::MakeSpan(gradients)),
                        /*wanted=*/1};
    return backward(call);
  }

  const DecisionPtr decision_;
  std::vector<Tensor> operands_;
  Tensor result_gradient_;
  const CallValues call_values_;
  const uint64_t lineage_;
};

class Sum final : public LateProduct {
 public:
  Sum(Context& context, Tensor sum, Tensor into, std::shared_ptr<LateProduct> more)
      : LateProduct(context, std::move(into)), sum_(std::move(sum)), more_(std::move(more)) {}

  bool HasRows(int dim) const override { return more_->HasRows(dim); }
  absl::Status MakeRows(int dim, const RowRange& rows, bool only_asks) override {
    if (!sum_.is_contiguous()) return absl::UnimplementedError("a sum's term is not row-major");
    DT_RETURN_IF_ERROR(more_->MakeRows(dim, rows, only_asks));
    const absl::Span<const int64_t> shape = values_.shape();
    const int64_t inner = NumElements(shape.subspan(dim + 1)),
                  outer = NumElements(shape.first(dim));
    for (int64_t i = 0; i < outer && !only_asks; ++i) {
      const auto part = [&](const Tensor& x) {
        return x.View({rows.size() * inner}, {1}, (i * shape[dim] + rows.begin) * inner);
      };
      DT_RETURN_IF_ERROR(Add(part(sum_), part(more_->values()), part(values_)));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status MakeAll() override {
    DT_RETURN_IF_ERROR(more_->Make());
    return Add(sum_, more_->values(), values_);
  }
  void Forget() override {
    sum_ = Tensor();
    more_ = nullptr;
  }
  absl::Status Add(const Tensor& a, const Tensor& b, const Tensor& sum) {
    return kernels::Binary(context_.device(), kernels::BinaryOp::kAdd, a, b, sum);
  }

  Tensor sum_;
  std::shared_ptr<LateProduct> more_;
};

}  // namespace

absl::Status LateValues::Make() {
  if (made_) return status_;
  const WorkScope scope(context_, scope_);
  return Made(MakeAll());
}

LateGather::LateGather(Context& context, std::shared_ptr<const RankChunks> chunks,
                       const Tensor& source, Tensor values, const ExchangeCaller& caller)
    : LateValues(context, std::move(values)),
      chunks_(std::move(chunks)),
      source_(source),
      op_(caller.op),
      caller_(NotedCaller(context, chunks_->plan(), caller)) {
  caller_.op = op_;
}

absl::StatusOr<std::shared_ptr<LateGather>> LateGather::Create(
    Context& context, std::shared_ptr<const RankChunks> chunks, const Tensor& source,
    const ExchangeCaller& caller) {
  // `source` is read later. If it has borrowed its memory, the lender's next write would move it.
  if (absl::Status status = source.EndBorrow(); !status.ok()) {
    return context.communicator().Fail(status);
  }
  auto values = Tensor::Empty(context.device(), source.dtype(), chunks->plan().local_to());
  if (!values.ok()) return context.communicator().Fail(values.status());
  return std::shared_ptr<LateGather>(
      new LateGather(context, std::move(chunks), source, *std::move(values), caller));
}

// The work in `make` is attributed to the scope that reads the values.
absl::Status LateGather::Move(MakeRows make) {
  const void* const reader = context_.scope();
  const WorkScope scope(context_, scope_);
  return MoveInChunks(*chunks_, source_, values_, context_.communicator(), caller_,
                      [&](absl::Span<const RowRange> rows) {
                        const WorkScope of_reader(context_, reader);
                        return make(rows);
                      });
}

absl::Status LateGather::MakeAll() {
  return Move([](absl::Span<const RowRange>) { return absl::OkStatus(); });
}

void LateGather::Forget() { source_ = Tensor(); }

absl::Status LateGather::MakeBeside(const ProductRows& product) {
  absl::StatusOr<bool> apart = AreApart(*chunks_, product);
  if (!apart.ok()) return Made(context_.communicator().Fail(apart.status()));
  // If this rank has no values, there are no rows to read. The product has a result nevertheless:
  // zeros, if this rank has nothing of the dimension that is summed.
  if (values_.numel() == 0) *apart = false;
  DT_RETURN_IF_ERROR(Made(Move([&](absl::Span<const RowRange> rows) {
    return *apart ? MakeEach(rows, product) : absl::OkStatus();
  })));
  if (*apart) return absl::OkStatus();
  absl::Status status = product.all();
  return status.ok() ? status : context_.communicator().Fail(status);
}

namespace {

absl::StatusOr<Tensor> ScatterBeside(Context& context, const RankChunks& chunks,
                                     const Tensor& source, const ExchangeCaller& caller,
                                     MakeRows make) {
  Communicator& communicator = context.communicator();
  auto result = Tensor::Empty(context.device(), source.dtype(), chunks.plan().local_to());
  if (!result.ok()) return communicator.Fail(result.status());
  DT_RETURN_IF_ERROR(MoveInChunks(chunks, source, *result, communicator,
                                  NotedCaller(context, chunks.plan(), caller), make));
  return result;
}

}  // namespace

absl::StatusOr<Tensor> Scatter(Context& context, const RankChunks& chunks, const Tensor& made,
                               const ExchangeCaller& caller) {
  return ScatterBeside(context, chunks, made, caller,
                       [](absl::Span<const RowRange>) { return absl::OkStatus(); });
}

absl::StatusOr<Tensor> LateProduct::MakeAndScatter(const RankChunks& chunks,
                                                   const ExchangeCaller& caller) {
  const int dim = chunks.schedule().dim();
  const auto make = [&](const RowRange& rows, bool only_asks) {
    const WorkScope scope(context_, scope_);
    return MakeRows(dim, rows, only_asks);
  };
  const auto all = [&] { return Make(); };
  const ProductRows product{make, all};
  absl::StatusOr<bool> apart = AreApart(chunks, product);
  if (!apart.ok()) return context_.communicator().Fail(apart.status());
  if (!*apart) {
    DT_RETURN_IF_ERROR(product.all());
    return Scatter(context_, chunks, values_, caller);
  }
  auto result =
      ScatterBeside(context_, chunks, values_, caller,
                    [&](absl::Span<const RowRange> rows) { return MakeEach(rows, product); });
  Made(result.status()).IgnoreError();
  return result;
}

std::shared_ptr<LateProduct> LateResult(Context& context, DecisionPtr decision,
                                        std::vector<Tensor> operands, Tensor result,
                                        const CallValues& values, uint64_t lineage) {
  auto late = std::make_shared<Result>(context, std::move(decision), operands, std::move(result),
                                       values, lineage);
  for (const Tensor& operand : operands) context.AddLateRead(operand, late);
  return late;
}

std::shared_ptr<LateProduct> LateGradient(Context& context, DecisionPtr decision,
                                          std::vector<Tensor> operands, Tensor result_gradient,
                                          Tensor gradient, const CallValues& values,
                                          uint64_t lineage) {
  return std::make_shared<Gradient>(context, std::move(decision), std::move(operands),
                                    std::move(result_gradient), std::move(gradient), values,
                                    lineage);
}

std::shared_ptr<LateProduct> LateSum(Context& context, Tensor sum, Tensor into,
                                     std::shared_ptr<LateProduct> more) {
  return std::make_shared<Sum>(context, std::move(sum), std::move(into), std::move(more));
}

bool MakesResultLate(Context& context, const Decision& decision) {
  return decision.op->rows.has != nullptr && decision.op->saved_results == 0 &&
         decision.results.size() == 1 && IsSumOverRanks(*decision.results[0]) &&
         IsLarge(context, *decision.results[0]);
}

bool MakesGradientLate(Context& context, const Decision& decision) {
  return decision.op->rows.has != nullptr && decision.op->saved_results == 0 &&
         decision.results.size() == 1 && IsSumOverRanks(*decision.gradients[0]) &&
         IsLarge(context, *decision.gradients[0]);
}

bool ReadsRows(const Decision& decision, int dim) {
  return decision.op->rows.has != nullptr && decision.op->rows.has(decision, dim);
}

namespace {

absl::StatusOr<std::shared_ptr<const RankChunks>> InChunks(Context& context, const Spec* from,
                                                           const Spec* to, bool gathers) {
  std::shared_ptr<const RankChunks> chunks;
  if (context.overlap().chunks < 1 || from == to) return chunks;
  DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(from, to));
  chunks = context.ChunksOf(plan);
  if (chunks != nullptr && chunks->schedule().gathers() != gathers) chunks = nullptr;
  return chunks;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RankChunks>> GatherInChunks(Context& context, const Spec* from,
                                                                 const Spec* to) {
  return InChunks(context, from, to, /*gathers=*/true);
}

absl::StatusOr<std::shared_ptr<const RankChunks>> ScatterInChunks(Context& context,
                                                                  const Spec* from,
                                                                  const Spec* to) {
  return InChunks(context, from, to, /*gathers=*/false);
}

}  // namespace dtensor
