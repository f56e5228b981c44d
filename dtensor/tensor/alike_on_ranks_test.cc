// Whether ranks communicate must not depend on what only one of them has: a handle that it keeps, a
// stand-in for a tensor of other ranks, strides of its own.
//
// DTENSOR_MESH_PROGRAMS=N runs N random programs (500 unless set), DTENSOR_MESH_SEED others.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/wait_for.h"
#include "dtensor/testing/all_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// --- Handles.

// `moves`: of a tensor that is no parameter; 0 is a parameter.
absl::Status KeepOnOneRank(Context& context, int moves) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
  DT_ASSIGN_OR_RETURN(DistributedTensor x, Full(context, mesh, {Shard(0)}, {4, 4}, DType::kF32, 1));
  if (moves == 0) DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  for (int i = 0; i < moves; ++i) {
    DT_ASSIGN_OR_RETURN(x, x.Redistribute({Shard(i % 2 == 0 ? 1 : 0)}));
  }
  DT_ASSIGN_OR_RETURN(const DistributedTensor other,
                      Full(context, mesh, {Replicate()}, {4, 4}, DType::kF32, 1));
  DistributedTensor kept;
  for (int step = 0; step < 3; ++step) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, x.Redistribute({Replicate()}));
    if (context.rank() == 0) kept = whole;
    DT_RETURN_IF_ERROR(MatMul(x, other).status());
  }
  return ToGlobal<float>(x).status();
}

// A batch of one on two ranks: rank 0 has all of x, here a part of a fused projection, and rank 1
// receives it. What kernels add up in an order that depends on strides is the same on both.
TEST(Replicas, HaveTheSameBitsWhicheverRankHadThem) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const int64_t rows = 1 + static_cast<int64_t>(seed) % 17 * 5;
      const int64_t columns = 37 + static_cast<int64_t>(seed) % 7 * 99;
      DT_ASSIGN_OR_RETURN(
          const DistributedTensor fused,
          RandomNormal(context, mesh, {Shard(0)}, {1, rows, 3 * columns}, {.seed = seed}));
      DT_ASSIGN_OR_RETURN(
          const DistributedTensor weight,
          RandomNormal(context, mesh, {Replicate()}, {columns, columns}, {.seed = seed + 1}));
      DT_ASSIGN_OR_RETURN(const DistributedTensor part, Slice(fused, 2, 0, columns));
      DT_ASSIGN_OR_RETURN(const DistributedTensor whole, part.Redistribute({Replicate()}));
      for (const TensorOr& y : {Sum(whole, {0, 1, 2}), Mean(whole, {1}), MatMul(whole, weight)}) {
        DT_RETURN_IF_ERROR(y.status());
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToHost<float>(y->local()));
        const char* const bytes = reinterpret_cast<const char*>(values.data());
        DT_ASSIGN_OR_RETURN(const auto all,
                            GatherBytes(context, {bytes, values.size() * sizeof(float)}));
        EXPECT_EQ(all[1], all[0]) << y->ToString() << " of " << rows << " x " << columns;
      }
    }
    return absl::OkStatus();
  }));
}

TEST(Handles, OneRankMayKeepOne) {
  for (int moves = 0; moves <= 4; ++moves) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) { return KeepOnOneRank(context, moves); }))
        << moves << " moves";
  }
}

// The last rank has an empty shard, of which no two elements have one place.
TEST(Expand, IsWrittenToByNobody) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=3"));
    DT_ASSIGN_OR_RETURN(DistributedTensor w,
                        Full(context, mesh, {Shard(1)}, {1, 2}, DType::kF32, 3));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    const TensorOr loss = Sum(Mul(w, w), {0, 1});
    DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Expand(w.Detach(), {4, 2}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor part, Slice(wide.Detach(), 0, 1, 3));
    for (const DistributedTensor& tensor : {wide, part}) {
      EXPECT_THAT(BeforeWrite(tensor), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr("one place in memory")));
    }
    return Backward(loss);
  }));
}

// --- Stand-ins, with which ranks ask for what lies on others.

struct Stages {
  Layout from, to;  // replicated, on rank 0 and on rank 1
};
using Body = std::function<absl::Status(Context&, const Stages&)>;
void OnStages(const Body& body) {
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh first, DeviceMesh::Parse("tp=1@0"));
    DT_ASSIGN_OR_RETURN(const DeviceMesh second, DeviceMesh::Parse("tp=1@1"));
    return body(context, {Layout::Replicated(first, 1), Layout::Replicated(second, 1)});
  }));
}

// Sends x, and on rank 1 compares what comes.
absl::Status Send(Context& context, const Stages& stages, const DistributedTensor& x, float value) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, x.Redistribute(stages.to));
  if (context.rank() == 0) return absl::OkStatus();
  EXPECT_THAT(ToGlobal<float>(y), IsOkAndHolds(Each(value)));
  return absl::OkStatus();
}

TEST(StandIn, MayServeForAllThatComes) {
  OnStages([](Context& context, const Stages& stages) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor kept,
                        Full(context, stages.from, {2}, DType::kF32, 0));
    for (int step = 1; step <= 3; ++step) {
      DistributedTensor x = kept;
      if (context.rank() == 0) {
        DT_ASSIGN_OR_RETURN(x, Full(context, stages.from, {2}, DType::kF32, step));
      }
      DT_RETURN_IF_ERROR(Send(context, stages, x, static_cast<float>(step)));
    }
    return absl::OkStatus();
  });
}

TEST(StandIn, KnowsOfNoWriteToItsTensor) {
  OnStages([](Context& context, const Stages& stages) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Full(context, stages.from, {2}, DType::kF32, 0));
    for (int step = 1; step <= 3; ++step) {
      if (context.rank() == 0) {
        DT_RETURN_IF_ERROR(BeforeWrite(x));
        DT_RETURN_IF_ERROR(kernels::Fill(context.device(), x.local(), step));
      }
      DT_RETURN_IF_ERROR(Send(context, stages, x, static_cast<float>(step)));
    }
    return absl::OkStatus();
  });
}

TEST(StandIn, MayBeAnotherEachTime) {
  OnStages([](Context& context, const Stages& stages) -> absl::Status {
    DistributedTensor x;
    for (int step = 1; step <= 3; ++step) {
      if (context.rank() == 1 || step == 1) {
        DT_ASSIGN_OR_RETURN(x, Full(context, stages.from, {2}, DType::kF32, 7));
      }
      DT_RETURN_IF_ERROR(Send(context, stages, x, 7));
    }
    return absl::OkStatus();
  });
}

// To a mesh of all three ranks, of what two have, `moves` redistributions behind a transpose. What
// comes is alike on all: whether it remembers, and may be written to.
absl::Status WidenToAll(Context& context, int moves) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh all, DeviceMesh::Parse("tp=3"));
  DT_ASSIGN_OR_RETURN(const DeviceMesh two, DeviceMesh::Parse("tp=2@0..1"));
  const auto layout = [&](int i) {
    return *Layout::FromPlacements(two, {i % 2 == 0 ? Replicate() : Shard(0)}, {2, 3});
  };
  DistributedTensor x;
  if (context.rank() < 2) {
    DT_ASSIGN_OR_RETURN(x, Full(context, Layout::Replicated(two, 2), {3, 2}, DType::kF32, 5));
    DT_ASSIGN_OR_RETURN(x, Transpose(x, 0, 1));
    for (int i = 1; i <= moves; ++i) {
      DT_ASSIGN_OR_RETURN(x, x.Redistribute(layout(i)));
    }
  } else {
    DT_ASSIGN_OR_RETURN(x, Full(context, layout(moves), {2, 3}, DType::kF32, 0));
  }
  DT_ASSIGN_OR_RETURN(const DistributedTensor y,
                      x.Redistribute(*Layout::FromPlacements(all, {Shard(1)}, {2, 3})));
  for (int i = 0; i < 2; ++i) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole, y.Redistribute({Replicate()}));
    EXPECT_THAT(ToGlobal<float>(whole), IsOkAndHolds(Each(5)));
    DT_ASSIGN_OR_RETURN(const DistributedTensor flat, Reshape(whole, {6}));
    EXPECT_THAT(BeforeWrite(flat), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  return absl::OkStatus();
}

TEST(StandIn, SaysNothingOfHowItsTensorCameToBe) {
  for (int moves = 0; moves <= 3; ++moves) {
    DT_EXPECT_OK(RunRanks(3, [&](Context& context) { return WidenToAll(context, moves); }))
        << moves << " moves";
  }
}

TEST(StandIn, HasNoResultsThatARecomputeKept) {
  for (const bool keeps : {false, true}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh all, DeviceMesh::Parse("tp=2"));
      DT_ASSIGN_OR_RETURN(const DeviceMesh one, DeviceMesh::Parse("tp=1@0"));
      const Layout from = Layout::Replicated(one, 1), to = Layout::Replicated(all, 1);
      DT_ASSIGN_OR_RETURN(DistributedTensor w, Full(context, to, {2}, DType::kF32, 3));
      DT_RETURN_IF_ERROR(w.set_requires_grad(true));
      DT_ASSIGN_OR_RETURN(const DistributedTensor kept, Full(context, from, {2}, DType::kF32, 5));
      const auto fn = [&](absl::Span<const DistributedTensor> given) -> TensorsOr {
        const TensorOr sent =
            context.rank() == 0 ? Scale(kept, 2) : Full(context, from, {2}, DType::kF32, 0);
        DT_RETURN_IF_ERROR(sent.status());
        DT_ASSIGN_OR_RETURN(const DistributedTensor factor, sent->Redistribute(to));
        DT_ASSIGN_OR_RETURN(const DistributedTensor y, Mul(given[0], factor));
        return std::vector<DistributedTensor>{y};
      };
      DT_ASSIGN_OR_RETURN(const auto y, Recompute({w}, fn, {.keep_collectives = keeps}));
      DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0})));
      EXPECT_THAT(ToGlobal<float>(w.grad()), IsOkAndHolds(Each(10)));
      return absl::OkStatus();
    }));
  }
}

// --- Random programs on several meshes, some of which have a part of the ranks.

class MeshProgram {
 public:
  MeshProgram(Context& context, uint32_t seed) : context_(context), random_(seed) {
    const auto mesh = [](const char* text, const std::vector<int>& ranks) {
      const DeviceMesh all = DeviceMesh::Parse(text).value();
      return ranks.empty() ? all : all.OnRanks(ranks).value();
    };
    meshes_ = {
        mesh("a=4", {}),  mesh("a=2,b=2", {}),    mesh("x=2", {0, 1}),          mesh("y=2", {3, 2}),
        mesh("z=1", {3}), mesh("w=3", {0, 2, 3}), mesh("p=2,q=2", {3, 1, 0, 2})};
  }

  absl::Status Run() {
    DT_RETURN_IF_ERROR(Make());
    for (int i = 0; i < 30; ++i) DT_RETURN_IF_ERROR(Act());
    for (const Item& item : items_) DT_RETURN_IF_ERROR(Check(item));
    return absl::OkStatus();
  }

 private:
  struct Item {
    Layout layout;
    Dims shape;
    std::vector<float> values;
    DistributedTensor tensor;  // a stand-in where this rank is not on its mesh
  };

  int Below(size_t n) { return static_cast<int>(random_() % n); }
  bool IsOn(const DeviceMesh& mesh) const { return mesh.Contains(context_.rank()); }

  Layout AnyLayout(const DeviceMesh& mesh, const Dims& shape, bool may_be_partial) {
    const auto all = AllPlacements(static_cast<int>(shape.size()), SumAndAverage(), AllOrders());
    while (true) {
      const Layout layout = DrawLayout(mesh, shape, [&] { return all[Below(all.size())]; });
      if (may_be_partial || !layout.is_partial()) return layout;
    }
  }

  absl::StatusOr<DistributedTensor> StandIn(const Item& item) {
    DT_ASSIGN_OR_RETURN(const Layout whole, item.layout.WithPartial({}));
    DT_ASSIGN_OR_RETURN(DistributedTensor made, Full(context_, whole, item.shape, DType::kF32, 0));
    return item.layout.is_partial() ? made.Redistribute(item.layout) : made;
  }

  absl::Status Make() {
    const DeviceMesh& mesh = meshes_[Below(meshes_.size())];
    Item item;
    item.shape = {1 + Below(5), 1 + Below(5)};
    if (!items_.empty() && Below(3) > 0) item.shape = items_[Below(items_.size())].shape;
    item.layout = AnyLayout(mesh, item.shape, /*may_be_partial=*/false);
    for (int64_t i = 0; i < NumElements(item.shape); ++i) {
      item.values.push_back(static_cast<float>(Below(19) - 9));
    }
    DT_ASSIGN_OR_RETURN(item.tensor,
                        Distribute<float>(context_, item.layout, item.shape, item.values));
    items_.push_back(std::move(item));
    return absl::OkStatus();
  }

  absl::Status MoveIt(const Item& from) {
    Item to = from;
    const DeviceMesh& mesh = meshes_[Below(meshes_.size())];
    to.layout = AnyLayout(mesh, to.shape, /*may_be_partial=*/true);
    const bool async = Below(3) == 0;
    if (IsOn(mesh) || IsOn(from.layout.mesh())) {
      DT_ASSIGN_OR_RETURN(to.tensor, from.tensor.Redistribute(to.layout, {.async = async}));
      if (mesh != from.layout.mesh()) DT_RETURN_IF_ERROR(WaitFor(to.tensor));
    } else {
      DT_ASSIGN_OR_RETURN(to.tensor, StandIn(to));
    }
    items_.push_back(std::move(to));
    return absl::OkStatus();
  }

  // x + 2 y, of its shape and mesh.
  absl::Status Compute(const Item& x) {
    std::vector<const Item*> others;
    for (const Item& item : items_) {
      if (item.shape == x.shape && item.layout.mesh() == x.layout.mesh()) others.push_back(&item);
    }
    const Item& y = *others[Below(others.size())];
    Item sum = x;
    for (size_t i = 0; i < x.values.size(); ++i) sum.values[i] += 2 * y.values[i];
    sum.layout = AnyLayout(x.layout.mesh(), sum.shape, /*may_be_partial=*/true);
    if (IsOn(x.layout.mesh())) {
      DT_ASSIGN_OR_RETURN(const auto added, Add(x.tensor, Scale(y.tensor, 2)));
      DT_ASSIGN_OR_RETURN(sum.tensor, added.Redistribute(sum.layout));
    } else {
      DT_ASSIGN_OR_RETURN(sum.tensor, StandIn(sum));
    }
    items_.push_back(std::move(sum));
    return absl::OkStatus();
  }

  absl::Status Write(Item& x) {
    if (x.layout.is_partial()) return absl::OkStatus();
    const DistributedTensor alias = Below(2) == 0 ? x.tensor.Detach() : x.tensor;
    const auto value = static_cast<float>(Below(9));
    std::fill(x.values.begin(), x.values.end(), value);
    if (!IsOn(x.layout.mesh())) return absl::OkStatus();
    DT_RETURN_IF_ERROR(BeforeWrite(alias));
    return kernels::Fill(context_.device(), alias.local(), value);
  }

  absl::Status Act() {
    const int at = Below(items_.size()), what = Below(8);
    if (what == 0) return Make();
    if (what <= 3) return MoveIt(Item(items_[at]));
    if (what == 4) return Compute(Item(items_[at]));
    if (what == 5) return Write(items_[at]);
    if (what == 6) return Check(items_[at]);
    if (items_.size() >= 4) items_.erase(items_.begin() + at);
    return absl::OkStatus();
  }

  absl::Status Check(const Item& item) {
    if (!IsOn(item.layout.mesh())) return absl::OkStatus();
    DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(item.tensor));
    bool same = all.size() == item.values.size();
    for (size_t i = 0; same && i < all.size(); ++i) {
      same = std::abs(all[i] - item.values[i]) <= 1e-3 * (1 + std::abs(all[i]));
    }
    return same ? absl::OkStatus()
                : absl::InternalError(absl::StrCat("wrong values of ", item.tensor.ToString()));
  }

  Context& context_;
  std::mt19937 random_;
  std::vector<DeviceMesh> meshes_;
  std::vector<Item> items_;
};

int Number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

TEST(Meshes, OfRandomPrograms) {
  const int first = Number("DTENSOR_MESH_SEED", 1), count = Number("DTENSOR_MESH_PROGRAMS", 500);
  for (int seed = first; seed < first + count; ++seed) {
    ASSERT_THAT(RunRanks(4, [&](Context& context) { return MeshProgram(context, seed).Run(); }),
                IsOk())
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace dtensor
