// Windows of sharded dimensions: what moves, and in which layouts; and what is refused.
#include "dtensor/ops/windows.h"

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> Ascending(int64_t n) {
  std::vector<double> values(n);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TensorOr Make(Context& context, const std::string& mesh, const std::string& layout,
              const Dims& shape) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh m, DeviceMesh::Parse(mesh));
  DT_ASSIGN_OR_RETURN(const Layout l, Layout::Parse(m, layout));
  return Distribute<double>(context, l, shape, Ascending(NumElements(shape)));
}

int64_t BytesReceived(Context& context) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) bytes += traffic.bytes;
  return bytes;
}

struct Moved {
  std::string layout;            // of the result
  std::vector<int64_t> forward;  // bytes that each rank receives
  std::vector<int64_t> backward;
  std::vector<double> y, dx;
};

Moved WindowsOn(int ranks, const std::string& mesh, const std::string& layout, const Dims& shape,
                const WindowOptions& options) {
  Moved moved;
  moved.forward.resize(ranks);
  moved.backward.resize(ranks);
  DT_EXPECT_OK(RunRanks(ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(DistributedTensor x, Make(context, mesh, layout, shape));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Windows(x, 0, -1, options));
    moved.forward[context.rank()] = BytesReceived(context);
    const TensorOr loss = Sum(Mul(y, y), {0, 1, 2});
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Backward(loss));
    moved.backward[context.rank()] = BytesReceived(context);
    DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<double>(y));
    DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<double>(x.grad()));
    if (context.rank() == 0) {
      moved.layout = y.layout().ToString();
      moved.y = values;
      moved.dx = gradient;
    }
    return absl::OkStatus();
  }));
  return moved;
}

// Rows of 2 f64: 16 bytes.
TEST(Windows, MoveTheirHalo) {
  const Moved moved = WindowsOn(4, "cp=4", "[cp] []", {8, 2}, {.size = 3, .before = 1});
  EXPECT_EQ(moved.layout, "[cp] [] []");
  EXPECT_EQ(moved.forward, (std::vector<int64_t>{16, 32, 32, 16}));
  EXPECT_EQ(moved.backward, (std::vector<int64_t>{16, 32, 32, 16}));
}

TEST(Windows, MoveNothingIfTheyEndWithTheShard) {
  const Moved moved = WindowsOn(2, "cp=2", "[cp x 2] []", {10, 2}, {.size = 2, .step = 2});
  EXPECT_EQ(moved.layout, "[cp] [] []");
  EXPECT_EQ(moved.forward, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(moved.backward, (std::vector<int64_t>{0, 0}));
}

// A window that reaches over whole shards.
TEST(Windows, ReachSeveralShards) {
  const Moved moved = WindowsOn(4, "cp=4", "[cp] []", {4, 2}, {.size = 3, .before = 2});
  EXPECT_EQ(moved.forward, (std::vector<int64_t>{0, 16, 32, 32}));
  EXPECT_EQ(moved.backward, (std::vector<int64_t>{32, 32, 16, 0}));
}

TEST(Windows, StayInZigzag) {
  const Moved moved = WindowsOn(2, "cp=2", "[cp:zigzag] []", {8, 2}, {.size = 2, .before = 1});
  EXPECT_EQ(moved.layout, "[cp:zigzag] [] []");
  EXPECT_EQ(moved.forward, (std::vector<int64_t>{16, 16}));
}

// Of 12 shards of 2 rows; the exchange that makes them contiguous costs more than the halo.
TEST(Windows, OfManyRoundsAreMadeContiguous) {
  const Moved moved = WindowsOn(2, "cp=2", "[_ x 2(cp)] []", {24, 2}, {.size = 2, .before = 1});
  EXPECT_EQ(moved.layout, "[cp] [] []");
}

TEST(Windows, AreTheSameInEveryLayout) {
  for (const WindowOptions& options :
       {WindowOptions{.size = 3, .before = 1}, WindowOptions{.size = 5, .step = 2, .before = 4},
        WindowOptions{.size = 2, .step = 4, .before = -3, .dilation = 3},
        WindowOptions{.size = 30, .before = 15}}) {
    const Moved want = WindowsOn(1, "cp=1", "[] []", {24, 2}, options);
    for (const char* const layout : {"[cp] []", "[cp x 2] []", "[cp:zigzag] []", "[_ x 4(cp)] []",
                                     "[cp x 4] []", "[_ x 6(cp) x 2] []"}) {
      const Moved moved = WindowsOn(3, "cp=3", layout, {24, 2}, options);
      EXPECT_EQ(moved.y, want.y) << layout;
      EXPECT_EQ(moved.dx, want.dx) << layout;
    }
  }
}

// On each of three ranks one window that has all elements; in 16 bits 256 + 1 + 1 would be 256.
TEST(Windows, AddGradientsInF32) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("cp=3");
    DT_ASSIGN_OR_RETURN(DistributedTensor x, Full(context, mesh, {Shard(0)}, {3}, DType::kBF16, 1));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    const TensorOr weights = Distribute<double>(context, mesh, {Shard(0)}, {3, 1}, {{256, 1, 1}});
    const TensorOr y = Mul(Windows(x, 0, 1, {.size = 5, .before = 2}), Cast(weights, DType::kBF16));
    DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1})));
    DT_ASSIGN_OR_RETURN(const auto wide, Cast(x.grad(), DType::kF64));
    EXPECT_THAT(*ToGlobal<double>(wide), Each(258));
    return absl::OkStatus();
  }));
}

// A sum of convolutions is the convolution of a sum: Partial operands stay so.
TEST(Windows, OfPartialTermsArePartial) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Make(context, "tp=2", "[] [tp]", {4, 6}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor sums, Sum(x, {1}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Windows(sums, 0, 1, {.size = 2, .before = 1}));
    EXPECT_EQ(y.layout().ToString(), "[] [] P(sum: tp)");
    DT_ASSIGN_OR_RETURN(const DistributedTensor with,
                        Windows(sums, 0, 1, {.size = 2, .before = 1, .value = 1}));
    EXPECT_EQ(with.layout().ToString(), "[] []");
    return absl::OkStatus();
  }));
}

TEST(Conv, OfShardedFeaturesIsPartial) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Make(context, "tp=2", "[] [] [tp]", {1, 4, 6}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor w, Make(context, "tp=2", "[] [tp] []", {2, 6, 3}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Conv(x, w, {.before = {1}, .after = {1}}));
    EXPECT_EQ(y.layout().ToString(), "[] [] [] P(sum: tp)");
    EXPECT_EQ(BytesReceived(context), 0);
    return absl::OkStatus();
  }));
}

// Of a convolution without padding: the result is cut, and not the windows, which have 3 times its
// elements.
TEST(Conv, ThatDoesNotFitCutsItsResult) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Make(context, "cp=2", "[] [cp] []", {1, 8, 5}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor w, Make(context, "cp=2", "[] [] []", {2, 5, 3}));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Conv(x, w));
    EXPECT_EQ(y.shape(), (Dims{1, 6, 2}));
    const int64_t halo = context.rank() == 0 ? 2 * 5 * 8 : 0;
    EXPECT_LE(BytesReceived(context), halo + 4 * 2 * 8);
    return absl::OkStatus();
  }));
}

absl::Status OnOneRank(const std::function<TensorOr(Context&)>& call) {
  return RunRanks(1, [&](Context& context) { return call(context).status(); });
}

TEST(Windows, Refusals) {
  const auto windows = [](int dim, int at, const WindowOptions& options) {
    return OnOneRank([&](Context& context) {
      return Windows(Make(context, "tp=1", "[] []", {6, 4}), dim, at, options);
    });
  };
  EXPECT_THAT(windows(0, 1, {.size = 0}), Refuses(HasSubstr("Windows: size 0")));
  EXPECT_THAT(windows(0, 1, {.size = 2, .step = 4}),
              Refuses(AllOf(HasSubstr("step 4 does not divide dimension 0"),
                            HasSubstr("Pad or Slice it first"))));
  EXPECT_THAT(windows(1, 0, {.size = 2}), Refuses(HasSubstr("give a number from 2 to 2")));
  EXPECT_THAT(windows(2, 3, {}), Refuses(HasSubstr("Windows: ")));
  EXPECT_THAT(windows(0, 1, {.size = int64_t{1} << 40, .dilation = int64_t{1} << 40}),
              Refuses(HasSubstr("distances of 2^56 at most")));
}

// What no window has, has no part in any gradient.
TEST(Conv, LeavesOutWhatIsInNoWindow) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("a=1");
    DT_ASSIGN_OR_RETURN(DistributedTensor x,
                        Distribute<double>(context, mesh, {Replicate()}, {3, 1}, {{1, 2, kInf}}));
    DT_ASSIGN_OR_RETURN(DistributedTensor w,
                        Distribute<double>(context, mesh, {Replicate()}, {1, 1, 2}, {{1, 2}}));
    for (DistributedTensor* leaf : {&x, &w}) DT_RETURN_IF_ERROR(leaf->set_requires_grad(true));
    const TensorOr y = Add(Conv(x, w, {.stride = {2}}), MaxPool(x, {.size = {2}}));
    EXPECT_THAT(*ToGlobal<double>(*y), ElementsAre(5 + 2));
    DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1})));
    EXPECT_THAT(*ToGlobal<double>(x.grad()), ElementsAre(1, 2 + 1, 0));
    EXPECT_THAT(*ToGlobal<double>(w.grad()), ElementsAre(1, 2));
    return absl::OkStatus();
  }));
}

// A stride that is longer than x does not make x longer.
TEST(Conv, TakesAnyStride) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Make(context, "a=1", "[] [] []", {1, 4, 1}));
    const PoolOptions far = {.size = {2}, .stride = {int64_t{1} << 40}};
    EXPECT_THAT(*ToGlobal<double>(*MaxPool(x, far)), ElementsAre(2));
    return absl::OkStatus();
  }));
}

// Recomputed, a halo that is kept does not move again.
TEST(Windows, KeepTheirHalo) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    std::vector<int64_t> bytes;
    for (const bool keep : {false, true}) {
      DT_ASSIGN_OR_RETURN(DistributedTensor x, Make(context, "cp=2", "[cp] []", {8, 2}));
      DT_RETURN_IF_ERROR(x.set_requires_grad(true));
      const auto windows = [](absl::Span<const DistributedTensor> o) -> TensorsOr {
        DT_ASSIGN_OR_RETURN(DistributedTensor y, Windows(o[0], 0, 1, {.size = 3, .before = 1}));
        return std::vector<DistributedTensor>{std::move(y)};
      };
      DT_ASSIGN_OR_RETURN(const auto y, Recompute({x}, windows, {.keep_collectives = keep}));
      const TensorOr loss = Sum(y[0], {0, 1, 2});
      context.communicator().ResetTraffic();
      DT_RETURN_IF_ERROR(Backward(loss));
      bytes.push_back(BytesReceived(context));
    }
    EXPECT_EQ(bytes, (std::vector<int64_t>{32, 16}));
    return absl::OkStatus();
  }));
}

// Before anything moves, and by the name that was called.
TEST(Conv, RefusesTypesAndMeshesAtOnce) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x, Make(context, "cp=2", "[] [cp] []", {1, 4, 2}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor w, Make(context, "cp=2", "[] [] []", {2, 2, 3}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor elsewhere,
                        Make(context, "tp=2", "[] [] []", {2, 2, 3}));
    context.communicator().ResetTraffic();
    EXPECT_THAT(Conv(Cast(x, DType::kF32), w),
                Refuses(HasSubstr("Conv: operands have unlike types")));
    EXPECT_THAT(Conv(Cast(x, DType::kI32), Cast(w, DType::kI32)),
                Refuses(HasSubstr("Conv: takes")));
    EXPECT_THAT(Conv(x, elsewhere), Refuses(HasSubstr("Conv: x")));
    EXPECT_THAT(MaxPool(Cast(x, DType::kI64), {.size = {2}}), Refuses(HasSubstr("MaxPool: takes")));
    EXPECT_THAT(AveragePool(x, {.size = {}}),
                Refuses(HasSubstr("AveragePool: there is no window")));
    EXPECT_EQ(BytesReceived(context), 0);
    return absl::OkStatus();
  }));
}

TEST(Conv, Refusals) {
  const auto conv = [](const Dims& x, const Dims& w, const ConvOptions& options) {
    return OnOneRank([&](Context& context) {
      return Conv(Make(context, "tp=1", x.size() == 3 ? "[] [] []" : "[]", x),
                  Make(context, "tp=1", w.size() == 3 ? "[] [] []" : "[] []", w), options);
    });
  };
  EXPECT_THAT(conv({1, 4, 6}, {2, 5, 3}, {}), Refuses(HasSubstr("[f, c / groups, k...]")));
  EXPECT_THAT(conv({1, 4, 6}, {2, 6}, {}), Refuses(HasSubstr("at least one k")));
  EXPECT_THAT(conv({1, 4, 6}, {3, 3, 3}, {.groups = 2}), Refuses(HasSubstr("2 groups")));
  EXPECT_THAT(conv({6}, {2, 6, 3}, {}), Refuses(HasSubstr("features last")));
  EXPECT_THAT(conv({1, 4, 6}, {2, 6, 5}, {}),
              Refuses(HasSubstr("a window reaches over 5 elements")));
  EXPECT_THAT(conv({1, 4, 6}, {2, 6, 3}, {.stride = {1, 2}}),
              Refuses(HasSubstr("stride has 2 numbers for windows of 1")));
  EXPECT_THAT(conv({1, 4, 6}, {2, 6, 3}, {.before = {-1}}),
              Refuses(HasSubstr("no negative numbers")));
}

}  // namespace
}  // namespace dtensor
