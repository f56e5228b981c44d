#include "dtensor/trace/trace_recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace dtensor {

TraceRecorder::TraceRecorder(Communicator& communicator, const Device& device,
                             const SimulatedClock* clock)
    : communicator_(&communicator),
      device_(device),
      clock_(clock),
      texts_(std::make_shared<TraceTexts>()) {
  trace_.rank = communicator.rank();
  trace_.world_size = communicator.size();
  trace_.simulated = clock != nullptr;
  trace_.texts = texts_;
}

TraceRecorder::~TraceRecorder() { Detach(); }

bool TraceRecorder::observes() const {
  return communicator_ != nullptr && communicator_->observer() == this;
}

void TraceRecorder::Detach() {
  if (observes()) communicator_->set_observer(nullptr);
  communicator_ = nullptr;
}

void TraceRecorder::Start(const TraceOptions& options) {
  if (communicator_ == nullptr) return;
  options_ = options;
  on_ = true;
  if (observes()) return;
  begun_.clear();  // another observer saw the ends of these
  communicator_->set_observer(this);
}

void TraceRecorder::Stop() {
  on_ = false;
  LeaveWhenDone();
}

void TraceRecorder::LeaveWhenDone() {
  if (!on_ && begun_.empty() && observes()) communicator_->set_observer(nullptr);
}

int64_t TraceRecorder::Now() const {
  if (clock_ != nullptr) return static_cast<int64_t>(clock_->time().total() * 1e9);
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

absl::string_view TraceRecorder::Text(absl::string_view text) {
  auto found = texts_->find(text);
  if (found == texts_->end()) found = texts_->emplace(text.data(), text.size()).first;
  const std::string& kept = *found;
  return absl::string_view(kept.data(), kept.size());
}

int64_t TraceRecorder::Add(TraceEvent event) {
  if (!on_) return -1;
  if (trace_.events.size() >= options_.max_events) {
    ++trace_.dropped;
    return -1;
  }
  event.name = Text(event.name);
  event.path = path_;
  event.phase = phase_;
  event.start_ns = Now();
  trace_.events.push_back(event);
  return static_cast<int64_t>(trace_.events.size()) - 1;
}

void TraceRecorder::End(int64_t event) {
  if (event < 0) return;
  TraceEvent& ended = trace_.events[event];
  ended.duration_ns = Now() - ended.start_ns;
  ended.live_bytes = device_.memory().live_bytes;
}

int64_t TraceRecorder::Open(TraceKind kind, absl::string_view name) {
  if (!on_) return -1;
  const bool listed = options_.operators || kind == TraceKind::kSpan;
  if (!listed) return -1;
  TraceEvent event;
  event.kind = kind;
  event.name = name;
  event.parent = open_;
  const int64_t added = Add(event);
  if (added >= 0) open_ = added;
  return added;
}

void TraceRecorder::Close(int64_t event) {
  if (event < 0) return;
  End(event);
  open_ = trace_.events[event].parent;
}

ExchangeCause TraceRecorder::OpenMove(const Move& move) {
  if (!on_) return {};
  TraceEvent event;
  event.kind = TraceKind::kRedistribution;
  event.name = move.who;
  event.parent = open_;
  event.cause = reason_.cause;
  event.index = reason_.index;
  event.implicit = reason_.implicit;
  event.tensors = move.tensors;
  event.tensor = Text(move.tensor);
  event.from = Text(move.from);
  event.to = Text(move.to);
  event.asynchronous = move.asynchronous;
  const int64_t added = Add(event);
  if (added >= 0 && !move.asynchronous) open_ = added;
  return {this, added};
}

TraceRecorder::Begun* TraceRecorder::Find(const Collective& collective) {
  const auto found = std::find_if(begun_.begin(), begun_.end(), [&](const Begun& begun) {
    return begun.collective == &collective;
  });
  return found == begun_.end() ? nullptr : &*found;
}

void TraceRecorder::Forget(const Collective& collective) {
  std::erase_if(begun_, [&](const Begun& begun) { return begun.collective == &collective; });
  LeaveWhenDone();
}

void TraceRecorder::Begins(const Collective& collective, bool waits) {
  for (Begun& begun : begun_) begun.is_last = false;
  Forget(collective);  // an earlier one at this address that was dropped and never finished
  if (!on_ || collective.group.size() == 1) return;
  TraceEvent event;
  event.kind = TraceKind::kExchange;
  event.name = collective.op;
  const int64_t cause = collective.cause.observer == this ? collective.cause.event : -1;
  event.parent = cause >= 0 ? cause : open_;
  event.collective = collective.kind;
  event.axes = Text(collective.axes);
  event.asynchronous = !waits;
  const int64_t added = Add(event);
  if (added < 0) return;
  if (cause >= 0) {
    // Later rounds belong to the module and phase that began the redistribution.
    TraceEvent& exchange = trace_.events[added];
    exchange.path = trace_.events[cause].path;
    exchange.phase = trace_.events[cause].phase;
  }
  begun_.push_back({.collective = &collective, .event = added, .waits = waits});
}

void TraceRecorder::Finishes(const Collective& collective) {
  Begun* const begun = Find(collective);
  if (begun == nullptr) return;
  begun->finishes = true;
  if (begun->waits) return;
  TraceEvent event;
  event.kind = TraceKind::kWait;
  event.name = collective.op;
  event.parent = open_;
  event.collective = collective.kind;
  event.axes = trace_.events[begun->event].axes;
  begun->wait = Add(event);
}

void TraceRecorder::Finished(const Collective& collective) {
  Begun* const begun = Find(collective);
  if (begun == nullptr) return;
  TraceEvent& event = trace_.events[begun->event];
  if (!begun->completed) End(begun->event);
  End(begun->wait);
  if (begun->wait >= 0) event.wait_ns = trace_.events[begun->wait].duration_ns;
  if (begun->waits) event.wait_ns = event.duration_ns;
  Forget(collective);
  if (event.parent < 0) return;
  TraceEvent& cause = trace_.events[event.parent];
  if (cause.kind != TraceKind::kRedistribution) return;
  cause.wait_ns += event.wait_ns;
  if (cause.asynchronous) {
    cause.duration_ns = event.start_ns + event.duration_ns - cause.start_ns;
    cause.live_bytes = event.live_bytes;
  }
}

void TraceRecorder::Drops(const Collective& collective) {
  Begun* const begun = Find(collective);
  if (begun == nullptr) return;
  begun->dropped = true;
  if (begun->counted) Finished(collective);
}

// A simulated exchange is counted when it begins; that does not complete it.
void TraceRecorder::Counted(const Collective& collective, const CommunicatorTraffic& more) {
  Begun* const begun = Find(collective);
  if (begun == nullptr) return;
  trace_.events[begun->event].traffic = more;
  begun->counted = true;
  if (begun->dropped) return Finished(collective);
  if (begun->finishes || begun->is_last) return;
  End(begun->event);
  begun->completed = true;
}

}  // namespace dtensor
