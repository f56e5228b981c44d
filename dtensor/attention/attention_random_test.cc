// Attention on random meshes, layouts, masks, lengths and methods: the result is that of one rank,
// and a run without data counts what is moved. DTENSOR_SEED repeats a run.
#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/attention_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::attention_testing {
namespace {

using ::testing::HasSubstr;

constexpr int kCases = 400;

constexpr const char* kMeshes[] = {
    "cp=2",       "cp=3",           "cp=5",      "cp=8",      "cp=2,tp=2",
    "tp=3,cp=2",  "cp=2,tp=4",      "u=2,r=2",   "u=4,r=2",   "a=2,b=2,c=2",
    "cp=2,one=1", "dp=2,cp=2,tp=2", "cp=1,tp=2", "dp=2,cp=3", "cp=3,tp=2@2,4,1,0,5,3"};

ShardOrder RandomOrder(TestRandom& random) {
  const ShardOrder orders[] = {ShardOrder::Contiguous(), ShardOrder::Zigzag(), ShardOrder::Zigzag(),
                               ShardOrder::Cyclic(2),    ShardOrder::Block(1), ShardOrder::Unit(2)};
  return orders[random.Below(std::size(orders))];
}

// Sequences are split most often; batches, heads and nothing, too.
Layout RandomLayout(const DeviceMesh& mesh, const Dims& shape, TestRandom& random) {
  return DrawLayout(mesh, shape, [&]() -> Placement {
    const Placement choices[] = {
        Shard(1, RandomOrder(random)), Shard(1), Shard(2), Shard(0), Replicate(), Partial()};
    return choices[std::max(0, random.Below(8) - 2)];
  });
}

// `like` over another shape; or, half of the time, another layout.
std::string LikeOrNot(const Layout& like, const Dims& shape, TestRandom& random) {
  if (random.Coin()) return like.ToString();
  return RandomLayout(like.mesh(), shape, random).ToString();
}

AttentionMask RandomMask(int64_t length, TestRandom& random) {
  const int n = static_cast<int>(length);
  if (n < 3) return random.Coin() ? AttentionMask::Causal() : AttentionMask::Full();
  const int start = 1 + random.Below(n - 2);
  const AttentionMask masks[] = {
      AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(start).value(),
      AttentionMask::Prefix(start).value(), AttentionMask::Documents({0, start, n - 1}).value()};
  return masks[random.Below(std::size(masks))];
}

Case RandomCase(TestRandom& random) {
  Case c;
  c.mesh = kMeshes[random.Below(std::size(kMeshes))];
  c.shapes.batch = random.Below(4);
  c.shapes.s = random.Below(20);
  c.shapes.t = random.Coin() ? c.shapes.s : random.Below(20);
  c.shapes.kv_heads = 1 << random.Below(4);
  c.shapes.heads = c.shapes.kv_heads * (1 + random.Below(3));
  c.shapes.head_dim = 1 + random.Below(5);
  const DeviceMesh mesh = DeviceMesh::Parse(c.mesh).value();
  const Layout q = RandomLayout(mesh, c.shapes.q(), random);
  const std::string kv = LikeOrNot(q, c.shapes.kv(), random);
  c.q = q.ToString();
  c.kv = kv;
  c.v = random.Coin() ? kv : LikeOrNot(q, c.shapes.kv(), random);
  if (random.Below(3) == 0) c.options.query_offset = random.Below(12);
  const int64_t offset = c.options.query_offset.value_or(0);
  c.options.mask = RandomMask(std::max(offset + c.shapes.s, c.shapes.t), random);
  c.options.plan = static_cast<AttentionPlanKind>(random.Below(4));
  if (random.Below(4) == 0) c.options.dropout = .3;
  c.options.dropout_seed = random.Below(100);
  if (random.Below(3) == 0) c.dtype = DType::kF32;
  if (random.Below(3) != 0 || c.shapes.batch == 0) return c;
  for (int64_t b = 0; b < c.shapes.batch; ++b) {
    c.key_lengths.push_back(random.Below(static_cast<int>(c.shapes.t) + 1));
  }
  c.lengths = DrawLayout(mesh, {c.shapes.batch}, [&]() -> Placement {
                const Placement choices[] = {Shard(0), Replicate(), Partial()};
                return choices[random.Below(3)];
              }).ToString();
  return c;
}

TEST(Attention, RandomCases) {
  TestRandom random;
  int refused = 0;
  for (int i = 0; i < kCases && !testing::Test::HasFailure(); ++i) {
    const Case c = RandomCase(random);
    const absl::StatusOr<AttentionDoubles> got = TryOn(c);
    if (!got.ok() && c.options.plan == AttentionPlanKind::kAllToAll) {
      EXPECT_THAT(got.status().message(), HasSubstr("take plan ring")) << Describe(c);
      ++refused;
      continue;
    }
    DT_ASSERT_OK(got.status()) << Describe(c);
    ExpectSame(*got, OneRank(c), c.dtype == DType::kF64 ? 1e-12 : 1e-5, Describe(c), /*least=*/.5);
    ExpectPredicted(c);
  }
  EXPECT_LT(refused, kCases / 4);
}

}  // namespace
}  // namespace dtensor::attention_testing
