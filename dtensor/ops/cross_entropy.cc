// CrossEntropy in two stages: statistics of each shard of the classes, then their merge. The mean
// of its losses works in the same way, over shards of the tokens.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// The attributes, with the number of classes filled in.
kernels::CrossEntropyTerms TermsOf(const Decision& decision) {
  const auto& attrs = AttrsView(decision.attrs).as<CrossEntropyAttrs>();
  const int64_t all = decision.operands[0]->shape.back();
  return {attrs.classes == 0 ? all : attrs.classes, attrs.ignore, attrs.label_smoothing};
}

absl::Status CheckOptions(Specs operands, const CrossEntropyAttrs& attrs) {
  if (!(attrs.label_smoothing >= 0 && attrs.label_smoothing <= 1)) {
    return InvalidArgument({"CrossEntropy: label_smoothing is ",
                            absl::StrCat(attrs.label_smoothing), " (", SpecsText(operands),
                            "); it is a share of the target: give 0 to 1"});
  }
  const int64_t all = operands[0]->shape.back();
  if (attrs.classes >= 0 && attrs.classes <= all) return absl::OkStatus();
  return InvalidArgument({"CrossEntropy: logits have ", absl::StrCat(all), " columns, not ",
                          absl::StrCat(attrs.classes), " classes (", SpecsText(operands),
                          "); give how many of the columns are classes, or 0 for all"});
}

absl::Status CrossEntropyCheck(Specs operands, AttrsView attrs) {
  const Spec& logits = *operands[0];
  const Spec& targets = *operands[1];
  // The rule alone would allow broadcasting.
  if (logits.ndim() >= 1 && absl::MakeConstSpan(logits.shape).first(logits.ndim() - 1) ==
                                absl::MakeConstSpan(targets.shape)) {
    return CheckOptions(operands, attrs.as<CrossEntropyAttrs>());
  }
  return InvalidArgument({"CrossEntropy: needs one target for each row of logits (",
                          SpecsText(operands), "); targets have the shape of logits without the ",
                          "last dimension"});
}

DType CrossEntropyType(Specs operands, AttrsView, int) { return AccumulatorOf(operands[0]->dtype); }

// One rank's tokens as one list: logits [T, local classes] and targets [T].
struct Rows {
  Tensor logits, targets;
  int64_t tokens = 0;
};
absl::StatusOr<Rows> Flatten(Device& device, const Tensor& logits, const Tensor& targets) {
  Rows rows;
  rows.tokens = targets.numel();
  DT_ASSIGN_OR_RETURN(rows.logits,
                      ReshapeLocal(device, logits, {rows.tokens, logits.shape().back()}));
  DT_ASSIGN_OR_RETURN(rows.targets, ReshapeLocal(device, targets, {rows.tokens}));
  return rows;
}

// The classes among this rank's columns: its first ones. Padding comes last, also within every
// shard.
IndexSet ClassesHere(const RankCall& call, const kernels::CrossEntropyTerms& terms) {
  const int class_dim = call.decision.operands[0]->ndim() - 1;
  const IndexSet columns = call.OperandIndices(0, class_dim);
  return columns.Intersect(IndexSet::Interval(0, terms.num_classes));
}

// Results 1 and 2, for each token of the list.
template <typename Call>
absl::StatusOr<kernels::LogSumExp> LseOf(const Call& call, int64_t tokens) {
  kernels::LogSumExp lse;
  DT_ASSIGN_OR_RETURN(lse.max, call.results[1].Reshape({tokens}));
  DT_ASSIGN_OR_RETURN(lse.log_sum, call.results[2].Reshape({tokens}));
  return lse;
}

// Results: the loss, and in two parts the logarithm of each row's sum of exponentials.
absl::Status CrossEntropyForward(const OpCall& call) {
  Device& device = call.device();
  const kernels::CrossEntropyTerms terms = TermsOf(call.decision);
  DT_ASSIGN_OR_RETURN(const Rows rows, Flatten(device, call.operands[0], call.operands[1]));
  DT_ASSIGN_OR_RETURN(const Tensor stats, Tensor::Empty(device, call.results[0].dtype(),
                                                        {rows.tokens, terms.num_stats()}));
  DT_RETURN_IF_ERROR(kernels::CrossEntropyStats(device, rows.logits, rows.targets,
                                                ClassesHere(call, terms), terms, stats));
  DT_ASSIGN_OR_RETURN(const Tensor all, call.GatherShards("v", stats));
  DT_ASSIGN_OR_RETURN(const Tensor loss, call.results[0].Reshape({rows.tokens}));
  DT_ASSIGN_OR_RETURN(const kernels::LogSumExp lse, LseOf(call, rows.tokens));
  return kernels::CrossEntropyMerge(device, all, rows.targets, terms, lse, loss);
}

absl::Status CrossEntropyBackward(const GradCall& call) {
  if (!call.wants(0)) return absl::OkStatus();
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const Rows rows, Flatten(device, call.operands[0], call.operands[1]));
  DT_ASSIGN_OR_RETURN(const kernels::LogSumExp lse, LseOf(call, rows.tokens));
  DT_ASSIGN_OR_RETURN(const Tensor dloss,
                      ReshapeLocal(device, call.result_gradients[0], {rows.tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor dlogits, call.gradients[0].Reshape(rows.logits.shape()));
  const kernels::CrossEntropyTerms terms = TermsOf(call.decision);
  return kernels::CrossEntropyGrad(device, rows.logits, rows.targets, ClassesHere(call, terms),
                                   terms, lse, dloss, dlogits);
}

const OpDef kCrossEntropyOp = {
    .name = "CrossEntropy",
    .rule = "... v^, ... -> ..., ..., ...",
    .attrs = &kAttrsType<CrossEntropyAttrs>,
    .operand_types = {TypeSet::Floats(), TypeSet::Integers()},
    .check = CrossEntropyCheck,
    .result_dtype = CrossEntropyType,
    .every_device = {CrossEntropyForward, CrossEntropyBackward},
    .saved_operands = 0b11,
    .saved_results = 0b110,
};

// "d0^ d1^, d0 d1 -> ,": from losses and targets to two scalars: the mean, and how many losses it
// is taken of.
absl::StatusOr<RuleText> TargetMeanRule(absl::Span<const Dims> shapes, AttrsView) {
  const int ndim = static_cast<int>(shapes[0].size());
  std::vector<std::string> merged;
  for (int d = 0; d < ndim; ++d) merged.push_back(absl::StrCat(Letter(d), "^"));
  return RuleText{absl::StrCat(absl::StrJoin(merged, " "), ", ", Letters(ndim), " -> ,"), {}};
}

DType TargetMeanType(Specs operands, AttrsView, int result) {
  return result == 0 ? operands[0]->dtype : DType::kF64;
}

absl::Status TargetMeanForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &loss = call.operands[0], &targets = call.operands[1];
  const int64_t tokens = targets.numel();
  DT_ASSIGN_OR_RETURN(const Tensor losses, ReshapeLocal(device, loss, {tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor ids, ReshapeLocal(device, targets, {tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor stats, Tensor::Empty(device, DType::kF64, {2}));
  DT_RETURN_IF_ERROR(
      kernels::TargetMeanStats(device, losses, ids, call.attrs<TargetMeanAttrs>().ignore, stats));
  DT_ASSIGN_OR_RETURN(const Tensor all, call.GatherShards(Letters(loss.ndim()), stats));
  return kernels::TargetMeanMerge(device, all, call.results[0], call.results[1]);
}

absl::Status TargetMeanBackward(const GradCall& call) {
  if (!call.wants(0)) return absl::OkStatus();
  Device& device = call.device();
  const int64_t tokens = call.operands[1].numel();
  DT_ASSIGN_OR_RETURN(const Tensor ids, ReshapeLocal(device, call.operands[1], {tokens}));
  DT_ASSIGN_OR_RETURN(const Tensor dloss, call.gradients[0].Reshape({tokens}));
  return kernels::TargetMeanGrad(device, ids, call.attrs<TargetMeanAttrs>().ignore, call.results[1],
                                 call.result_gradients[0], dloss);
}

const OpDef kTargetMeanOp = {
    .name = "CrossEntropyMean",
    .describe = TargetMeanRule,
    .attrs = &kAttrsType<TargetMeanAttrs>,
    .operand_types = {TypeSet({DType::kF32, DType::kF64}), TypeSet::Integers()},
    .result_dtype = TargetMeanType,
    .every_device = {TargetMeanForward, TargetMeanBackward},
    .saved_operands = 0b10,
    .saved_results = 0b10,
};

}  // namespace

absl::Span<const OpDef* const> CrossEntropyOps() {
  static constexpr const OpDef* kOps[] = {&kCrossEntropyOp, &kTargetMeanOp};
  return kOps;
}

}  // namespace internal

TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets, int64_t ignore) {
  return CrossEntropy(logits, targets, CrossEntropyOptions{.ignore = ignore});
}

TensorOr CrossEntropy(const TensorOr& logits, const TensorOr& targets,
                      const CrossEntropyOptions& options) {
  return Dispatch(
      internal::kCrossEntropyOp, {&logits, &targets},
      internal::CrossEntropyAttrs{options.ignore, options.label_smoothing, options.classes});
}

TensorOr CrossEntropyMean(const TensorOr& logits, const TensorOr& targets,
                          const CrossEntropyOptions& options) {
  const TensorOr losses = CrossEntropy(logits, targets, options);
  return Dispatch(internal::kTargetMeanOp, {&losses, &targets},
                  internal::TargetMeanAttrs{options.ignore});
}

}  // namespace dtensor
