// The flags of dtensor plan and dtensor regions, and the texts that a plan prints.
#include "dtensor/tools/cli/request.h"

#include <algorithm>

#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/tests/fuzz/flags.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

// What walks every rank, and every element, is asked of small requests alone.
constexpr int64_t kFewRanks = 64, kFewElements = 2000;

cli::MoveFlags MoveFlagsIn(const Flags& flags) {
  cli::MoveFlags move;
  move.mesh = flags.Text("mesh");
  move.from_mesh = flags.Text("from_mesh");
  move.to_mesh = flags.Text("to_mesh");
  move.shape = flags.TextOr("shape", "");
  move.dtype = flags.TextOr("dtype", "f32");
  move.from = flags.TextOr("from", "");
  move.to = flags.TextOr("to", "");
  move.objective = flags.TextOr("objective", "total");
  move.max_extra_bytes = flags.Number("max_extra_bytes").value_or(-1);
  return move;
}

int64_t Padded(const Dims& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements)) return -1;
  }
  return elements;
}

void TryPlan(const cli::Move& move) {
  const absl::StatusOr<RedistributionPlan> plan =
      RedistributionPlan::Create(move.from, move.to, move.shape, move.dtype, move.options);
  if (!IsRead(plan)) return;
  const int64_t ranks = int64_t{move.from.mesh().size()} + move.to.mesh().size();
  if (ranks > kFewRanks) return;
  Require(!plan->ToString().empty(), "a plan prints");
  const RedistributionBytes bytes = plan->Bytes(), bound = plan->Bound();
  Require(bytes.total >= bound.total && bytes.busiest >= bound.busiest && bound.total >= 0,
          "no plan moves less than the bound");
  Require(plan->PeakBytes() >= plan->ExtraBytes() && plan->ExtraBytes() >= 0, "memory adds up");
  const int64_t elements = Padded(move.shape);
  if (elements < 0 || elements > kFewElements) return;
  const absl::Status proof = plan->Verify();
  Require(proof.ok(), proof.message());
}

void TryRegions(const cli::Laid& laid) {
  const DeviceMesh& mesh = laid.layout.mesh();
  for (int position = 0; position < std::min<int>(mesh.size(), kFewRanks); ++position) {
    const auto coordinate = mesh.Coordinate(mesh.RankOf(position));
    Require(!ToString(Regions(laid.layout, laid.shape, coordinate)).empty(), "a region prints");
  }
}

}  // namespace

void Try(absl::string_view input) {
  const Flags flags(input);
  if (const auto move = cli::ParseMove(MoveFlagsIn(flags)); IsRead(move)) TryPlan(*move);
  cli::RegionsFlags regions;
  regions.mesh = flags.TextOr("mesh", "");
  regions.shape = flags.TextOr("shape", "");
  regions.layout = flags.TextOr("layout", "");
  if (const auto laid = cli::ParseLaid(regions); IsRead(laid)) TryRegions(*laid);
}

}  // namespace dtensor::fuzz
