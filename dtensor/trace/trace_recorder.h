// TraceRecorder: records a rank's trace while it runs. The Context owns it.
#ifndef DTENSOR_TRACE_TRACE_RECORDER_H_
#define DTENSOR_TRACE_TRACE_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/simulated_clock.h"
#include "dtensor/trace/trace.h"

namespace DTENSOR_EXPORT dtensor {

// Used on one rank's thread. While it is on, it is the communicator's observer. If it replaces
// another recorder, that one sees no exchanges until it is started again.
class TraceRecorder final : private ExchangeObserver {
 public:
  // With a null `clock` it uses the steady clock.
  TraceRecorder(Communicator& communicator, const Device& device, const SimulatedClock* clock);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Records events that begin from now on, after those recorded before.
  void Start(const TraceOptions& options);
  // Records no new events, only the ends of exchanges that have begun. After the last of these it
  // stops observing the communicator.
  void Stop();
  bool on() const { return on_; }
  // Stops observing the communicator at once; call it before the communicator is destroyed. Ends of
  // exchanges are not recorded any more.
  void Detach();
  // The trace so far.
  const RankTrace& trace() const { return trace_; }

  // Why redistributions are made from now on, and of which operand or result (TraceReason).
  struct Reason {
    TraceCause cause = TraceCause::kAsked;
    int index = -1;
    bool implicit = false;
  };
  Reason set_reason(Reason reason) { return std::exchange(reason_, reason); }
  TracePhase set_phase(TracePhase phase) { return std::exchange(phase_, phase); }
  void set_path(absl::string_view path) { path_ = on_ ? Text(path) : ""; }

  // Begins an event inside the innermost open one, before which it must be closed. Returns its
  // index, for Close; -1 if it was not recorded.
  int64_t Open(TraceKind kind, absl::string_view name);
  void Close(int64_t event);

  // Begins a redistribution, with the reason that is set now. Close one that is not asynchronous;
  // an asynchronous one is complete when its exchanges are. Returns the cause to give to its
  // exchanges.
  struct Move {
    absl::string_view who, tensor, from, to;
    int tensors = 1;
    bool asynchronous = false;
  };
  ExchangeCause OpenMove(const Move& move);

 private:
  // An exchange in flight.
  struct Begun {
    const Collective* collective;
    int64_t event;
    bool waits;              // Finish follows at once
    bool is_last = true;     // no exchange began after it
    bool finishes = false;   // Finish has been called
    bool dropped = false;    // Finish will not be called
    bool counted = false;    // what it received is known
    bool completed = false;  // a later exchange of its group finished it, before Finish
    int64_t wait = -1;       // the event of its wait
  };

  void Begins(const Collective& collective, bool waits) override;
  void Finishes(const Collective& collective) override;
  void Finished(const Collective& collective) override;
  void Drops(const Collective& collective) override;
  void Counted(const Collective& collective, const CommunicatorTraffic& more) override;

  int64_t Now() const;
  // Copies the text; the copy lives as long as the trace.
  absl::string_view Text(absl::string_view text);
  // Records the event, if there is room. Returns its index, or -1.
  int64_t Add(TraceEvent event);
  bool observes() const;
  // Stops observing the communicator if nothing more is to be recorded.
  void LeaveWhenDone();
  Begun* Find(const Collective& collective);
  void Forget(const Collective& collective);
  void End(int64_t event);

  Communicator* communicator_;  // null: detached
  const Device& device_;
  const SimulatedClock* const clock_;
  TraceOptions options_;
  bool on_ = false;
  RankTrace trace_;
  std::shared_ptr<TraceTexts> texts_;
  Reason reason_;
  TracePhase phase_ = TracePhase::kForward;
  absl::string_view path_ = "";
  int64_t open_ = -1;         // the innermost event that is open
  std::vector<Begun> begun_;  // few
};

// Opens an event, and closes it at the end of the scope. Does nothing for a null recorder.
class TraceSpan {
 public:
  TraceSpan(TraceRecorder* recorder, TraceKind kind, absl::string_view name) {
    if (recorder != nullptr) Open(recorder, kind, name);
  }
  // For string literals: without a recorder it does not even compute the name's length.
  TraceSpan(TraceRecorder* recorder, TraceKind kind, const char* name) {
    if (recorder != nullptr) Open(recorder, kind, name);
  }
  ~TraceSpan() {
    if (recorder_ != nullptr) recorder_->Close(event_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void Open(TraceRecorder* recorder, TraceKind kind, absl::string_view name) {
    event_ = recorder->Open(kind, name);
    recorder_ = recorder;
  }
  TraceRecorder* recorder_ = nullptr;
  int64_t event_;
};

// Sets the reason for redistributions while it lives. Does nothing for a null recorder.
class TraceReason {
 public:
  TraceReason(TraceRecorder* recorder, TraceCause cause, int index = -1, bool implicit = false)
      : recorder_(recorder) {
    if (recorder_ != nullptr) before_ = recorder_->set_reason({cause, index, implicit});
  }
  ~TraceReason() {
    if (recorder_ != nullptr) recorder_->set_reason(before_);
  }
  TraceReason(const TraceReason&) = delete;
  TraceReason& operator=(const TraceReason&) = delete;

 private:
  TraceRecorder* recorder_;
  TraceRecorder::Reason before_;
};

// Sets the phase while it lives. Does nothing for a null recorder.
class TracePhaseScope {
 public:
  TracePhaseScope(TraceRecorder* recorder, TracePhase phase) : recorder_(recorder) {
    if (recorder_ != nullptr) before_ = recorder_->set_phase(phase);
  }
  ~TracePhaseScope() {
    if (recorder_ != nullptr) recorder_->set_phase(before_);
  }
  TracePhaseScope(const TracePhaseScope&) = delete;
  TracePhaseScope& operator=(const TracePhaseScope&) = delete;

 private:
  TraceRecorder* recorder_;
  TracePhase before_ = TracePhase::kForward;
};

}  // namespace dtensor

#endif  // DTENSOR_TRACE_TRACE_RECORDER_H_
