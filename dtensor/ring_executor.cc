#include "dtensor/ring_executor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

// FNV-1a: equal in every process.
uint64_t DigestOf(absl::string_view text) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

// Keys and values, or their gradients.
struct Block {
  Tensor k, v;
};
using Blocks = std::map<int, Block>;  // by number

using Messages = std::vector<RingMessage> RingTurn::*;

// One step's messages of one kind as an exchange. A rank lays out what it sends in slots, one for
// each block; a part pairs a slot with a message that is received. All ranks have as many parts.
class Moves {
 public:
  Moves(const RankRing& ring, const RingStep& step, Messages sends, Messages receives,
        absl::string_view op)
      : ring_(ring), step_(step), sends_(sends), receives_(receives) {
    for (const RingTurn& turn : step.turns) {
      slots_ = std::max(slots_, SlotsOf(turn).size());
      most_received_ = std::max(most_received_, (turn.*receives).size());
    }
    collective_.kind = CollectiveKind::kPermute;
    collective_.axes = ring.axes();
    collective_.op = op;
    collective_.group = ring.group();
    collective_.digest = ring.digest() + step.hop;
  }

  bool any() const { return most_received_ > 0; }

  // `held` has all that this rank sends. Peers may read from it until End().
  absl::Status Begin(const Blocks& held, Device& device, DType dtype, Communicator& communicator) {
    if (!any()) return absl::OkStatus();
    DT_RETURN_IF_ERROR(MakeBuffers(device, dtype, communicator));
    const std::vector<int> mine = SlotsOf(turn());
    for (size_t slot = 0; slot < slots_; ++slot) {
      for (size_t i = 0; i < most_received_; ++i) {
        for (Tensor Block::*half : {&Block::k, &Block::v}) {
          ExchangePart& part = parts_.emplace_back();
          if (slot < mine.size()) part.src = held.at(mine[slot]).*half;
          if (i >= received_.size() || SlotOf((turn().*receives_)[i]) != slot) continue;
          part.dst = received_[i].second.*half;
          part.receives = absl::MakeConstSpan(&transfers_[i], 1);
        }
      }
    }
    return communicator.Begin(collective_, parts_);
  }

  absl::Status End(Communicator& communicator) {
    return any() ? communicator.Finish(collective_) : absl::OkStatus();
  }

  // What came, by block. After End().
  absl::Span<const std::pair<int, Block>> received() const { return received_; }

 private:
  const RingTurn& turn() const { return step_.turns[ring_.place()]; }

  std::vector<int> SlotsOf(const RingTurn& turn) const {
    std::vector<int> blocks;
    for (const RingMessage& message : turn.*sends_) {
      if (!absl::c_linear_search(blocks, message.block)) blocks.push_back(message.block);
    }
    return blocks;
  }

  size_t SlotOf(const RingMessage& received) const {
    const std::vector<int> blocks = SlotsOf(step_.turns[received.peer]);
    return absl::c_find(blocks, received.block) - blocks.begin();
  }

  absl::Status MakeBuffers(Device& device, DType dtype, Communicator& communicator) {
    const RingProblem& problem = ring_.schedule().problem();
    for (const RingMessage& message : turn().*receives_) {
      const int64_t n = ring_.schedule().kv_positions(message.block).size();
      const Dims shape = {problem.batch, n, problem.kv_heads, problem.head_dim};
      Block block;
      for (Tensor Block::*half : {&Block::k, &Block::v}) {
        auto buffer = Tensor::Empty(device, dtype, shape);
        if (!buffer.ok()) return communicator.Fail(buffer.status());
        block.*half = *std::move(buffer);
      }
      received_.push_back({message.block, std::move(block)});
      Transfer& transfer = transfers_.emplace_back();
      transfer.peers = {ring_.ranks()[message.peer]};
      for (const int64_t size : shape) transfer.dims.push_back({.length = size});
    }
    return absl::OkStatus();
  }

  const RankRing& ring_;
  const RingStep& step_;
  const Messages sends_, receives_;
  size_t slots_ = 0, most_received_ = 0;
  Collective collective_;
  std::vector<std::pair<int, Block>> received_;
  std::vector<Transfer> transfers_;
  std::vector<ExchangePart> parts_;
};

// What forward and backward have in common: which blocks are here, and their way.
class Runner {
 public:
  Runner(const RankRing& ring, const Tensor& q, const Tensor& k, const Tensor& v,
         Communicator& communicator, absl::string_view op)
      : ring_(ring), q_(q), device_(q.device()), communicator_(communicator), op_(op) {
    held_[ring.place()] = {k, v};
    const absl::Span<const RingStep> steps = ring.schedule().steps();
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const RingTurn& turn = steps[s].turns[ring.place()];
      if (turn.block_case != BlockCase::kEmpty) {
        if (first_ < 0) first_ = s;
        last_ = s;
        last_use_[turn.source] = s;
      }
      for (const RingMessage& message : turn.sends) last_use_[message.block] = s;
    }
  }

  // Calls work(block number, keys and values, step) for each block that this rank works on, while
  // other blocks move, and then `after` for each step. A rank without work makes one call with no
  // keys.
  template <typename Work, typename After>
  absl::Status Run(double scale, Work work, After after) {
    if (last_ < 0) DT_RETURN_IF_ERROR(WithoutKeys(scale, work));
    const absl::Span<const RingStep> steps = ring_.schedule().steps();
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const RingTurn& turn = steps[s].turns[ring_.place()];
      Moves moves(ring_, steps[s], &RingTurn::sends, &RingTurn::receives, op_);
      DT_RETURN_IF_ERROR(moves.Begin(held_, device_, q_.dtype(), communicator_));
      absl::Status status;
      if (turn.block_case != BlockCase::kEmpty) {
        status = work(turn.source, held_.at(turn.source), StepOf(turn.source, scale, s));
        if (!status.ok()) status = communicator_.Fail(status);
      }
      // Also after an error: peers may be reading.
      const absl::Status moved = moves.End(communicator_);
      DT_RETURN_IF_ERROR(status);
      DT_RETURN_IF_ERROR(moved);
      for (const auto& [block, tensors] : moves.received()) held_[block] = tensors;
      std::erase_if(held_, [&](const auto& held) { return !UsedAfter(held.first, s); });
      DT_RETURN_IF_ERROR(after(steps[s]));
    }
    return absl::OkStatus();
  }

 private:
  bool UsedAfter(int block, int step) const {
    const auto use = last_use_.find(block);
    return use != last_use_.end() && use->second > step;
  }

  kernels::AttentionStep StepOf(int block, double scale, int s) const {
    const RingSchedule& schedule = ring_.schedule();
    return {.scale = scale,
            .mask = schedule.problem().mask,
            .q_positions = schedule.q_positions(ring_.place()),
            .k_positions = schedule.kv_positions(block),
            .first = s == first_,
            .last = s == last_};
  }

  template <typename Work>
  absl::Status WithoutKeys(double scale, Work work) {
    const Block& own = held_.at(ring_.place());
    const Block none = {own.k.Narrow(1, 0, 0), own.v.Narrow(1, 0, 0)};
    kernels::AttentionStep step = StepOf(ring_.place(), scale, 0);
    step.k_positions = IndexSet();
    step.first = step.last = true;
    return work(-1, none, step);
  }

  const RankRing& ring_;
  const Tensor& q_;
  Device& device_;
  Communicator& communicator_;
  absl::string_view op_;
  Blocks held_;
  std::map<int, int> last_use_;  // by block, the last step that works on it or sends it
  int first_ = -1, last_ = -1;   // steps with work
};

absl::Status CheckTensor(const RankRing& ring, const Tensor& tensor, absl::string_view name,
                         const Dims& shape, absl::string_view op) {
  const DType dtype = ring.schedule().problem().dtype;
  if (tensor.defined() && tensor.shape() == shape && tensor.dtype() == dtype) {
    return absl::OkStatus();
  }
  const std::string got =
      tensor.defined() ? absl::StrCat(DimsToString(tensor.shape()), " ", ToString(tensor.dtype()))
                       : "undefined";
  return InvalidArgument({op, ": ", name, " is ", got, " where place ", absl::StrCat(ring.place()),
                          " of the ring holds ", DimsToString(shape), " ", ToString(dtype)});
}

Dims QueryShape(const RankRing& ring) {
  const RingProblem& p = ring.schedule().problem();
  return {p.batch, ring.schedule().q_positions(ring.place()).size(), p.heads, p.head_dim};
}

absl::Status CheckInputs(const RankRing& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                         absl::string_view op) {
  const RingProblem& p = ring.schedule().problem();
  const Dims keys = {p.batch, ring.schedule().kv_positions(ring.place()).size(), p.kv_heads,
                     p.head_dim};
  DT_RETURN_IF_ERROR(CheckTensor(ring, q, "q", QueryShape(ring), op));
  DT_RETURN_IF_ERROR(CheckTensor(ring, k, "k", keys, op));
  return CheckTensor(ring, v, "v", keys, op);
}

// Gradients on their way, and those that are home.
class GradientSums {
 public:
  GradientSums(Device& device, int place) : device_(device), place_(place) {}

  // This rank's share of a block, with what came for it before.
  absl::Status Add(int block, Block share) {
    if (const auto came = travelling_.find(block); came != travelling_.end()) {
      DT_RETURN_IF_ERROR(AddTo(came->second, share));
      share = std::move(came->second);
      travelling_.erase(came);
    }
    ready_[block] = std::move(share);
    return absl::OkStatus();
  }

  // What is ready and not sent is home.
  const Blocks& ready() const { return ready_; }
  absl::Status KeepUnsent(const RingTurn& turn) {
    for (const RingMessage& message : turn.gradient_sends) ready_.erase(message.block);
    for (auto& [block, share] : ready_) {
      DT_CHECK(block == place_);
      DT_RETURN_IF_ERROR(AddHome(std::move(share)));
    }
    ready_.clear();
    return absl::OkStatus();
  }

  absl::Status Receive(int block, Block sum) {
    if (block == place_) return AddHome(std::move(sum));
    travelling_[block] = std::move(sum);
    return absl::OkStatus();
  }

  const Block& home() const { return home_; }

 private:
  absl::Status AddHome(Block sum) {
    if (home_.k.defined()) DT_RETURN_IF_ERROR(AddTo(sum, home_));
    home_ = std::move(sum);
    return absl::OkStatus();
  }

  absl::Status AddTo(Block& sum, const Block& more) {
    for (Tensor Block::*half : {&Block::k, &Block::v}) {
      DT_RETURN_IF_ERROR(
          kernels::Binary(device_, kernels::BinaryOp::kAdd, sum.*half, more.*half, sum.*half));
    }
    return absl::OkStatus();
  }

  Device& device_;
  const int place_;
  Blocks travelling_, ready_;
  Block home_;
};

}  // namespace

RankRing::RankRing(RingSchedule schedule, int rank) : schedule_(std::move(schedule)) {
  const RingProblem& problem = schedule_.problem();
  const DeviceMesh& mesh = problem.q.mesh();
  ranks_ = mesh.Group(rank, problem.axes);
  place_ = static_cast<int>(absl::c_find(ranks_, rank) - ranks_.begin());
  group_ = ranks_;
  absl::c_sort(group_);
  axes_ = absl::StrJoin(problem.axes, ",",
                        [&](std::string* out, int axis) { out->append(mesh.axis_name(axis)); });
  digest_ = DigestOf(schedule_.ToString());
}

absl::StatusOr<RingAttention> RunRing(const RankRing& ring, double scale, const Tensor& q,
                                      const Tensor& k, const Tensor& v, Communicator& communicator,
                                      absl::string_view op) {
  DT_RETURN_IF_ERROR(CheckInputs(ring, q, k, v, op));
  Device& device = q.device();
  const DType wide = AccumulatorOf(q.dtype());
  const Dims rows = {q.size(0), q.size(2), q.size(1)};
  const auto make = [&]() -> absl::StatusOr<std::pair<RingAttention, kernels::AttentionCarry>> {
    RingAttention result;
    kernels::AttentionCarry carry;
    DT_ASSIGN_OR_RETURN(result.o, Tensor::Empty(device, q.dtype(), q.shape()));
    DT_ASSIGN_OR_RETURN(result.lse, Tensor::Empty(device, wide, rows));
    DT_ASSIGN_OR_RETURN(carry.o, Tensor::Empty(device, wide, q.shape()));
    DT_ASSIGN_OR_RETURN(carry.max, Tensor::Empty(device, wide, rows));
    DT_ASSIGN_OR_RETURN(carry.sum, Tensor::Empty(device, wide, rows));
    return std::make_pair(result, carry);
  };
  auto made = make();
  if (!made.ok()) return communicator.Fail(made.status());
  const auto& [result, carry] = *made;
  const auto work = [&](int, const Block& block, const kernels::AttentionStep& step) {
    return kernels::Attention(device, q, block.k, block.v, step, &carry, result.o, result.lse);
  };
  DT_RETURN_IF_ERROR(Runner(ring, q, k, v, communicator, op).Run(scale, work, [](const RingStep&) {
    return absl::OkStatus();
  }));
  return result;
}

absl::StatusOr<RingGradients> RunRingBackward(const RankRing& ring, double scale, const Tensor& q,
                                              const Tensor& k, const Tensor& v,
                                              const RingAttention& result, const Tensor& dout,
                                              Communicator& communicator, absl::string_view op) {
  DT_RETURN_IF_ERROR(CheckInputs(ring, q, k, v, op));
  DT_RETURN_IF_ERROR(CheckTensor(ring, result.o, "o", QueryShape(ring), op));
  DT_RETURN_IF_ERROR(CheckTensor(ring, dout, "the gradient of o", QueryShape(ring), op));
  Device& device = q.device();
  const DType wide = AccumulatorOf(q.dtype());
  const auto empty = [&](DType dtype, const Dims& shape) -> absl::StatusOr<Tensor> {
    auto tensor = Tensor::Empty(device, dtype, shape);
    if (!tensor.ok()) return communicator.Fail(tensor.status());
    return tensor;
  };
  DT_ASSIGN_OR_RETURN(const Tensor delta, empty(wide, result.lse.shape()));
  DT_ASSIGN_OR_RETURN(const Tensor dq, empty(wide, q.shape()));
  if (absl::Status s = kernels::AttentionDelta(device, result.o, dout, delta); !s.ok()) {
    return communicator.Fail(s);
  }
  GradientSums sums(device, ring.place());
  const auto work = [&](int number, const Block& block,
                        const kernels::AttentionStep& step) -> absl::Status {
    Block share;
    DT_ASSIGN_OR_RETURN(share.k, Tensor::Empty(device, wide, block.k.shape()));
    DT_ASSIGN_OR_RETURN(share.v, Tensor::Empty(device, wide, block.v.shape()));
    DT_RETURN_IF_ERROR(kernels::AttentionGrad(device, q, block.k, block.v, result.lse, delta, dout,
                                              step, dq, share.k, share.v));
    return number < 0 ? absl::OkStatus() : sums.Add(number, std::move(share));
  };
  const auto move_gradients = [&](const RingStep& step) -> absl::Status {
    Moves moves(ring, step, &RingTurn::gradient_sends, &RingTurn::gradient_receives, op);
    DT_RETURN_IF_ERROR(moves.Begin(sums.ready(), device, wide, communicator));
    DT_RETURN_IF_ERROR(moves.End(communicator));
    absl::Status status = sums.KeepUnsent(step.turns[ring.place()]);
    for (const auto& [block, sum] : moves.received()) {
      if (status.ok()) status = sums.Receive(block, sum);
    }
    return status.ok() ? status : communicator.Fail(status);
  };
  DT_RETURN_IF_ERROR(Runner(ring, q, k, v, communicator, op).Run(scale, work, move_gradients));

  // Rounded once, to the tensors' type.
  const auto rounded = [&](const Tensor& sum, const Dims& shape) -> absl::StatusOr<Tensor> {
    if (sum.defined() && wide == q.dtype()) return sum;
    DT_ASSIGN_OR_RETURN(const Tensor out, empty(q.dtype(), shape));
    const absl::Status status = sum.defined()
                                    ? kernels::Unary(device, kernels::UnaryOp::kCopy, sum, out)
                                    : kernels::Fill(device, out, 0);
    if (!status.ok()) return communicator.Fail(status);
    return out;
  };
  RingGradients gradients;
  DT_ASSIGN_OR_RETURN(gradients.dq, rounded(dq, q.shape()));
  DT_ASSIGN_OR_RETURN(gradients.dk, rounded(sums.home().k, k.shape()));
  DT_ASSIGN_OR_RETURN(gradients.dv, rounded(sums.home().v, v.shape()));
  return gradients;
}

}  // namespace dtensor
