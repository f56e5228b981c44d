// CheckReplicas finds what differs, and nothing else.
#include "dtensor/tensor/check_replicas.h"

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, DistributedTensor>;

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

DeviceMesh Mesh(const std::string& text) { return *DeviceMesh::Parse(text); }

TensorOr Random(Context& context, const std::string& mesh, const Placements& placements, Dims shape,
                DType dtype = DType::kF32) {
  DT_ASSIGN_OR_RETURN(const auto wide, RandomNormal(context, Mesh(mesh), placements, shape, {}));
  return Cast(wide, dtype);
}

// On one rank, of a tensor's own elements alone.
absl::Status Zero(const DistributedTensor& tensor) {
  DT_RETURN_IF_ERROR(BeforeWrite(tensor));
  return kernels::Fill(tensor.context().device(), tensor.local(), 0);
}

void OnEachDevice(int ranks, const std::function<absl::Status(Context&)>& fn) {
  for (const Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    DT_EXPECT_OK(RunRanks(ranks, fn, {.device = kind, .max_delay_us = 20}));
  }
}

TEST(CheckReplicas, FindsNothingInSoundTensors) {
  OnEachDevice(8, [](Context& context) -> absl::Status {
    DT_RETURN_IF_ERROR(CheckReplicas(context, {}));
    Tensors tensors;
    const auto add = [&](const TensorOr& tensor) -> absl::Status {
      DT_ASSIGN_OR_RETURN(tensors[absl::StrCat(tensors.size())], tensor);
      return absl::OkStatus();
    };
    const std::vector<Placement> all = {Replicate(), Shard(0), Shard(1)};
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
      for (const Placement& dp : all) {
        for (const Placement& tp : all) {
          DT_RETURN_IF_ERROR(add(Random(context, "dp=2,tp=4", {dp, tp}, {5, 7}, dtype)));
        }
      }
    }
    DT_RETURN_IF_ERROR(add(Random(context, "dp=2,tp=4", {Replicate(), Shard(0)}, {0, 3})));
    DT_RETURN_IF_ERROR(add(Random(context, "dp=2,tp=4", {Replicate(), Replicate()}, {})));
    DT_RETURN_IF_ERROR(add(Random(context, "dp=2@1,6", {Replicate()}, {3})));
    DT_RETURN_IF_ERROR(add(Random(context, "tp=1@3", {Replicate()}, {3})));
    DT_ASSIGN_OR_RETURN(const auto x,
                        Random(context, "dp=2,tp=4", {Replicate(), Shard(0)}, {8, 4}));
    DT_RETURN_IF_ERROR(add(Transpose(x, 0, 1)));             // other strides
    DT_RETURN_IF_ERROR(add(MatMul(Transpose(x, 0, 1), x)));  // Partial on tp
    return CheckReplicas(context, tensors);
  });
}

TEST(CheckReplicas, NamesTensorAndRanks) {
  OnEachDevice(8, [](Context& context) -> absl::Status {
    Tensors tensors;
    for (const std::string name : {"a", "b", "c"}) {
      DT_ASSIGN_OR_RETURN(tensors[name],
                          Random(context, "dp=2,tp=4", {Replicate(), Shard(0)}, {5, 7}));
    }
    if (context.rank() == 5) {
      DT_RETURN_IF_ERROR(Zero(tensors["b"]));
      DT_RETURN_IF_ERROR(Zero(tensors["c"]));
    }
    EXPECT_THAT(CheckReplicas(context, tensors),
                StatusIs(kDataLoss, AllOf(HasSubstr("\"b\" ([5, 7] f32 on"),
                                          HasSubstr("rank 5 has other bits than rank 1 of"),
                                          HasSubstr("so do 2 of 3 tensors"))));
    tensors.erase("b");
    tensors.erase("c");
    return CheckReplicas(context, tensors);
  });
}

// A rank may differ in the sign of a zero alone.
TEST(CheckReplicas, ComparesBits) {
  OnEachDevice(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto zero,
                        Full(context, Mesh("a=4"), {Replicate()}, {9}, DType::kF32, 0));
    DT_RETURN_IF_ERROR(CheckReplicas(context, {{"zero", zero}}));
    if (context.rank() == 0) {
      DT_RETURN_IF_ERROR(BeforeWrite(zero));
      DT_RETURN_IF_ERROR(kernels::Fill(context.device(), zero.local(), -0.0));
    }
    EXPECT_THAT(CheckReplicas(context, {{"zero", zero}}),
                StatusIs(kDataLoss, AllOf(HasSubstr("ranks 1, 2, 3 have other bits than rank 0"),
                                          HasSubstr("so does 1 of 1"))));
    return absl::OkStatus();
  });
}

// Each element on each rank that has a replica, on random meshes.
TEST(CheckReplicas, FindsEachElementOnEachRank) {
  std::mt19937 random(7);
  for (int n = 0; n < 40; ++n) {
    const std::string mesh =
        std::vector<std::string>{"a=2,b=3", "a=6", "a=3@1,3,5", "a=2,b=2@0,2..4"}[n % 4];
    const bool two = mesh.find("b=") != mesh.npos;
    const Placement first = two ? Shard(static_cast<int>(random() % 2)) : Replicate();
    const Placements placements = two ? Placements{first, Replicate()} : Placements{first};
    const int victim = Mesh(mesh).RankOf(static_cast<int>(random() % Mesh(mesh).size()));
    const auto pick = random();
    DT_EXPECT_OK(RunRanks(6, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto x, Random(context, mesh, placements, {4, 3}));
      DT_RETURN_IF_ERROR(CheckReplicas(context, {{"x", x}}));
      bool changed = false;
      if (context.rank() == victim && x.local().numel() > 0) {
        DT_RETURN_IF_ERROR(BeforeWrite(x));
        auto* const values = static_cast<float*>(x.local().raw());
        values[pick % x.local().numel()] += 1;
        changed = true;
      }
      const absl::Status status = CheckReplicas(context, {{"x", x}});
      EXPECT_THAT(status, StatusIs(kDataLoss, HasSubstr(absl::StrCat(victim)))) << mesh << changed;
      return absl::OkStatus();
    }));
  }
}

TEST(CheckReplicas, IsForTheSameTensorsOnAllRanks) {
  OnEachDevice(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Random(context, "dp=2", {Replicate()}, {3}));
    Tensors tensors = {{"x", x}};
    if (context.rank() == 1) tensors["y"] = x;
    EXPECT_THAT(CheckReplicas(context, tensors),
                Refuses(HasSubstr("rank 1 gives other tensors than rank 0")));
    EXPECT_THAT(CheckReplicas(context, {{"none", DistributedTensor()}}),
                Refuses(HasSubstr("\"none\" is undefined")));
    tensors = {{"x", context.rank() == 1 ? DistributedTensor() : x}};  // on one rank alone
    EXPECT_THAT(CheckReplicas(context, tensors),
                Refuses(AllOf(HasSubstr("rank 1"), HasSubstr("\"x\" is undefined"))));
    return CheckReplicas(context, {{"x", x}});
  });
  DT_EXPECT_OK(Simulate(0, 2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Random(context, "dp=2", {Replicate()}, {3}));
    EXPECT_THAT(CheckReplicas(context, {{"x", x}}),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
