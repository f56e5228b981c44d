// Communicator: how one rank takes part in collectives with the others. Knows no placements.
//
// There is one call that moves data, Exchange: every rank of a group hands in local tensors and,
// for each, the boxes it receives: from whom, from where in the peer's local tensor, to where in
// its own. All-gather, reduce-scatter, all-reduce, all-to-all and permutes are Exchanges whose
// boxes have that pattern; `kind` says so, and `native` where a backend may make a call of its own.
//
//   local      ranks are threads of this process; peers read each other's memory in one pass,
//              without staging
//   shared     ranks are processes of one host and do the same in memory that they share
//   messages   ranks cannot read each other's memory: boxes are packed and sent over TCP or MPI. If
//              processes are on several hosts, groups within one host use `shared`, all others
//              `messages`
//   simulated  moves nothing, counts everything; with the meta device it predicts a run
//
// Stream-ordered like the device (device.h): a peer's source is read after the work that produced
// it, and work that is launched here later runs after every peer has read this rank's sources.
//
// Failures (docs/errors.md). The world fails once, for all ranks, with a rank and a reason. It
// fails when a rank calls Fail, when its device fails, when its function returns while others wait
// for it, when ranks disagree about the next call (sequence number, operator or digest differ; the
// message states what both ranks ask for), when ranks wait for each other in a cycle, or when a
// peer is silent for longer than the time-out. Every wait and every later call then returns that
// first failure.
#ifndef DTENSOR_RUNTIME_COMM_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

class ExchangeObserver;

// One tensor of an exchange. `receives` are disjoint in dst. src and dst may share storage only if
// no rank reads what another writes. Elements of dst outside every box keep their values. The
// sources of all ranks have one type, and so have all results. If the two types differ, both are
// among f32, bf16 and f16, and each element is converted once, on the way.
struct ExchangePart {
  // Undefined if there is nothing to send, or to receive. References, which the caller keeps valid
  // during the exchange, since copying two tensors would cost 50 of the 900 ns that 1 KiB between
  // two threads takes.
  const Tensor &src, &dst;
  absl::Span<const ReceiveBox> receives;
  ReduceOp op = ReduceOp::kSum;
  // Each result is multiplied by it; floats only. kAvg only adds, and the caller divides by way of
  // `scale`, since a plan may add the terms of one average in several places.
  double scale = 1.0;
};

// Describes in words what a rank asks for. Called only if ranks disagree, also from a peer's
// thread.
class CallDescription {
 public:
  virtual std::string ToString() const = 0;

 protected:
  ~CallDescription() = default;
};

// Says what every rank of an exchange receives. It says the same on all ranks, so a sender can find
// out what others receive from it (send_list.h). Called on the rank's own thread until Finish
// returns.
class ExchangeBoxes {
 public:
  // Returns the boxes that world rank `rank`, a member of the group, receives in part `part`. For
  // this rank, they are the part's `receives`.
  virtual std::vector<ReceiveBox> Receives(size_t part, int rank) const = 0;
  // Equal for two objects that say the same, in every process, so results derived from them can be
  // cached under it.
  virtual uint64_t digest() const = 0;
  // False if the same will hardly be exchanged again, as where sizes follow from values: nothing
  // that is derived from it is then cached.
  virtual bool may_repeat() const { return true; }

 protected:
  ~ExchangeBoxes() = default;
};

// Identifies the observer's event (as of a trace) that an exchange belongs to. The communicator
// only passes it on. The number means something to `observer` alone, so any other observer that is
// told of the exchange must ignore it.
struct ExchangeCause {
  const ExchangeObserver* observer = nullptr;
  int64_t event = -1;  // -1: none
};

struct Collective {
  CollectiveKind kind = CollectiveKind::kExchange;
  // If true, the backend may call its own collective of that kind: every rank receives the same
  // amount from every peer, and all ranks receive the same amount. The parts still say where
  // elements lie and by what they are scaled. The same on all ranks.
  bool native = false;
  // If true, a native reduction may add in the backend's order and with its roundings, so bits may
  // differ from those of other backends. The same on all ranks. Requires: sums of floats, each of
  // which only one rank receives (the bits of two ranks would differ).
  bool sums_in_any_order = false;
  absl::string_view axes;       // label for counters and errors: "tp", "dp,tp"
  absl::string_view op;         // what the user called: "Redistribute [tp] [] -> [] []"
  absl::Span<const int> group;  // world ranks that take part, ascending, this rank among them
  uint64_t digest = 0;          // equal on all ranks of the group, or the world fails
  const CallDescription* description = nullptr;  // of what `digest` covers
  const ExchangeBoxes* boxes = nullptr;  // null: only ranks that read their peers can carry it out
  // False for the second exchange of an all-reduce: its bytes are counted, but not as another call.
  bool counts_as_call = true;
  ExchangeCause cause = {};
};

// When the peers get what a rank brings to an exchange that it has begun.
enum class Delivery : uint8_t {
  kDone,          // they need no other call of this rank
  kInLaterCalls,  // it moves while this rank is in other calls, of any exchange
  kInFinish,      // in Finish
};

// Traffic between ranks, counted where it reaches the transport: when an exchange is finished or,
// on a rank that receives nothing in it, when it begins. Exchanges in a group of one are not
// counted.
struct CommunicatorTraffic {
  int64_t calls = 0;     // collectives this rank took part in
  int64_t messages = 0;  // boxes received from other ranks
  int64_t bytes = 0;     // bytes received from other ranks, in the sources' type
  friend bool operator==(const CommunicatorTraffic&, const CommunicatorTraffic&) = default;
};
using TrafficKey = std::pair<std::string, CollectiveKind>;  // (axes, kind)
using TrafficTable = std::map<TrafficKey, CommunicatorTraffic>;

// Is told of one rank's exchanges, on that rank's thread. The address of its Collective identifies
// an exchange until it is finished, or was dropped and has been counted. An observer may call
// nothing of the communicator but set_observer.
class ExchangeObserver {
 public:
  // Before Begin. `waits`: Finish follows immediately.
  virtual void Begins(const Collective& collective, bool waits) = 0;
  virtual void Finishes(const Collective& collective) = 0;  // before Finish
  virtual void Finished(
      const Collective& collective) = 0;                 // Finish has returned, or Begin an error
  virtual void Drops(const Collective& collective) = 0;  // throws nothing
  // `more` is what this exchange adds to traffic(). Called while it begins or finishes, or while a
  // later exchange of the same group begins.
  virtual void Counted(const Collective& collective, const CommunicatorTraffic& more) = 0;

 protected:
  ~ExchangeObserver() = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The most that an exchange allocates on the device besides its parts, at any one time. The same
  // on all ranks, and independent of what is exchanged. 0 if peers' memory is read in place.
  virtual int64_t staging_bytes() const { return 0; }
  // Of an exchange that this rank has begun. If it receives nothing, it may Drop the exchange and
  // go on where that is kDone; else its peers wait for it. Ranks need not agree about it.
  virtual Delivery delivery(const Collective& collective) const {
    (void)collective;
    return Delivery::kDone;
  }

  // Collective over `group`: all its ranks call it with the same number of parts, and in the same
  // order relative to other exchanges of the same ranks. Blocks the host until the peers have
  // called it too. When it returns, tensors may be dropped and launches may overwrite them, though
  // peers may still be reading. Errors: kInvalidArgument, naming op and axis, if the group is not
  // ascending or lacks this rank, if a peer is outside of the group or a box outside of a tensor,
  // and if the type has no such operation (avg of integers). The peers do not learn of such a
  // refused call, and the communicator stays usable. The world's failure.
  absl::Status Exchange(const Collective& collective, absl::Span<const ExchangePart> parts);

  // Exchange in two halves, so that other work can be done between them. Begin says what this rank
  // brings, and does not block. Finish waits, receives, and waits until the peers have what they
  // read from this rank. Until then sources must keep their values, and results must not be read. A
  // group has at most one exchange in flight: Begin first finishes the one that the same group
  // began before, and that one's Finish then returns how it ended. Whatever `collective` and
  // `parts` point to must outlive Finish, which finds the exchange by the address of `collective`.
  // Errors: as Exchange.
  absl::Status Begin(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Finish(const Collective& collective);

  // Called in place of Finish if this rank does not need the results after all; does not block. The
  // exchange is finished later: when the same group begins another one, or when the rank's function
  // returns OK. `owner` is held until then, or until the world ends: let it own whatever the
  // collective and its parts point to.
  void Drop(const Collective& collective, std::shared_ptr<const void> owner);
  // Finishes the exchanges that were dropped, in the order in which they began. Call it before
  // writing to a source of one of them. Errors: as Exchange.
  virtual absl::Status FinishDropped() = 0;

  // Collective over the whole world; no data moves. Errors: the world's failure.
  virtual absl::Status Barrier(absl::string_view what) = 0;

  // Marks the world as failed by this rank, unless it has failed already. Returns the world's
  // failure. Requires: `reason` is an error.
  virtual absl::Status Fail(const absl::Status& reason) = 0;
  virtual absl::Status failure() const = 0;  // OK while the world works

  const TrafficTable& traffic() const { return counter_->traffic_; }
  void ResetTraffic() { counter_->traffic_.clear(); }
  // Replaces the observer for exchanges that begin from now on; null: none. It must stay valid
  // while it is set.
  void set_observer(ExchangeObserver* observer) { observer_ = observer; }
  const ExchangeObserver* observer() const { return observer_; }

 protected:
  // The backend's Begin, Finish and Drop.
  virtual absl::Status BeginExchange(const Collective& collective,
                                     absl::Span<const ExchangePart> parts) = 0;
  virtual absl::Status FinishExchange(const Collective& collective) = 0;
  virtual void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) = 0;

  // Called by the backend: counts an exchange, and what it received from other ranks in it.
  void Count(const Collective& collective, int64_t messages, int64_t bytes);
  // Lets `part`, which carries out some of this communicator's exchanges, count them here. This one
  // must outlive `part`.
  void CountFor(Communicator& part) { part.counter_ = this; }

 private:
  absl::Status BeginObserved(const Collective& collective, absl::Span<const ExchangePart> parts,
                             bool waits);

  TrafficTable traffic_;
  Communicator* counter_ = this;  // where this one's exchanges are counted
  ExchangeObserver* observer_ = nullptr;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_COMMUNICATOR_H_
