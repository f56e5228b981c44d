// The text of a ring's schedule.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/attention/ring_schedule.h"

namespace dtensor {
namespace {

std::string MessageText(const RingMessage& message, absl::string_view what) {
  return absl::StrCat(what, " ", message.block, " to ", message.peer);
}

// "step 1  rank 0  kv 3  partial   512 pairs; sends kv 3 to 1, dkv 3 to 1"
std::string TurnText(int step, int ring_rank, const RingTurn& turn) {
  std::vector<std::string> sends;
  for (const RingMessage& m : turn.sends) sends.push_back(MessageText(m, "kv"));
  for (const RingMessage& m : turn.gradient_sends) sends.push_back(MessageText(m, "dkv"));
  return absl::StrFormat("step %-5d rank %d  kv %d  %-8s  %d pairs%s\n", step, ring_rank,
                         turn.source, std::string(ToString(turn.block_case)), turn.work,
                         sends.empty() ? "" : absl::StrCat("; sends ", absl::StrJoin(sends, ", ")));
}

std::string LinksText(const RingSchedule& schedule) {
  std::string text;
  for (const RingLink& link : schedule.Links()) {
    absl::StrAppendFormat(&text, "traffic    %d to %d: forward %d B, backward %d B\n", link.from,
                          link.to, link.forward_bytes, link.backward_bytes);
  }
  return text;
}

}  // namespace

std::string RingSchedule::Heading() const {
  const RingProblem& p = problem_;
  const bool alike = p.q == p.kv && p.q_length == p.kv_length;
  return absl::StrFormat(
      "mesh       %s, ring of %d over %s\n"
      "attention  %s, batch %d, %d heads, %d kv heads of %d, %s\n"
      "sequence   %d as %s%s\n",
      p.q.mesh().ToString(), ring_size(), p.q.mesh().AxisNames(p.axes), p.mask.ToString(), p.batch,
      p.heads, p.kv_heads, p.head_dim, std::string(dtensor::ToString(p.dtype)), p.q_length,
      p.q.ToString(),
      alike ? "" : absl::StrFormat("; keys: %d as %s", p.kv_length, p.kv.ToString()));
}

std::string RingSchedule::ToString() const {
  std::string text = Heading();
  int64_t forward = 0, backward = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (int ring_rank = 0; ring_rank < ring_size(); ++ring_rank) {
      text += TurnText(static_cast<int>(s), ring_rank, steps_[s].turns[ring_rank]);
    }
  }
  for (int ring_rank = 0; ring_rank < ring_size(); ++ring_rank) {
    forward = std::max(forward, ForwardBytes(ring_rank));
    backward = std::max(backward, BackwardBytes(ring_rank));
  }
  absl::StrAppend(&text, LinksText(*this));
  absl::StrAppendFormat(&text,
                        "sent       forward %d B, backward %d B, by the busiest rank\n"
                        "balance    %.1f%%\n"
                        "memory     %d B on a rank at the peak\n",
                        forward, backward, 100 * Balance(), PeakBytes());
  return text;
}

}  // namespace dtensor
