#include "dtensor/attention/ring_executor.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/attention/ring_moves.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

absl::StatusOr<RingBlock> NewBlock(const RankRing& ring, int number, DType dtype, Device& device) {
  const RingProblem& problem = ring.schedule().problem();
  const Dims shape = {problem.batch, ring.schedule().kv_positions(number).size(), problem.kv_heads,
                      problem.head_dim};
  RingBlock block;
  DT_ASSIGN_OR_RETURN(block.k, Tensor::Empty(device, dtype, shape));
  DT_ASSIGN_OR_RETURN(block.v, Tensor::Empty(device, dtype, shape));
  return block;
}

// A digest of all that the ring's ranks must agree on.
uint64_t DigestOf(const RankRing& ring, const RingOptions& options) {
  Digest digest;
  digest.Add(static_cast<int64_t>(ring.digest()));
  digest.Add(std::bit_cast<int64_t>(options.scale));
  digest.Add(std::bit_cast<int64_t>(options.dropout.rate));
  digest.Add(static_cast<int64_t>(options.dropout.seed));
  digest.Add(static_cast<int64_t>(options.lineage));
  for (const std::vector<int64_t>* numbers : {&options.rows.offsets, &options.rows.ends}) {
    for (const int64_t number : *numbers) digest.Add(number);
  }
  return digest.value();
}

// Common to forward and backward: which blocks are here, and how they move.
class Runner {
 public:
  Runner(const RankRing& ring, const RingOptions& options, const Tensor& q, RingBlock own,
         Communicator& communicator, absl::string_view op)
      : ring_(ring),
        options_(options),
        digest_(DigestOf(ring, options)),
        q_(q),
        communicator_(communicator),
        op_(op) {
    held_[ring.ring_rank()] = std::move(own);
    const absl::Span<const RingStep> steps = ring.schedule().steps();
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const RingTurn& turn = steps[s].turns[ring.ring_rank()];
      if (turn.block_case != BlockCase::kEmpty) {
        if (first_ < 0) first_ = s;
        last_ = s;
        last_use_[turn.source] = s;
      }
      for (const RingMessage& message : turn.sends) last_use_[message.block] = s;
    }
  }

  // For each block that this rank works on, calls work(block number, keys and values, step) while
  // other blocks move. Calls `after` at the end of each step.
  template <typename Work, typename After>
  absl::Status Run(Work work, After after) {
    const absl::Span<const RingStep> steps = ring_.schedule().steps();
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const RingTurn& turn = steps[s].turns[ring_.ring_rank()];
      RingMoves moves(ring_, steps[s], &RingTurn::sends, &RingTurn::receives, digest_, op_);
      DT_RETURN_IF_ERROR(moves.Begin(
          held_, [&](int block) { return NewBlock(ring_, block, q_.dtype(), q_.device()); },
          communicator_));
      absl::Status status;
      if (turn.block_case != BlockCase::kEmpty) {
        status = NoThrow(
            [&] { return work(turn.source, held_.at(turn.source), StepOf(turn.source, s)); });
        if (!status.ok()) status = communicator_.Fail(status);
      }
      // Needed also after an error or an exception, because peers may be reading.
      const absl::Status moved = moves.End(communicator_);
      DT_RETURN_IF_ERROR(status);
      DT_RETURN_IF_ERROR(moved);
      for (const auto& [block, tensors] : moves.received()) held_[block] = tensors;
      std::erase_if(held_, [&](const auto& held) { return !UsedAfter(held.first, s); });
      DT_RETURN_IF_ERROR(after(steps[s]));
    }
    return absl::OkStatus();
  }

  uint64_t digest() const { return digest_; }

 private:
  bool UsedAfter(int block, int step) const {
    const auto use = last_use_.find(block);
    return use != last_use_.end() && use->second > step;
  }

  kernels::AttentionStep StepOf(int block, int s) const {
    const RingSchedule& schedule = ring_.schedule();
    return {.scale = options_.scale,
            .mask = schedule.problem().mask,
            .q_positions = schedule.q_positions(ring_.ring_rank()),
            .k_positions = schedule.kv_positions(block),
            .first = s == first_,
            .last = s == last_,
            .dropout = options_.dropout};
  }

  const RankRing& ring_;
  const RingOptions& options_;
  const uint64_t digest_;
  const Tensor& q_;
  Communicator& communicator_;
  absl::string_view op_;
  RingBlocks held_;
  std::map<int, int> last_use_;  // by block, the last step that works on it or sends it
  int first_ = -1, last_ = -1;   // steps with work
};

// Compares tensors with what the problem says for this rank.
class Checker {
 public:
  Checker(const RankRing& ring, absl::string_view op)
      : ring_rank_(ring.ring_rank()), dtype_(ring.schedule().problem().dtype), op_(op) {
    const RingProblem& p = ring.schedule().problem();
    const int64_t n = ring.schedule().q_positions(ring_rank_).size();
    q_ = {p.batch, n, p.heads, p.head_dim};
    kv_ = {p.batch, ring.schedule().kv_positions(ring_rank_).size(), p.kv_heads, p.head_dim};
    lse_ = {p.batch, p.heads, n};
  }

  absl::Status Dropout(const kernels::AttentionDropout& dropout) const {
    if (dropout.rate == 0) return absl::OkStatus();
    if (!(0 < dropout.rate && dropout.rate < 1)) {
      return InvalidArgument({op_, ": a dropout rate of ", absl::StrCat(dropout.rate),
                              "; take one that is at least 0 and less than 1"});
    }
    const int64_t batches = dropout.batches.size(), heads = dropout.heads.size();
    if (batches == q_[0] && heads == q_[2]) return absl::OkStatus();
    return InvalidArgument({op_, ": dropout names ", absl::StrCat(batches), " batch entries and ",
                            absl::StrCat(heads), " heads where q is ", DimsToString(q_),
                            "; name the global index of each"});
  }
  absl::Status Arguments(const Tensor& q, const Tensor& k, const Tensor& v) const {
    DT_RETURN_IF_ERROR(LikeQuery(q, "q"));
    DT_RETURN_IF_ERROR(Check(k, "k", kv_, dtype_));
    return Check(v, "v", kv_, dtype_);
  }
  absl::Status LikeQuery(const Tensor& tensor, absl::string_view name) const {
    return Check(tensor, name, q_, dtype_);
  }
  absl::Status Lse(const Tensor& lse, absl::string_view name = "lse") const {
    return CheckShape(lse, name, lse_, AccumulatorOf(dtype_));
  }
  absl::Status Gradients(const Tensor& dq, const Tensor& dk, const Tensor& dv) const {
    DT_RETURN_IF_ERROR(CheckRowMajor(dq, "the gradient of q", q_));
    DT_RETURN_IF_ERROR(CheckRowMajor(dk, "the gradient of k", kv_));
    return CheckRowMajor(dv, "the gradient of v", kv_);
  }

 private:
  absl::Status CheckShape(const Tensor& tensor, absl::string_view name, const Dims& shape,
                          DType dtype) const {
    if (tensor.defined() && tensor.shape() == shape && tensor.dtype() == dtype) {
      return absl::OkStatus();
    }
    const std::string got =
        tensor.defined() ? absl::StrCat(DimsToString(tensor.shape()), " ", ToString(tensor.dtype()))
                         : "undefined";
    return InvalidArgument({op_, ": ", name, " is ", got, " where place ", absl::StrCat(ring_rank_),
                            " of the ring holds ", DimsToString(shape), " ", ToString(dtype)});
  }
  absl::Status Check(const Tensor& tensor, absl::string_view name, const Dims& shape,
                     DType dtype) const {
    DT_RETURN_IF_ERROR(CheckShape(tensor, name, shape, dtype));
    if (tensor.strides()[3] == 1 || tensor.size(3) <= 1) return absl::OkStatus();
    return InvalidArgument({op_, ": the elements of a head of ", name, " lie ",
                            absl::StrCat(tensor.strides()[3]),
                            " apart; make it a tensor whose last stride is 1"});
  }
  absl::Status CheckRowMajor(const Tensor& tensor, absl::string_view name,
                             const Dims& shape) const {
    DT_RETURN_IF_ERROR(CheckShape(tensor, name, shape, dtype_));
    if (tensor.is_contiguous()) return absl::OkStatus();
    return InvalidArgument({op_, ": ", name, " has gaps; make it row-major"});
  }

  const int ring_rank_;
  const DType dtype_;
  const absl::string_view op_;
  Dims q_, kv_, lse_;
};

// The gradients of keys and values: those that travel, and the sum at home.
class KeyGradients {
 public:
  // Sums are accumulated in the results if these have the sums' type.
  KeyGradients(const RankRing& ring, Device& device, DType sum_type, RingBlock results)
      : ring_(ring), device_(device), sum_type_(sum_type), results_(std::move(results)) {}

  // Memory for this rank's share of a block's gradient. The share of its own block goes directly
  // into the sum at home.
  absl::StatusOr<RingBlock> NewShare(int block) {
    if (block == ring_.ring_rank()) return TakeHome();
    return NewBlock(ring_, block, sum_type_, device_);
  }

  // Adds this rank's share of a block's gradient to what has arrived for the block so far.
  absl::Status Add(int block, RingBlock share) {
    if (const auto came = travelling_.find(block); came != travelling_.end()) {
      DT_RETURN_IF_ERROR(AddTo(came->second, share));
      share = std::move(came->second);
      travelling_.erase(came);
    }
    ready_[block] = std::move(share);
    return absl::OkStatus();
  }

  // Sends what the turn sends. A finished gradient that is not sent is at home.
  absl::Status Move(const RingStep& step, uint64_t digest, Communicator& communicator,
                    absl::string_view op) {
    RingMoves moves(ring_, step, &RingTurn::gradient_sends, &RingTurn::gradient_receives, digest,
                    op);
    DT_RETURN_IF_ERROR(moves.Begin(
        ready_,
        [&](int block) {
          const bool to_home = block == ring_.ring_rank() && !at_home_;
          return to_home ? TakeHome() : NewBlock(ring_, block, sum_type_, device_);
        },
        communicator));
    DT_RETURN_IF_ERROR(moves.End(communicator));
    for (const RingMessage& sent : step.turns[ring_.ring_rank()].gradient_sends) Leave(sent.block);
    ready_.clear();
    for (const auto& [block, sum] : moves.received()) {
      if (block != ring_.ring_rank()) {
        travelling_[block] = sum;
      } else if (!sum.k.SharesStorageWith(home_.k)) {
        if (absl::Status s = AddTo(home_, sum); !s.ok()) return communicator.Fail(s);
      }
    }
    return absl::OkStatus();
  }

  // Writes the sums to the results, rounded once.
  absl::Status Finish() {
    for (Tensor RingBlock::*half : {&RingBlock::k, &RingBlock::v}) {
      if (!at_home_) {
        DT_RETURN_IF_ERROR(kernels::Fill(device_, results_.*half, 0));
      } else if (InPlace()) {
        continue;
      } else {
        DT_RETURN_IF_ERROR(
            kernels::Unary(device_, kernels::UnaryOp::kCopy, home_.*half, results_.*half));
      }
    }
    return absl::OkStatus();
  }

 private:
  bool InPlace() const { return results_.k.dtype() == sum_type_; }

  absl::StatusOr<RingBlock> TakeHome() {
    at_home_ = true;
    home_ = results_;
    if (!InPlace()) {
      DT_ASSIGN_OR_RETURN(home_, NewBlock(ring_, ring_.ring_rank(), sum_type_, device_));
    }
    return home_;
  }

  void Leave(int block) {
    if (block != ring_.ring_rank()) return;
    at_home_ = false;
    home_ = RingBlock();
  }

  absl::Status AddTo(RingBlock& sum, const RingBlock& more) {
    for (Tensor RingBlock::*half : {&RingBlock::k, &RingBlock::v}) {
      DT_RETURN_IF_ERROR(
          kernels::Binary(device_, kernels::BinaryOp::kAdd, sum.*half, more.*half, sum.*half));
    }
    return absl::OkStatus();
  }

  const RankRing& ring_;
  Device& device_;
  const DType sum_type_;
  const RingBlock results_;
  RingBlocks travelling_, ready_;
  bool at_home_ = false;  // home_ has a sum, or is about to get one
  RingBlock home_;
};

}  // namespace

RankRing::RankRing(RingSchedule schedule, int rank) : schedule_(std::move(schedule)) {
  const RingProblem& problem = schedule_.problem();
  const DeviceMesh& mesh = problem.q.mesh();
  ranks_ = mesh.Group(rank, problem.axes);
  ring_rank_ = static_cast<int>(absl::c_find(ranks_, rank) - ranks_.begin());
  group_ = ranks_;
  absl::c_sort(group_);
  axes_ = mesh.AxisNames(problem.axes);
  Digest digest;
  digest.Add(schedule_.ToString());
  digest_ = digest.value();
}

absl::Status RunRing(const RankRing& ring, const RingOptions& options, const Tensor& q,
                     const Tensor& k, const Tensor& v, Communicator& communicator,
                     absl::string_view op, const Tensor& o, const Tensor& lse) {
  const Checker checker(ring, op);
  DT_RETURN_IF_ERROR(checker.Dropout(options.dropout));
  DT_RETURN_IF_ERROR(checker.Arguments(q, k, v));
  DT_RETURN_IF_ERROR(checker.LikeQuery(o, "o"));
  DT_RETURN_IF_ERROR(checker.Lse(lse));
  Device& device = q.device();
  const int blocks = ring.schedule().BlocksOf(ring.ring_rank());
  const auto prepare = [&]() -> absl::StatusOr<kernels::AttentionCarry> {
    kernels::AttentionCarry carry;
    if (blocks == 0) {
      DT_RETURN_IF_ERROR(kernels::Fill(device, o, 0));
      DT_RETURN_IF_ERROR(kernels::Fill(device, lse, -std::numeric_limits<double>::infinity()));
    } else if (blocks > 1) {
      carry = {.o = o, .max = lse};
      DT_ASSIGN_OR_RETURN(carry.sum, Tensor::Empty(device, lse.dtype(), lse.shape()));
      if (o.dtype() == lse.dtype()) return carry;
      DT_ASSIGN_OR_RETURN(carry.o, Tensor::Empty(device, lse.dtype(), o.shape()));
    }
    return carry;
  };
  const auto carry = prepare();
  if (!carry.ok()) return communicator.Fail(carry.status());
  const auto work = [&](int, const RingBlock& block, const kernels::AttentionStep& step) {
    return AttendInRows(device, options.rows, q, block.k, block.v, step,
                        blocks > 1 ? &*carry : nullptr, o, lse);
  };
  Runner runner(ring, options, q, {k, v}, communicator, op);
  return runner.Run(work, [](const RingStep&) { return absl::OkStatus(); });
}

absl::Status RunRingBackward(const RankRing& ring, const RingOptions& options, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                             const Tensor& dout, Communicator& communicator, absl::string_view op,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& dlse) {
  const Checker checker(ring, op);
  DT_RETURN_IF_ERROR(checker.Dropout(options.dropout));
  DT_RETURN_IF_ERROR(checker.Arguments(q, k, v));
  DT_RETURN_IF_ERROR(checker.LikeQuery(o, "o"));
  DT_RETURN_IF_ERROR(checker.Lse(lse));
  DT_RETURN_IF_ERROR(checker.LikeQuery(dout, "the gradient of o"));
  if (dlse.defined()) DT_RETURN_IF_ERROR(checker.Lse(dlse, "the gradient of lse"));
  DT_RETURN_IF_ERROR(checker.Gradients(dq, dk, dv));
  Device& device = q.device();
  const bool idle = ring.schedule().BlocksOf(ring.ring_rank()) == 0;
  const DType sum_type =
      ring.schedule().SumsGradients(ring.ring_rank()) ? AccumulatorOf(q.dtype()) : q.dtype();
  Tensor delta, query_sum = dq;
  const auto prepare = [&]() -> absl::Status {
    if (idle) return kernels::Fill(device, dq, 0);
    DT_ASSIGN_OR_RETURN(delta, Tensor::Empty(device, lse.dtype(), lse.shape()));
    DT_RETURN_IF_ERROR(kernels::AttentionDelta(device, o, dout, delta, dlse));
    if (sum_type == dq.dtype()) return absl::OkStatus();
    DT_ASSIGN_OR_RETURN(query_sum, Tensor::Empty(device, sum_type, dq.shape()));
    return absl::OkStatus();
  };
  if (absl::Status s = prepare(); !s.ok()) return communicator.Fail(s);
  KeyGradients gradients(ring, device, sum_type, {dk, dv});
  const auto work = [&](int number, const RingBlock& block,
                        const kernels::AttentionStep& step) -> absl::Status {
    DT_ASSIGN_OR_RETURN(RingBlock share, gradients.NewShare(number));
    DT_RETURN_IF_ERROR(AttendInRowsGrad(device, options.rows, q, block.k, block.v, lse, delta, dout,
                                        step, query_sum, share.k, share.v,
                                        dlse.defined() ? nullptr : &o));
    return gradients.Add(number, std::move(share));
  };
  Runner runner(ring, options, q, {k, v}, communicator, op);
  DT_RETURN_IF_ERROR(runner.Run(work, [&](const RingStep& step) {
    return gradients.Move(step, runner.digest(), communicator, op);
  }));
  absl::Status status = gradients.Finish();
  if (status.ok() && !idle && query_sum.dtype() != dq.dtype()) {
    status = kernels::Unary(device, kernels::UnaryOp::kCopy, query_sum, dq);
  }
  return status.ok() ? status : communicator.Fail(status);
}

}  // namespace dtensor
