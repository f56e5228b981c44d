// Styles on modules and of types that users write.
#include "dtensor/parallel_plans/styles.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Applies `plan` to a Model on every rank of `mesh_text`; what Explain says of it, or the first
// error.
template <typename Model>
absl::StatusOr<std::string> Explained(absl::string_view mesh_text, const ParallelPlan& plan) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  std::string text;
  DT_RETURN_IF_ERROR(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
    Model model;
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
    if (context.rank() == 0) text = Explain(model);
    return absl::OkStatus();
  }));
  return text;
}

// --- Modules of users.

// y = (x weight^T + bias) * scale, which says what its dimensions are; `scale` is neither.
class Affine : public Module {
 public:
  Affine() {
    AddParameter("weight", weight_, {DimRole::kOutput, DimRole::kInput});
    AddParameter("bias", bias_, {DimRole::kOutput});
    AddParameter("scale", scale_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return Mul(Add(Linear(x, weight_->tensor), bias_->tensor), scale_->tensor);
  }

 private:
  const ParameterPtr weight_ = Parameter::New({12, 8}, ParameterInit::Normal(1), {3, 2}),
                     bias_ = Parameter::New({12}, ParameterInit::Normal(1), {3}),
                     scale_ = Parameter::New({1}, ParameterInit::Constant(2));
};

// Rows of a table, stored [dim, rows].
class Table : public Module {
 public:
  Table() { AddParameter("table", table_, {DimRole::kOutput, DimRole::kRow}); }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override {
    return Embedding(ids, Transpose(table_->tensor, 0, 1));
  }

 private:
  const ParameterPtr table_ = Parameter::New({4, 6}, ParameterInit::Normal(1));
};

// Has parameters, and says nothing of them.
class Silent : public Module {
 public:
  Silent() { AddParameter("weight", weight_); }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return Linear(x, weight_->tensor); }

 private:
  const ParameterPtr weight_ = Parameter::New({4, 4}, ParameterInit::Normal(1));
};

TEST(UsersModule, IsSplitAsItsFactsSay) {
  EXPECT_THAT(Explained<Affine>("tp=2", ParallelPlan({{"", Colwise("tp")}})),
              IsOkAndHolds("(model): weight [12, 8] as [tp x 3] []; bias [12] as [tp x 3]; "
                           "scale [1] as []; in R on tp\n"));
  EXPECT_THAT(Explained<Affine>("tp=2", ParallelPlan({{"", Rowwise("tp", Shard(1))}})),
              IsOkAndHolds("(model): weight [12, 8] as [] [tp x 2]; bias [12] as []; "
                           "scale [1] as []; out S(1) on tp\n"));
  EXPECT_THAT(Explained<Affine>("tp=2", ParallelPlan({{"", ShardParameters("tp")}})),
              IsOkAndHolds("(model): weight [12, 8] as [tp x 3] []; bias [12] as [tp x 3]; "
                           "scale [1] as []\n"));
  EXPECT_THAT(Explained<Table>("tp=2", ParallelPlan({{"", Colwise("tp")}})),
              IsOkAndHolds("(model): table [4, 6] as [tp] []; in R on tp\n"));
  EXPECT_THAT(Explained<Table>("tp=2", ParallelPlan({{"", Rowwise("tp")}})),
              IsOkAndHolds("(model): table [4, 6] as [] [tp]; out R on tp\n"));
}

// A bias that was added on each rank would come twice.
TEST(UsersModule, ComputesTheSameHoweverItIsSplit) {
  std::vector<double> whole;
  for (const ParallelPlan& plan :
       {ParallelPlan(), ParallelPlan({{"", Colwise("tp")}}), ParallelPlan({{"", Rowwise("tp")}}),
        ParallelPlan({{"", Rowwise("tp", Shard(1))}})}) {
    EXPECT_THAT(
        RunRanks(2,
                 [&](Context& context) -> absl::Status {
                   DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                   Affine model;
                   model.SetDType(DType::kF64);
                   DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
                   const RandomOptions random = {.seed = 2, .dtype = DType::kF64};
                   DT_ASSIGN_OR_RETURN(const DistributedTensor y,
                                       model(RandomNormal(context, Layout::Replicated(mesh, 3),
                                                          {2, 4, 8}, random)));
                   DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(y));
                   if (context.rank() != 0) return absl::OkStatus();
                   if (whole.empty()) whole = values;
                   EXPECT_THAT(values, testing::Pointwise(testing::DoubleNear(1e-12), whole));
                   return absl::OkStatus();
                 }),
        IsOk())
        << plan.ToString();
  }
}

TEST(UsersModule, IsRefusedWhereItSaysNothingOfWhatAStyleSplits) {
  EXPECT_THAT(Explained<Silent>("tp=2", ParallelPlan({{"", Colwise("tp")}})),
              Refuses(AllOf(HasSubstr("plan line {\"\", Colwise(\"tp\")}: at \"\""),
                            HasSubstr("weight [4, 4]"), HasSubstr("output features"),
                            HasSubstr("DimRole (module.h)"))));
  EXPECT_THAT(Explained<Silent>("tp=2", ParallelPlan({{"", Rowwise("tp")}})),
              Refuses(HasSubstr("input features or rows of a table")));
  EXPECT_THAT(Explained<Silent>("tp=2", ParallelPlan({{"", SequenceParallel("tp")}})), IsOk());
}

// --- Styles of users.

// Shard(dim) of all parameters.
struct SplitAt {
  std::string axis;
  int dim = 0;
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const {
    StyleWishes wishes;
    wishes.parameters = ReplicateAll(site.module);
    for (auto& [name, placement] : wishes.parameters) placement = Shard(dim);
    return wishes;
  }
  std::string ToString() const { return absl::StrCat("SplitAt(\"", axis, "\", ", dim, ")"); }
  friend bool operator==(const SplitAt&, const SplitAt&) = default;
};

// Prints like Colwise, and is another type: wants what it is given, and whole activations.
struct Posing {
  std::string axis;
  StyleWishes wishes;
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const {
    StyleWishes all = wishes;
    all.edges.push_back(site.Edge(Replicate(), Replicate()));
    return all;
  }
  std::string ToString() const { return Colwise(axis).ToString(); }
  friend bool operator==(const Posing& a, const Posing& b) { return a.axis == b.axis; }
};

TEST(UsersStyle, IsAValueToldApartByItsType) {
  const ParallelStyle style = SplitAt{"tp", 1};
  EXPECT_EQ(style, ParallelStyle(SplitAt{"tp", 1}));
  EXPECT_NE(style, ParallelStyle(SplitAt{"tp", 0}));
  ASSERT_NE(style.As<SplitAt>(), nullptr);
  EXPECT_EQ(style.As<SplitAt>()->dim, 1);
  EXPECT_EQ(style.As<Colwise>(), nullptr);
  const ParallelStyle colwise = Colwise("tp"), posing = Posing{"tp", {}};
  EXPECT_EQ(posing.ToString(), colwise.ToString());
  EXPECT_NE(posing, colwise);
  EXPECT_EQ(posing.axis(), "tp");
}

TEST(UsersStyle, GoesIntoAPlanAsOursDo) {
  const ParallelPlan plan({{"", SplitAt{"a", 0}}, {"", Posing{"b", {}}}});
  EXPECT_EQ(plan.ToString(), "{\"\", SplitAt(\"a\", 0)}\n{\"\", Colwise(\"b\")}");
  EXPECT_THAT(Explained<Silent>("a=2,b=2", plan),
              IsOkAndHolds("(model): weight [4, 4] as [a] []; in R on b; out R on b\n"));
}

TEST(UsersStyle, IsRefusedWhereItWantsWhatCannotBe) {
  const auto refuses = [](const ParallelStyle& style, const std::string& line, auto why) {
    EXPECT_THAT(Explained<Silent>("tp=2", ParallelPlan({{"", style}})),
                Refuses(AllOf(HasSubstr("plan line {\"\", " + line), HasSubstr(why))));
  };
  const auto wanting = [](const std::string& name, const Placement& placement) {
    return Posing{"tp", {.parameters = {{name, placement}}}};
  };
  const std::string posing = "Colwise(\"tp\")}: at \"\": ";
  refuses(wanting("wieght", Replicate()), posing, "'wieght', which the module lacks");
  refuses(wanting("weight", Partial()), posing, "'weight' as P(sum)");
  refuses(wanting("weight", Shard(0, ShardOrder::Zigzag())), posing, "'weight' as S(0,zigzag)");
  refuses(SplitAt{"tp", 2}, "SplitAt(\"tp\", 2)}: ", "S(2) is out of range");
}

// Two lines split one dimension, the second by counting from the end.
TEST(UsersStyle, SplitsBetweenUnits) {
  struct Units : Module {
    Units() { AddParameter("weight", weight); }
    TensorOr Forward(const DistributedTensor& x) override { return x; }
    const ParameterPtr weight = Parameter::New({24}, ParameterInit::Constant(1), {4});
  };
  EXPECT_THAT(
      Explained<Units>("a=2,b=3", ParallelPlan({{"", SplitAt{"a", 0}}, {"", SplitAt{"b", -1}}})),
      IsOkAndHolds("(model): weight [24] as [a,b x 4]\n"));
}

// --- Rowwise.

// A row-parallel product with a bias inside the module, or added to what the module returns.
class Biased : public Module {
 public:
  explicit Biased(bool inside) : inside_(inside) {
    AddParameter("weight", weight_, {DimRole::kOutput, DimRole::kInput});
    if (inside) AddParameter("bias", bias_, {DimRole::kOutput});
  }
  const ParameterPtr& bias() const { return bias_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr y = Linear(x, weight_->tensor);
    return inside_ ? Add(y, bias_->tensor) : y;
  }

 private:
  const bool inside_;
  const ParameterPtr weight_ = Parameter::New({6, 8}, ParameterInit::Constant(2)),
                     bias_ = Parameter::New({6}, ParameterInit::Constant(3));
};
class WithBias : public Module {
 public:
  explicit WithBias(bool inside) : inside_(inside), down_(inside) {
    AddChild("down", &down_);
    if (!inside) AddParameter("bias", down_.bias());
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr y = down_(x);
    return inside_ ? y : Add(y, down_.bias()->tensor);
  }

 private:
  const bool inside_;
  Biased down_;
};

TEST(Rowwise, ABiasAfterTheEdgeKeepsTheReduceScatter) {
  for (const bool inside : {false, true}) {
    EXPECT_THAT(
        RunRanks(2,
                 [&](Context& context) -> absl::Status {
                   DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                   WithBias model(inside);
                   const ParallelPlan plan({{"down", Rowwise("tp", Shard(1))}});
                   DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
                   const TensorOr x = Full(context, mesh, {Shard(2)}, {2, 4, 8}, DType::kF32, 1);
                   const TensorOr y = model(x);
                   DT_RETURN_IF_ERROR(y.status());
                   EXPECT_EQ(y->layout().ToString(), "[] [tp] []");
                   const TrafficTable traffic = context.communicator().traffic();
                   EXPECT_EQ(traffic.size(), 1);
                   const auto kind =
                       inside ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
                   EXPECT_EQ(traffic.count({"tp", kind}), 1) << inside;
                   EXPECT_EQ(
                       Explain(model).find("all-reduced inside the module") != std::string::npos,
                       inside)
                       << Explain(model);
                   DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(*y));
                   EXPECT_THAT(values, testing::Each(8 * 2 + 3));  // not 22: the bias once
                   return absl::OkStatus();
                 }),
        IsOk());
  }
}

}  // namespace
}  // namespace dtensor
