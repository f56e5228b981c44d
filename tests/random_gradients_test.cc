// Law 3 for programs: random operators on random layouts, with redistributions between them and
// tensors that are read several times, have the loss and the gradients of one rank. DTENSOR_SEED
// repeats the slow one, DTENSOR_SECONDS is how long it lasts.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/slow_test_time.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/op_cases.h"
#include "dtensor/testing/random_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int kSteps = 8;

// What the program does follows from its seed alone, where its tensors lie from the mesh, too.
class Program {
 public:
  Program(Context& context, const DeviceMesh& mesh, uint32_t seed)
      : context_(context), mesh_(mesh), choices_(seed), layouts_(seed + 1), seed_(seed) {}

  // The loss, and the gradient of each leaf.
  absl::StatusOr<std::vector<std::vector<double>>> Run() {
    DT_RETURN_IF_ERROR(Leaf({2 + Below(4), 1 + Below(4)}).status());
    for (int i = 0; i < kSteps; ++i) {
      DT_ASSIGN_OR_RETURN(DistributedTensor y, Step(pool_[Below(pool_.size())]));
      text_ += absl::StrCat(" -> ", y.ToString());
      if (Below(3) == 0) {
        DT_ASSIGN_OR_RETURN(y, y.Redistribute(AnyLayout(y.shape())));
      }
      pool_.push_back(std::move(y));
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Loss());
    DT_ASSIGN_OR_RETURN(const std::vector<double> value, GlobalValues(loss));
    std::vector<std::vector<double>> out = {value};
    DT_RETURN_IF_ERROR(Backward(loss));
    for (const DistributedTensor& leaf : leaves_) {
      out.emplace_back();
      if (!leaf.grad().defined()) continue;
      DT_ASSIGN_OR_RETURN(out.back(), GlobalValues(leaf.grad()));
    }
    return out;
  }

  const std::string& text() const { return text_; }

 private:
  int64_t Below(size_t n) { return static_cast<int64_t>(choices_() % n); }

  Layout AnyLayout(const Dims& shape) {
    const auto all = AllPlacements(static_cast<int>(shape.size()), ReduceOp::kSum, AllOrders());
    return DrawLayout(mesh_, shape, [&] { return all[layouts_() % all.size()]; });
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
    pool_.push_back(leaf);
    return leaf;
  }

  // Of x's shape, or broadcast to it.
  TensorOr Partner(const DistributedTensor& x) {
    const DistributedTensor other = pool_[Below(pool_.size())];
    if (other.shape() == x.shape()) return other;
    return Leaf({Below(2) == 0 ? 1 : x.shape()[0], Below(2) == 0 ? 1 : x.shape()[1]});
  }

  // x and all results have two dimensions.
  TensorOr Step(const DistributedTensor x) {
    const int64_t rows = x.shape()[0], columns = x.shape()[1];
    const int op = static_cast<int>(Below(21));
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
        return RmsNorm(x, Reshape(Leaf({1, columns}), {columns}), .1);
      case 6:
        return Reshape(Sum(x, {0}), {1, columns});
      case 7:
        return Reshape(Mean(x, {1}), {rows, 1});
      case 8:
        return Linear(x, Leaf({1 + Below(4), columns}));
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
        const TensorOr weight = Reshape(Leaf({1, columns}), {columns});
        return LayerNorm(x, weight, Reshape(Leaf({1, columns}), {columns}), .1);
      }
      default:
        return Concat({x, Scale(x, -1), Silu(x)}, static_cast<int>(Below(2)));
    }
  }

  TensorOr Loss() {
    TensorOr loss = DistributedTensor();
    for (size_t i = pool_.size() - 3; i < pool_.size(); ++i) {
      const TensorOr part = Sum(Mul(pool_[i], Leaf(pool_[i].shape(), /*wanted=*/false)), {0, 1});
      loss = loss->defined() ? Add(loss, part) : part;
      DT_RETURN_IF_ERROR(loss.status());
    }
    return loss;
  }

  Context& context_;
  const DeviceMesh& mesh_;
  std::mt19937 choices_, layouts_;
  uint32_t seed_;
  std::vector<DistributedTensor> leaves_, pool_;
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

void Try(const char* mesh_text, uint32_t first, int programs) {
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  std::vector<std::vector<std::vector<double>>> wanted;
  const DeviceMesh one;
  DT_ASSERT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    for (int i = 0; i < programs; ++i) {
      DT_ASSIGN_OR_RETURN(auto want, Program(context, one, first + 10 * i).Run());
      wanted.push_back(std::move(want));
    }
    return absl::OkStatus();
  }));
  DT_ASSERT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
    for (int i = 0; i < programs; ++i) {
      Program program(context, mesh, first + 10 * i);
      const auto got = program.Run();
      const std::string what =
          absl::StrCat(" of program ", first + 10 * i, " on ", mesh_text, program.text());
      if (!got.ok()) return absl::InternalError(absl::StrCat(got.status().message(), what));
      if (context.rank() == 0) ExpectSame(*got, wanted[i], what);
    }
    return absl::OkStatus();
  }));
}

TEST(RandomGradients, AreThoseOfOneRank) {
  for (const char* mesh : {"a=2", "a=3", "a=2,b=2"}) Try(mesh, 1, 60);
}

TEST(RandomGradients, SlowAreThoseOfOneRank) {
  const char* const meshes[] = {"a=2", "a=5", "a=2,b=2", "a=3,b=2", "a=2,b=2,c=2"};
  const SlowTestTime time;
  TestRandom random;
  int programs = 0;
  for (; time.Left() && !HasFailure(); programs += 100) {
    Try(meshes[random.Below(5)], static_cast<uint32_t>(random.Below(1 << 30)), 100);
  }
  std::cout << programs << " programs\n";
}

}  // namespace
}  // namespace dtensor
