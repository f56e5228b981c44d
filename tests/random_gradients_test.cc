// Law 3 for programs: random operators on random layouts, with redistributions between them and
// tensors that are read several times, have the loss and the gradients of one rank: those of
// GradientsOf, and of Backward, with buckets and groups, over what is gathered or run again.
// Between them leaves stop to want gradients, and tensors are written to before they are read. On
// several meshes, each of part of the ranks, every rank runs the whole program.
// DTENSOR_SEED repeats the slow one, DTENSOR_SECONDS is how long it lasts.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/slow_test_time.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/gather_again.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/testing/suite_device.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int kSteps = 8;

// What the program does follows from its seed alone, where its tensors lie from the meshes, too.
class Program {
 public:
  Program(Context& context, const std::vector<DeviceMesh>& meshes, uint32_t seed)
      : context_(context), meshes_(meshes), choices_(seed), layouts_(seed + 1), seed_(seed) {}

  // The loss, gradients of some tensors, and the gradient of each leaf.
  absl::StatusOr<std::vector<std::vector<double>>> Run() {
    DT_RETURN_IF_ERROR(Leaf({2 + Below(4), 1 + Below(4)}).status());
    for (int i = 0; i < kSteps; ++i) {
      DT_ASSIGN_OR_RETURN(DistributedTensor y, Step(pool_[Below(pool_.size())]));
      text_ += absl::StrCat(" -> ", y.ToString());
      computed_.push_back(y);
      if (Below(3) == 0) {
        DT_ASSIGN_OR_RETURN(y, Move(y));
      }
      pool_.push_back(std::move(y));
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Loss());
    DT_ASSIGN_OR_RETURN(const std::vector<double> value, Everywhere(loss));
    std::vector<std::vector<double>> out = {value};
    if (Below(2) == 0) DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = true}));
    if (Below(2) == 0) DT_RETURN_IF_ERROR(AskForGradients(loss, out));
    // What the tape alone has goes as it is walked.
    if (Below(2) == 0) {
      pool_.clear();
      computed_.clear();
    }
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const bool ends = Below(8) == 0 && !read_again_.contains(i);
      if (ends) DT_RETURN_IF_ERROR(leaves_[i].set_requires_grad(false));
    }
    DT_RETURN_IF_ERROR(Backward(loss, {.bucket_bytes = 100 * Below(3)}));
    for (const DistributedTensor& leaf : leaves_) {
      out.emplace_back();
      if (!leaf.grad().defined()) continue;
      DT_ASSIGN_OR_RETURN(out.back(), Everywhere(leaf.grad()));
    }
    return out;
  }

  const std::string& text() const { return text_; }

 private:
  int64_t Below(size_t n) { return static_cast<int64_t>(choices_() % n); }

  // All elements, on every rank of the world.
  absl::StatusOr<std::vector<double>> Everywhere(const DistributedTensor& x) {
    DT_ASSIGN_OR_RETURN(const DeviceMesh all, DeviceMesh::Create({{"all", context_.world_size()}}));
    DT_ASSIGN_OR_RETURN(const auto whole,
                        x.Detach().Redistribute(Layout::Replicated(all, x.ndim())));
    return GlobalValues(whole);
  }

  Layout AnyLayout(const Dims& shape) {
    return AnyLayout(shape, meshes_[meshes_.size() > 1 ? layouts_() % meshes_.size() : 0]);
  }
  Layout AnyLayout(const Dims& shape, const DeviceMesh& mesh) {
    const auto all = AllPlacements(static_cast<int>(shape.size()), ReduceOp::kSum, AllOrders());
    return DrawLayout(mesh, shape, [&] { return all[layouts_() % all.size()]; });
  }

  // On that mesh, in any layout if it was not there.
  TensorOr To(const DeviceMesh& mesh, const TensorOr& x) {
    if (!x.ok() || x->mesh() == mesh) return x;
    const Layout layout = AnyLayout(x->shape(), mesh);
    const bool async = layouts_() % 3 == 0;
    return x->Redistribute(layout, {.async = async, .on_use = !async});
  }

  // Elsewhere, perhaps only until it is read.
  TensorOr Move(const DistributedTensor& x) {
    const Layout layout = AnyLayout(x.shape());
    return Below(2) == 0 ? x.Redistribute(layout) : RedistributeForUse(x, layout);
  }

  TensorOr Leaf(const Dims& shape, bool wanted = true) {
    std::vector<double> values(NumElements(shape));
    for (double& value : values) value = static_cast<double>(choices_() % 2001) / 1000 - 1;
    DT_ASSIGN_OR_RETURN(DistributedTensor leaf, Place(context_, AnyLayout(shape), shape,
                                                      DType::kF64, values, seed_ + leaves_.size()));
    if (!wanted) return leaf;
    DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
    leaf.set_pinned(Below(2) == 0);
    leaves_.push_back(leaf);
    if (const int64_t group = Below(3 * std::size(groups_)); group < std::size(groups_)) {
      DT_ASSIGN_OR_RETURN(leaf, InGroup(leaf, *groups_[group]));
    }
    pool_.push_back(leaf);
    computed_.push_back(leaf);
    return leaf;
  }

  // As it is used. One that is Partial stays alone.
  TensorOr InGroup(const DistributedTensor& leaf, GatherGroup& group) {
    const Layout used = AnyLayout(leaf.shape(), leaf.mesh());
    if (used.is_partial() || leaf.layout().is_partial()) return leaf;
    DT_RETURN_IF_ERROR(group.Add(leaf, used));
    return ForUse(leaf);
  }

  // A leaf on the mesh of x, or moved there.
  TensorOr LeafFor(const DistributedTensor& x, const Dims& shape, bool wanted = true) {
    return To(x.mesh(), Leaf(shape, wanted));
  }

  // Of x's shape, or broadcast to it.
  TensorOr Partner(const DistributedTensor& x) {
    const DistributedTensor other = pool_[Below(pool_.size())];
    if (other.shape() == x.shape()) return To(x.mesh(), other);
    return LeafFor(x, {Below(2) == 0 ? 1 : x.shape()[0], Below(2) == 0 ? 1 : x.shape()[1]});
  }

  // x and all results have two dimensions.
  TensorOr Step(const DistributedTensor x) {
    const int64_t rows = x.shape()[0], columns = x.shape()[1];
    const int op = static_cast<int>(Below(26));
    absl::StrAppend(&text_, "\n", op, ": ", x.ToString());
    switch (op) {
      case 0:
        return Silu(x);
      case 1:
        return Scale(x, -.5);
      case 2:
        return Transpose(x, 0, 1);
      case 3:
        return Reshape(x, {columns, rows});
      case 4:
        return Softmax(x);
      case 5:
        return RmsNorm(x, Reshape(LeafFor(x, {1, columns}), {columns}), .1);
      case 6:
        return Reshape(Sum(x, {0}), {1, columns});
      case 7:
        return Reshape(Mean(x, {1}), {rows, 1});
      case 8:
        return Linear(x, LeafFor(x, {1 + Below(4), columns}));
      case 9:
        return Add(x, Partner(x));
      case 10:
        return Sub(Partner(x), x);
      case 11:
        return Mul(x, Partner(x));
      case 12:
        return Slice(x, 0, rows > 1 ? 1 : 0, rows);
      // What has no kinks: rounding may differ from one layout to another.
      case 13:
        return Tanh(x);
      case 14:
        return Neg(Gelu(x));
      case 15:
        return Div(Partner(x), AddScalar(Pow(x, 2), 1));
      case 16:
        return AddN({x, Partner(x), Scale(x, 2)});
      case 17:
        return Dropout(x, .3, pool_.size());
      case 18:
        return LogSoftmax(x);
      case 19: {
        const TensorOr weight = Reshape(LeafFor(x, {1, columns}), {columns});
        return LayerNorm(x, weight, Reshape(LeafFor(x, {1, columns}), {columns}), .1);
      }
      case 20:
        return Concat({x, Scale(x, -1), Silu(x)}, static_cast<int>(Below(2)));
      case 21:
        return Written(x);
      default:
        return RunAgain(x);
    }
  }

  // A chain of tensors that are gathered of one another, some of which are written to before they
  // are read.
  TensorOr Written(const DistributedTensor& x) {
    DT_ASSIGN_OR_RETURN(DistributedTensor at, Scale(x.Detach(), .5));
    DT_ASSIGN_OR_RETURN(at, at.Redistribute(AnyLayout(x.shape())));
    std::vector<DistributedTensor> chain = {at};
    for (int i = 0; i < 3; ++i) {
      DT_ASSIGN_OR_RETURN(at, RedistributeForUse(at, AnyLayout(x.shape())));
      if (Below(3) == 0) DT_RETURN_IF_ERROR(Negate(chain[Below(chain.size())].Detach()));
      if (Below(3) == 0) DT_RETURN_IF_ERROR(Negate(at));
      chain.push_back(at);
    }
    TensorOr sum = x;
    for (const DistributedTensor& one : chain) {
      sum = Add(sum, To(x.mesh(), Mul(one, LeafFor(one, x.shape()))));
    }
    return sum;
  }

  absl::Status Negate(const DistributedTensor& x) {
    DT_RETURN_IF_ERROR(BeforeWrite(x));
    DT_ASSIGN_OR_RETURN(std::vector<double> values, ToHost<double>(x.local()));
    for (double& value : values) value = -value;
    DT_ASSIGN_OR_RETURN(const Tensor negative,
                        FromHost<double>(context_.device(), values, x.local().shape()));
    return kernels::Copy(context_.device(), negative, x.local());
  }

  // Operands of the function are given back, or not used at all.
  TensorOr RunAgain(const DistributedTensor& x) {
    read_again_.insert(leaves_.size());
    DT_ASSIGN_OR_RETURN(const DistributedTensor leaf, Leaf(x.shape()));
    const std::vector<DistributedTensor> operands = {x, pool_[Below(pool_.size())], leaf};
    const int64_t kind = Below(5);
    const Layout layout = AnyLayout(x.shape());
    const RecomputeOptions options = {.keep_collectives = Below(3) == 0};
    // The same when it runs again.
    const auto beside = [=](const DistributedTensor& other) -> TensorOr {
      if (other.mesh() == layout.mesh()) return other;
      return other.Redistribute(Layout::Replicated(layout.mesh(), 2));
    };
    const auto fn = [=](absl::Span<const DistributedTensor> given) -> TensorsOr {
      const TensorOr moved = RedistributeForUse(given[0], layout);
      TensorOr y = kind == 0 ? given[0] : kind == 1 ? Silu(moved) : Mul(moved, beside(leaf));
      if (kind == 3) y = Add(y, beside(given[2]));
      DT_RETURN_IF_ERROR(y.status());
      return std::vector<DistributedTensor>{*y, kind == 4 ? given[2] : *y};
    };
    const auto twice = [=](absl::Span<const DistributedTensor> given) {
      return Recompute(given, fn, options);
    };
    const bool nests = Below(4) == 0;
    DT_ASSIGN_OR_RETURN(const auto results, nests ? Recompute(operands, twice, options)
                                                  : Recompute(operands, fn, options));
    return Add(results[0], To(results[0].mesh(), Scale(results[Below(2)], 2)));
  }

  // Of tensors that want some; those that the loss does not depend on have none. What was moved to
  // another mesh has a gradient of its own, so it is not asked for.
  absl::Status AskForGradients(const DistributedTensor& loss,
                               std::vector<std::vector<double>>& out) {
    std::vector<DistributedTensor> asked;
    for (int i = 0; i < 4; ++i) asked.push_back(computed_[Below(computed_.size())]);
    DT_ASSIGN_OR_RETURN(
        const auto gradients,
        GradientsOf(loss, asked,
                    {.retain_graph = true, .bucket_bytes = 100 * Below(2), .allow_unused = true}));
    for (const DistributedTensor& gradient : gradients) {
      out.emplace_back();
      if (!gradient.defined()) continue;
      DT_ASSIGN_OR_RETURN(out.back(), Everywhere(gradient));
    }
    return absl::OkStatus();
  }

  TensorOr Loss() {
    TensorOr loss = DistributedTensor();
    for (size_t i = pool_.size() - 3; i < pool_.size(); ++i) {
      const TensorOr factors = LeafFor(pool_[i], pool_[i].shape(), /*wanted=*/false);
      const TensorOr part = Sum(Mul(pool_[i], factors), {0, 1});
      loss = loss->defined() ? Add(loss, To(loss->mesh(), part)) : part;
      DT_RETURN_IF_ERROR(loss.status());
    }
    return loss;
  }

  Context& context_;
  const std::vector<DeviceMesh>& meshes_;
  std::mt19937 choices_, layouts_;
  uint32_t seed_;
  const std::shared_ptr<GatherGroups> all_groups_ = GatherGroups::New();
  const std::shared_ptr<GatherGroup> groups_[3] = {all_groups_->Add(ShardLevel::kOptimizer),
                                                   all_groups_->Add(ShardLevel::kGradients),
                                                   all_groups_->Add(ShardLevel::kParameters)};
  std::vector<DistributedTensor> leaves_, pool_;
  std::vector<DistributedTensor> computed_;  // those of pool_, before they were moved
  std::set<size_t> read_again_;  // leaves that functions read, and want to want gradients then
  std::string text_;
};

void ExpectSame(const std::vector<std::vector<double>>& got,
                const std::vector<std::vector<double>>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t t = 0; t < got.size(); ++t) {
    ASSERT_EQ(got[t].size(), want[t].size()) << "tensor " << t << what;
    double largest = 1;
    for (double value : want[t]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < got[t].size(); ++i) {
      ASSERT_NEAR(got[t][i], want[t][i], 1e-11 * largest) << "tensor " << t << what;
    }
  }
}

void TryOn(const std::vector<DeviceMesh>& meshes, int world, uint32_t first, int programs,
           const OverlapOptions& overlap) {
  RunOptions options;
  // Where it overlaps, on the device that shows what was never written.
  options.device = SuiteDevice(overlap.chunks > 0 ? Device::Kind::kDeferred : Device::Kind::kCpu);
  std::string where;
  for (const DeviceMesh& mesh : meshes) absl::StrAppend(&where, " on ", mesh.ToString());
  std::vector<std::vector<std::vector<double>>> wanted;
  const std::vector<DeviceMesh> one(1);
  DT_ASSERT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    for (int i = 0; i < programs; ++i) {
      DT_ASSIGN_OR_RETURN(auto want, Program(context, one, first + 10 * i).Run());
      wanted.push_back(std::move(want));
    }
    return absl::OkStatus();
  }));
  DT_ASSERT_OK(RunRanks(world,
                        [&](Context& context) -> absl::Status {
                          for (int i = 0; i < programs; ++i) {
                            Program program(context, meshes, first + 10 * i);
                            const auto got = program.Run();
                            const std::string what =
                                absl::StrCat(" of program ", first + 10 * i, where, program.text());
                            if (!got.ok())
                              return absl::InternalError(
                                  absl::StrCat(got.status().message(), what));
                            if (context.rank() == 0) ExpectSame(*got, wanted[i], what);
                          }
                          return absl::OkStatus();
                        },
                        options, {.overlap = overlap}));
}

void Try(const char* mesh_text, uint32_t first, int programs, const OverlapOptions& overlap = {}) {
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  TryOn({mesh}, mesh.size(), first, programs, overlap);
}

// On one to three meshes of some of the ranks, in any order.
void TryOnDrawnMeshes(uint32_t first, int programs, const OverlapOptions& overlap = {}) {
  std::mt19937 random(first);
  const int world = 4 + static_cast<int>(random() % 3);
  std::vector<DeviceMesh> meshes;
  for (auto left = 1 + random() % 3; left > 0; --left) {
    const char* const grids[] = {"a=1", "a=2", "a=3", "a=2,b=2", "b=1,a=2"};
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh grid, DeviceMesh::Parse(grids[random() % 5]));
    std::vector<int> ranks(world);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(grid.size());
    meshes.push_back(*grid.OnRanks(ranks));
  }
  TryOn(meshes, world, first, programs, overlap);
}

TEST(RandomGradients, AreThoseOfOneRank) {
  for (const char* mesh : {"a=2", "a=3", "a=2,b=2"}) Try(mesh, 1, 50);
  // What ran again was said to lead to fewer leaves, once.
  Try("a=2", 960521240, 1);
  Try("a=2,b=2,c=2", 654280268, 1);
}

// Products beside what moves (docs/overlap.md), however little that is. The last were wrong once:
// on a rank they sum over nothing.
TEST(RandomGradients, OverlappedAreThoseOfOneRank) {
  const OverlapOptions overlap{.chunks = 3, .min_bytes = 0};
  for (const char* mesh : {"a=2", "a=2,b=2", "a=3,b=2"}) Try(mesh, 2, 20, overlap);
  Try("a=3,b=2", 376779391, 1, overlap);
  Try("a=2,b=2", 208862973, 1, overlap);
  Try("a=2,b=2", 911522335, 1, overlap);
  Try("a=2,b=2,c=2", 482755085, 1, overlap);
}

TEST(RandomGradients, OnMeshesOfPartOfTheRanksAreThoseOfOneRank) {
  for (uint32_t first = 3; first < 43; ++first) {
    TryOnDrawnMeshes(first, 10, {.chunks = static_cast<int>(first % 3), .min_bytes = 0});
  }
}

TEST(RandomGradients, SlowAreThoseOfOneRank) {
  const char* const meshes[] = {"a=2", "a=5", "a=2,b=2", "a=3,b=2", "a=2,b=2,c=2"};
  const SlowTestTime time;
  TestRandom random;
  int programs = 0;
  for (; time.Left() && !HasFailure(); programs += 100) {
    const OverlapOptions overlap{.chunks = static_cast<int>(random.Below(4)), .min_bytes = 0};
    Try(meshes[random.Below(5)], static_cast<uint32_t>(random.Below(1 << 30)), 50, overlap);
    TryOnDrawnMeshes(static_cast<uint32_t>(random.Below(1 << 30)), 50, overlap);
  }
  std::cout << programs << " programs\n";
}

}  // namespace
}  // namespace dtensor
