// Law 11: a tensor's value changes only by a write that its user asked for. Random programs of
// views, redistributions (remembered, in place, asynchronous), writes, optimizer steps and backward
// passes give what write_reference.h gives, on every mesh and device, or are refused for one of two
// reasons. What they keep and never ask for is there when they have ended. Each is traced, and the
// trace's sums are the counters. DTENSOR_SEED repeats a run; DTENSOR_SECONDS is how long the slow
// one lasts.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/regions.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/slow_test_time.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/testing/suite_device.h"
#include "dtensor/testing/small_layouts.h"
#include "dtensor/tests/tracing/check_trace.h"
#include "gtest/gtest.h"
#include "tests/write_reference.h"

namespace dtensor {
namespace {

using write_reference::Ref;
using write_reference::Reference;
using write_reference::Values;

constexpr const char* kMeshes[] = {"a=1",
                                   "a=2",
                                   "a=3",
                                   "a=4",
                                   "a=5",
                                   "a=8",
                                   "a=2,b=1",
                                   "a=1,b=2",
                                   "a=2,b=2",
                                   "a=2,b=3",
                                   "a=3,b=2",
                                   "a=4,b=2",
                                   "a=2,b=2@3,0,1,2",
                                   "a=2,b=2,c=2"};

absl::Status Differs(const std::string& what, const Values& got, const Values& want) {
  return absl::InternalError(
      absl::StrCat(what, ": got ", absl::StrJoin(got, " "), ", want ", absl::StrJoin(want, " ")));
}

// What a program keeps of one rank, replicated, and nobody has read.
struct Kept {
  DistributedTensor tensor;
  Ref ref;
};

absl::Status Compare(const Values& got, const Values& want, const char* what) {
  if (got.size() != want.size()) return Differs(what, got, want);
  double largest = 1;
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= 1e-9 * largest)) return Differs(what, got, want);
  }
  return absl::OkStatus();
}

// One rank's run of a program. All ranks draw the same numbers.
class Program {
 public:
  Program(Context& context, const DeviceMesh& mesh, uint64_t seed, std::vector<Kept>& kept)
      : context_(context), mesh_(mesh), engine_(seed), kept_(kept) {}

  absl::Status Run() {
    DT_RETURN_IF_ERROR(Create());
    const int steps = 5 + Below(36);
    for (int i = 0; i < steps; ++i) {
      DT_RETURN_IF_ERROR(Step());
      ++operations_;
      if (Below(3) == 0 && !handles_.empty()) DT_RETURN_IF_ERROR(Check(Any()));
    }
    for (const Handle& handle : handles_) DT_RETURN_IF_ERROR(Check(handle));
    for (const Handle& leaf : leaves_) DT_RETURN_IF_ERROR(CheckGradient(leaf));
    return absl::OkStatus();
  }
  int operations() const { return operations_; }
  bool refused() const { return refused_; }
  // What it did so far, for messages.
  const std::string& log() const { return log_; }

 private:
  struct Handle {
    DistributedTensor tensor;
    Ref ref;
    bool reshaped = false;  // it, or what it is a view of, by Reshape
  };

  void Log(absl::string_view what, const Handle& x) {
    absl::StrAppend(&log_, "\n  ", what, " ", x.tensor.ToString(), " #",
                    reinterpret_cast<uintptr_t>(x.ref.root.get()) / 16 % 4096);
  }

  int Below(int n) { return static_cast<int>(engine_() % n); }
  Handle& Any() { return handles_[Below(static_cast<int>(handles_.size()))]; }

  Placements RandomPlacements(const Dims& shape, bool partial) {
    Placements placements;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      const int choice = Below(static_cast<int>(shape.size()) + 1 + (partial ? 1 : 0));
      if (choice < static_cast<int>(shape.size())) {
        placements.push_back(Shard(choice));
      } else {
        placements.push_back(choice == static_cast<int>(shape.size()) ? Replicate() : Partial());
      }
    }
    return placements;
  }

  // Terms of a Partial tensor differ: the first has what is left of the others.
  double TermFactor(const Placements& placements) const {
    const auto coordinate = mesh_.Coordinate(context_.rank());
    double factor = 1;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (placements[axis] == Partial())
        factor *= coordinate[axis] == 0 ? 1 - 2. * (mesh_.axis_size(axis) - 1) : 2;
    }
    return factor;
  }

  absl::StatusOr<DistributedTensor> MakeTensor(const Dims& shape, const Values& values) {
    const Placements placements = RandomPlacements(shape, /*partial=*/true);
    Placements whole = placements;
    std::replace(whole.begin(), whole.end(), Partial(), Replicate());
    DT_ASSIGN_OR_RETURN(const auto made, Distribute<double>(context_, mesh_, whole, shape, values));
    if (whole == placements) return made;
    DT_ASSIGN_OR_RETURN(std::vector<double> local, ToHost<double>(made.local()));
    for (double& value : local) value *= TermFactor(placements);
    DT_ASSIGN_OR_RETURN(Tensor term,
                        FromHost<double>(context_.device(), local, made.local().shape()));
    return FromLocal(context_, mesh_, placements, shape, std::move(term));
  }

  absl::Status Create() {
    Dims shape;
    for (int d = 1 + Below(2); d >= 0; --d) shape.push_back(1 + Below(5));
    Values values(NumElements(shape));
    for (double& value : values) value = Below(7) - 3;
    Handle handle;
    DT_ASSIGN_OR_RETURN(handle.tensor, MakeTensor(shape, values));
    handle.ref = reference_.Make(shape, values);
    if (Below(3) == 0) {
      DT_RETURN_IF_ERROR(handle.tensor.set_requires_grad(true));
      reference_.RequireGradient(handle.ref);
      leaves_.push_back(handle);
    }
    Log("create", handle);
    handles_.push_back(std::move(handle));
    return absl::OkStatus();
  }

  absl::Status Step() {
    if (handles_.empty()) return Create();
    switch (Below(17)) {
      case 0:
        return Create();
      case 1:
        return Alias(Any());
      case 2:
      case 3:
        return View();
      case 4:
      case 5:
        return Redistribute();
      case 6:
        return ReduceInPlace();
      case 7:
      case 8:
        return Write(Any());
      case 9:
      case 10:
      case 11:
        return Compute();
      case 12:
        return BackwardPass();
      case 13:
        return OptimizerStep();
      case 14:
        reference_.recording = Below(4) != 0;
        context_.set_recording(reference_.recording);
        return absl::OkStatus();
      case 15:
        return Keep();
      default:
        handles_.erase(handles_.begin() + Below(static_cast<int>(handles_.size())));
        return absl::OkStatus();
    }
  }

  absl::Status Add(TensorOr tensor, Ref ref, bool reshaped) {
    DT_RETURN_IF_ERROR(tensor.status());
    if (handles_.size() > 12) handles_.erase(handles_.begin());
    handles_.push_back({*std::move(tensor), std::move(ref), reshaped});
    Log("-> ", handles_.back());
    return absl::OkStatus();
  }

  absl::Status Alias(const Handle& x) {
    return Add(x.tensor.Detach(), reference_.Detach(x.ref), x.reshaped);
  }

  // Nothing moved for a view that lies on the axes that its operand lay on.
  bool IsAlias(const DistributedTensor& x, const DistributedTensor& view) const {
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (x.layout().use(axis) != view.layout().use(axis)) return false;
    }
    return true;
  }

  // Of a slice: every rank has the same places of each unit of the dimension, the largest that the
  // slice does not cut (ops.h). Otherwise it was dealt out anew, perhaps to where it was.
  bool IsSliceAlias(const DistributedTensor& x, const DistributedTensor& slice, int dim,
                    int64_t begin) const {
    if (!IsAlias(x, slice)) return false;
    const int64_t size = x.shape()[dim];
    const int64_t unit = std::gcd(std::gcd(begin, slice.shape()[dim]), size);
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const IndexSet had = DimRegion(x.layout(), dim, size, mesh_.Coordinate(rank));
      if (had.size() == size) continue;
      for (int64_t i = unit; i < size; ++i) {
        if (had.Contains(i) != had.Contains(i - unit)) return false;
      }
    }
    return true;
  }

  absl::Status View() {
    const Handle x = Any();
    Log("view of", x);
    const int ndim = static_cast<int>(x.ref.shape.size());
    if (ndim == 0) return absl::OkStatus();
    const int dim = Below(ndim), other = Below(ndim);
    const int kind = Below(3);
    TensorOr view;
    if (kind == 0) {
      view = Transpose(x.tensor, dim, other);
      DT_RETURN_IF_ERROR(view.status());
      if (dim == other) return Add(view, reference_.Itself(x.ref), x.reshaped);
      return Add(view, reference_.Transpose(x.ref, dim, other, IsAlias(x.tensor, *view)),
                 x.reshaped);
    }
    if (kind == 1) {
      const int64_t begin = Below(static_cast<int>(x.ref.shape[dim]) + 1);
      const int64_t end = begin + Below(static_cast<int>(x.ref.shape[dim] - begin) + 1);
      view = Slice(x.tensor, dim, begin, end);
      DT_RETURN_IF_ERROR(view.status());
      const bool is_all = begin == 0 && end == x.ref.shape[dim];
      if (is_all) return Add(view, reference_.Itself(x.ref), x.reshaped);
      return Add(
          view, reference_.Slice(x.ref, dim, begin, end, IsSliceAlias(x.tensor, *view, dim, begin)),
          x.reshaped);
    }
    if (x.ref.at.empty()) return absl::OkStatus();
    Dims shape = x.ref.shape;
    if (dim + 1 < ndim) {
      shape[dim] *= shape[dim + 1];
      shape.erase(shape.begin() + dim + 1);
    } else if (shape[dim] % 2 == 0) {
      shape[dim] /= 2;
      shape.push_back(2);
    } else {
      shape.insert(shape.begin() + other, 1);
    }
    view = Reshape(x.tensor, shape);
    DT_RETURN_IF_ERROR(view.status());
    return Add(view, reference_.Reshape(x.ref, shape, IsAlias(x.tensor, *view)), true);
  }

  absl::Status Redistribute() {
    const Handle x = Any();
    Log("redistribute", x);
    const RedistributeOptions options{.async = Below(3) == 0};
    return Add(x.tensor.Redistribute(RandomPlacements(x.ref.shape, true), options),
               reference_.Value(x.ref), false);
  }

  absl::Status Keep() {
    const Handle x = Any();
    Log("keep", x);
    const bool async = Below(2) == 0;
    const Placements whole(mesh_.num_axes(), Replicate());
    DT_ASSIGN_OR_RETURN(const auto kept,
                        x.tensor.Redistribute(whole, {.async = async, .on_use = !async}));
    kept_.push_back({kept, reference_.Value(x.ref)});
    return absl::OkStatus();
  }

  absl::Status ReduceInPlace() {
    const size_t index = Below(static_cast<int>(handles_.size()));
    const Handle x = handles_[index];
    handles_.erase(handles_.begin() + index);
    Log("reduce in place", x);
    DT_ASSIGN_OR_RETURN(const auto sum,
                        x.tensor.Redistribute(RandomPlacements(x.ref.shape, false),
                                              {.plan = RedistributionOptions{.in_place = true},
                                               .async = Below(4) == 0}));
    DT_RETURN_IF_ERROR(Add(sum, reference_.Value(x.ref), false));
    const absl::Status gone = Check(x);
    const bool consumed = absl::StrContains(gone.message(), "redistributed in place");
    // Whoever else has the handle must not use it.
    if (consumed) {
      std::erase_if(handles_, [&](const Handle& h) { return h.tensor.impl() == x.tensor.impl(); });
      consumed_.push_back(x.tensor);
    }
    return consumed ? absl::OkStatus() : gone;
  }

  // Refused for what is recorded, which is mostly avoided, and for what may be a copy.
  absl::Status Write(Handle& x) {
    if (x.ref.node != nullptr && Below(20) != 0) return absl::OkStatus();
    Log("write to", x);
    const absl::Status status = BeforeWrite(x.tensor);
    if (!status.ok()) {
      refused_ = true;
      const bool recorded = absl::StrContains(status.message(), "recorded operator");
      const bool copied = absl::StrContains(status.message(), "not row-major");
      return (recorded && x.ref.node != nullptr) || (copied && x.reshaped) ? absl::OkStatus()
                                                                           : status;
    }
    double most = 0;
    for (double value : x.ref.Read()) most = std::max(most, std::abs(value));
    const double factor = most > 50 ? .125 : Below(2) == 0 ? 2 : -1;
    x.ref.Write([&](double value, size_t) { return value * factor; });
    DT_ASSIGN_OR_RETURN(std::vector<double> values, ToHost<double>(x.tensor.local()));
    for (double& value : values) value *= factor;
    return Store(x.tensor, values);
  }

  absl::Status Store(const DistributedTensor& x, const std::vector<double>& values) {
    DT_ASSIGN_OR_RETURN(const Tensor written,
                        FromHost<double>(context_.device(), values, x.local().shape()));
    return kernels::Copy(context_.device(), written, x.local());
  }

  absl::Status Compute() {
    const Handle a = Any(), b = Any();
    Log("compute with", a);
    const int kind = Below(4);
    if (kind == 0) return Add(Scale(a.tensor, .5), reference_.Scale(a.ref, .5), false);
    if (kind == 1 && a.ref.shape.size() == 2 && b.ref.shape.size() == 2 &&
        a.ref.shape[1] == b.ref.shape[0]) {
      return AddBounded(MatMul(a.tensor, b.tensor), reference_.MatMul(a.ref, b.ref));
    }
    const Handle& c = a.ref.shape == b.ref.shape ? b : a;
    if (kind == 2) {
      return AddBounded(dtensor::Add(a.tensor, c.tensor), reference_.Add(a.ref, c.ref));
    }
    return AddBounded(Mul(a.tensor, c.tensor), reference_.Mul(a.ref, c.ref));
  }

  absl::Status AddBounded(const TensorOr& tensor, const Ref& ref) {
    return Add(Scale(tensor, 1. / 64), reference_.Scale(ref, 1. / 64), false);
  }

  // Most are chosen to be legal.
  absl::Status BackwardPass() {
    const Handle x = Any();
    const Ref loss = reference_.SumAll(x.ref);
    const auto obstacles = LookForObstacles(loss);
    if (loss.node == nullptr) return absl::OkStatus();
    if ((obstacles.written || obstacles.consumed) && Below(20) != 0) return absl::OkStatus();
    std::vector<int> dims(x.ref.shape.size());
    for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int>(d);
    const absl::Status status = Backward(Sum(x.tensor, dims));
    if (!status.ok()) {
      refused_ = true;
      const bool written = absl::StrContains(status.message(), "was written after");
      const bool consumed = absl::StrContains(status.message(), "an earlier Backward");
      return (written && obstacles.written) || (consumed && obstacles.consumed) ? absl::OkStatus()
                                                                                : status;
    }
    if (obstacles.consumed) return absl::InternalError("a second walk was not refused");
    write_reference::Backward(loss);
    return absl::OkStatus();
  }

  bool IsConsumed(const DistributedTensor& x) const {
    return std::any_of(consumed_.begin(), consumed_.end(),
                       [&](const auto& gone) { return gone.impl() == x.impl(); });
  }

  absl::Status OptimizerStep() {
    for (Handle& leaf : leaves_) {
      if (!leaf.ref.node->has_gradient || IsConsumed(leaf.tensor)) continue;
      DT_RETURN_IF_ERROR(ReduceGradients({leaf.tensor}));
      DT_RETURN_IF_ERROR(CheckGradient(leaf));
      const Values& gradient = leaf.ref.node->gradient;
      leaf.ref.Write([&](double value, size_t i) { return value - .5 * gradient[i]; });
      DT_RETURN_IF_ERROR(BeforeWrite(leaf.tensor));
      DT_ASSIGN_OR_RETURN(std::vector<double> values, ToHost<double>(leaf.tensor.local()));
      DT_ASSIGN_OR_RETURN(const auto slope, ToHost<double>(leaf.tensor.grad().local()));
      for (size_t i = 0; i < values.size(); ++i) values[i] -= .5 * slope[i];
      DT_RETURN_IF_ERROR(Store(leaf.tensor, values));
      if (Below(2) == 0) continue;
      leaf.tensor.ClearGrad();
      leaf.ref.node->gradient.clear();
      leaf.ref.node->has_gradient = false;
    }
    return absl::OkStatus();
  }

  absl::Status Check(const Handle& x) {
    DT_ASSIGN_OR_RETURN(const Values got, ToGlobal<double>(x.tensor));
    return Compare(got, x.ref.Read(), "value");
  }

  absl::Status CheckGradient(const Handle& leaf) {
    if (leaf.tensor.grad().defined() != leaf.ref.node->has_gradient)
      return absl::InternalError("a gradient is there that should not be, or is not");
    if (!leaf.ref.node->has_gradient) return absl::OkStatus();
    DT_ASSIGN_OR_RETURN(const Values got, ToGlobal<double>(leaf.tensor.grad()));
    return Compare(got, leaf.ref.node->gradient, "gradient");
  }

  Context& context_;
  const DeviceMesh mesh_;
  std::mt19937_64 engine_;
  Reference reference_;
  std::vector<Handle> handles_, leaves_;
  std::vector<DistributedTensor> consumed_;
  std::vector<Kept>& kept_;
  std::string log_;
  int operations_ = 0;
  bool refused_ = false;
};

struct Totals {
  int64_t programs = 0, operations = 0, refused = 0;
};

// Where no rank can help any more.
absl::Status CheckKept(const Kept& kept) {
  DT_ASSIGN_OR_RETURN(const Values got, ToHost<double>(kept.tensor.local()));
  return Compare(got, kept.ref.Read(), "kept");
}

void RunOne(TestRandom& random, Totals& totals) {
  const uint64_t seed = (uint64_t{1} << 20) * random.Below(1 << 20) + random.Below(1 << 20);
  const char* const mesh_text = kMeshes[random.Below(std::size(kMeshes))];
  const DeviceMesh mesh = MeshOf(mesh_text);
  const bool deferred = random.Below(4) == 0;
  RunOptions options;
  options.device = SuiteDevice(deferred ? Device::Kind::kDeferred : Device::Kind::kCpu);
  options.max_delay_us = deferred ? 5 : 0;
  // Every second one with products beside what moves (docs/overlap.md), however little that is.
  const OverlapOptions overlap{.chunks = random.Below(2) == 0 ? 3 : 0, .min_bytes = 0};
  std::vector<std::vector<Kept>> kept(mesh.size());
  std::vector<std::string> logs(mesh.size());
  absl::Status status = RunRanks(
      mesh.size(),
      [&](Context& context) -> absl::Status {
        context.StartTrace();
        Program program(context, mesh, seed, kept[context.rank()]);
        absl::Status status = program.Run();
        if (status.ok()) status = CheckTrace(context);
        if (!status.ok())
          return absl::Status(status.code(), absl::StrCat(status.message(), program.log()));
        logs[context.rank()] = program.log();
        if (context.rank() != 0) return absl::OkStatus();
        totals.operations += program.operations();
        totals.refused += program.refused();
        return absl::OkStatus();
      },
      options, {.overlap = overlap});
  for (int rank = 0; rank < mesh.size() && status.ok(); ++rank) {
    for (const Kept& left : kept[rank]) status.Update(CheckKept(left));
    if (!status.ok()) {
      status = absl::InternalError(
          absl::StrCat("rank ", rank, " of what is over: ", status.message(), logs[rank]));
    }
  }
  ++totals.programs;
  DT_ASSERT_OK(status) << "program " << seed << " on " << mesh_text
                       << (deferred ? ", deferred" : "")
                       << (overlap.chunks > 0 ? ", overlaps" : "");
}

void Report(const Totals& totals) {
  std::cout << totals.operations << " operations in " << totals.programs << " programs, "
            << totals.refused << " of them refused\n";
  // One in twenty is; with new seeds each time, few programs may have many more.
  if (totals.programs < 100) return;
  EXPECT_LT(totals.refused * 5, totals.programs);
}

TEST(RandomWrites, GiveWhatAReferenceGives) {
  TestRandom random;
  Totals totals;
  for (int i = 0; i < 300 && !HasFailure(); ++i) RunOne(random, totals);
  Report(totals);
}

TEST(RandomWrites, SlowOnes) {
  const SlowTestTime time;
  TestRandom random;
  Totals totals;
  while (time.Left() && !HasFailure()) RunOne(random, totals);
  Report(totals);
}

}  // namespace
}  // namespace dtensor
