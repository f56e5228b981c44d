// The flags of dtensor ring, and the schedule that follows from them.
#include "dtensor/tools/cli/ring/ring_request.h"

#include "dtensor/attention/ring_schedule.h"
#include "dtensor/tests/fuzz/flags.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

cli::RingFlags RingFlagsIn(const Flags& flags) {
  cli::RingFlags ring;
  ring.mesh = flags.TextOr("mesh", "");
  ring.pattern = flags.TextOr("pattern", "ring");
  ring.mask = flags.TextOr("mask", "full");
  ring.batch = flags.Number("batch");
  ring.heads = flags.Number("heads");
  ring.kv_heads = flags.Number("kv_heads");
  ring.seq = flags.Number("seq");
  ring.head_dim = flags.Number("head_dim");
  ring.dtype = flags.Text("dtype");
  return ring;
}

}  // namespace

void Try(absl::string_view input) {
  const absl::StatusOr<RingProblem> problem = cli::ParseRing(RingFlagsIn(Flags(input)));
  if (!IsRead(problem)) return;
  Require(cli::ProblemJson(*problem, "ring").size() > 0, "a request prints");
  if (problem->q.mesh().size() > 16) return;  // what follows takes their square or cube
  const absl::StatusOr<RingSchedule> schedule = RingSchedule::Create(*problem);
  if (!IsRead(schedule)) return;
  const absl::Status proof = schedule->Verify();
  Require(proof.ok(), proof.message());
  Require(!schedule->ToString().empty(), "a schedule prints");
  Require(schedule->Balance() >= 0 && schedule->Balance() <= 1, "a balance is a share");
  Require(schedule->PeakBytes() >= 0, "memory is counted");
}

}  // namespace dtensor::fuzz
