// TraceRecorder: writes a rank's trace down while it runs. By the Context, for who works in it.
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

// Of one rank's thread. Observes the communicator while it is on, in place of another recorder,
// which then learns of no exchange until it is started again.
class TraceRecorder final : private ExchangeObserver {
 public:
  // `clock` may be null: the steady clock.
  TraceRecorder(Communicator& communicator, const Device& device, const SimulatedClock* clock);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // What begins from here on is written down, after what is already.
  void Start(const TraceOptions& options);
  // Nothing more, but the ends of what has begun; then the communicator has no observer any more.
  void Stop();
  bool on() const { return on_; }
  // What ends from here on is not told to it: to be called before the communicator goes.
  void Detach();
  // So far.
  const RankTrace& trace() const { return trace_; }

  // Why redistributions are made from here on, and of which operand or result (TraceReason).
  struct Reason {
    TraceCause cause = TraceCause::kAsked;
    int index = -1;
    bool implicit = false;
  };
  Reason set_reason(Reason reason) { return std::exchange(reason_, reason); }
  TracePhase set_phase(TracePhase phase) { return std::exchange(phase_, phase); }
  void set_path(absl::string_view path) { path_ = on_ ? Text(path) : ""; }

  // Begins an event within the one that is open, which is over before that. Returns its place, for
  // Close; -1: none was written down.
  int64_t Open(TraceKind kind, absl::string_view name);
  void Close(int64_t event);

  // A redistribution, for the reason that holds now. An asynchronous one is complete when its
  // exchanges are, and is not closed; what it returns is the cause of these.
  struct Move {
    absl::string_view who, tensor, from, to;
    int tensors = 1;
    bool asynchronous = false;
  };
  ExchangeCause OpenMove(const Move& move);

 private:
  // An exchange on its way.
  struct Begun {
    const Collective* collective;
    int64_t event;
    bool waits;              // Finish follows at once
    bool is_last = true;     // none began after it
    bool finishes = false;   // Finish has been called
    bool dropped = false;    // it never will be
    bool counted = false;    // what it received is known
    bool completed = false;  // before Finish: a later exchange of its group finished it
    int64_t wait = -1;       // the event of its wait
  };

  void Begins(const Collective& collective, bool waits) override;
  void Finishes(const Collective& collective) override;
  void Finished(const Collective& collective) override;
  void Drops(const Collective& collective) override;
  void Counted(const Collective& collective, const CommunicatorTraffic& more) override;

  int64_t Now() const;
  // Lives as long as the trace.
  absl::string_view Text(absl::string_view text);
  // Written down, if there is room: its place, or -1.
  int64_t Add(TraceEvent event);
  bool observes() const;
  // Leaves the communicator once nothing more is to be written down.
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

// An event while it lives. Null: nothing.
class TraceSpan {
 public:
  TraceSpan(TraceRecorder* recorder, TraceKind kind, absl::string_view name) {
    if (recorder != nullptr) Open(recorder, kind, name);
  }
  // Without a recorder the name's length is not asked for, either.
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

// The reason for redistributions while it lives. Null: nothing.
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

// The phase while it lives. Null: nothing.
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
