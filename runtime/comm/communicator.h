// Communicator: how one rank takes part in collectives with the others. Knows no placements.
//
// There is one call that moves data, Exchange: every rank of a group hands in local tensors and,
// for each, the boxes it receives: from whom, from where in the peer's local tensor, to where in
// its own. All-gather, reduce-scatter, all-reduce, all-to-all and permutes are Exchanges whose
// boxes have that pattern; `kind` says so, and `native` where a backend may make a call of its own.
//
//   local      ranks are threads of this process; peers read each other's memory, one pass, no
//              staging
//   shared     ranks are processes of one host, and do the same, by memory that they share
//   messages   ranks that cannot: boxes are packed and sent, over TCP or MPI. Where processes are
//              on several hosts, groups of one host are shared, and all others send messages
//   simulated  moves nothing, counts everything; with the meta device it predicts a run
//
// Stream-ordered like the device (device.h): a peer's source is read after the work that made it,
// and work launched later here runs after every peer has read this rank's sources.
//
// Failures (docs/errors.md). The world fails once, for all ranks: with rank and reason,
// when a rank calls Fail, its device fails, its function returns while others wait for it, ranks
// disagree about what comes next (sequence number, operator or digest differ: the message says what
// both sides ask for), ranks wait for each other in a cycle, or a peer is silent for longer than
// the time-out. Every wait and every later call then returns that first failure.
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

// One tensor of an exchange. `receives` are disjoint in dst; src and dst may share storage only
// where no rank reads what another writes. dst's elements outside every box keep their values.
// All ranks' sources have one type, and all results; where they differ, both are of f32, bf16 and
// f16, and elements are converted on the way, once.
struct ExchangePart {
  // Undefined: there is nothing to send, or to receive. They outlive the exchange: to copy two
  // tensors costs 50 of the 900 ns that 1 KiB between two threads take.
  const Tensor &src, &dst;
  absl::Span<const ReceiveBox> receives;
  ReduceOp op = ReduceOp::kSum;
  // Each result is multiplied by it; floats only. kAvg adds, and leaves the division to it: a plan
  // may reduce in several places what has one number of terms.
  double scale = 1.0;
};

// What a rank asks for, in words: made only where ranks disagree, by a peer's thread as well.
class CallDescription {
 public:
  virtual std::string ToString() const = 0;

 protected:
  ~CallDescription() = default;
};

// What every rank of an exchange receives: alike on all ranks, so that a sender knows what others
// receive from it (send_list.h). Asked for on the rank's own thread, until Finish returns.
class ExchangeBoxes {
 public:
  // The boxes that world rank `rank`, of the group, receives in part `part`. Those of this rank are
  // the part's `receives`.
  virtual std::vector<ReceiveBox> Receives(size_t part, int rank) const = 0;
  // Equal for two that say the same, in every process: by it, what was worked out may be kept.
  virtual uint64_t digest() const = 0;

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
  // The backend may call its own collective of that kind: every rank receives as much from each
  // peer as from every other, and as much as every other rank. Where elements lie, and what they
  // are scaled by, the parts say all the same. Alike on all ranks.
  bool native = false;
  // A native reduction may add in the backend's order and with its roundings, so with other bits
  // than elsewhere. Alike on all ranks. Requires: sums of floats, each for one rank alone, whose
  // bits would differ from another's.
  bool sums_in_any_order = false;
  absl::string_view axes;       // label for counters and errors: "tp", "dp,tp"
  absl::string_view op;         // what the user called: "Redistribute [tp] [] -> [] []"
  absl::Span<const int> group;  // world ranks that take part, ascending, this rank among them
  uint64_t digest = 0;          // equal on all ranks of the group, or the world fails
  const CallDescription* description = nullptr;  // of what the digest is of
  const ExchangeBoxes* boxes = nullptr;  // null: only ranks that read their peers can carry it out
  // False for the second exchange of an all-reduce: its bytes count, but no further call does.
  bool counts_as_call = true;
  ExchangeCause cause = {};
};

// Of exchanges between ranks, counted where they reach the transport. A group of one counts
// nothing.
struct CommunicatorTraffic {
  int64_t calls = 0;     // collectives this rank took part in
  int64_t messages = 0;  // boxes received from other ranks
  int64_t bytes = 0;     // bytes received from other ranks, in the sources' type
  friend bool operator==(const CommunicatorTraffic&, const CommunicatorTraffic&) = default;
};
using TrafficKey = std::pair<std::string, CollectiveKind>;  // (axes, kind)
using TrafficTable = std::map<TrafficKey, CommunicatorTraffic>;

// Who is told of one rank's exchanges, on its thread. An exchange is told apart by its address
// until it is finished, or was dropped and is counted. It may call nothing of the communicator but
// set_observer.
class ExchangeObserver {
 public:
  // Before Begin. `waits`: Finish follows at once.
  virtual void Begins(const Collective& collective, bool waits) = 0;
  virtual void Finishes(const Collective& collective) = 0;  // before Finish
  virtual void Finished(
      const Collective& collective) = 0;                 // Finish has returned, or Begin an error
  virtual void Drops(const Collective& collective) = 0;  // throws nothing
  // What traffic() has more because of it: while it is begun or finished, or while a later one of
  // the same group is begun.
  virtual void Counted(const Collective& collective, const CommunicatorTraffic& more) = 0;

 protected:
  ~ExchangeObserver() = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The most that an exchange allocates on the device beside its parts, at any one time: alike on
  // all ranks, whatever is exchanged. 0 where peers are read in place.
  virtual int64_t staging_bytes() const { return 0; }

  // Collective over `group`: all its ranks call it, in the same order relative to other exchanges
  // of the same ranks, with as many parts. Blocks the host until the peers have called it too; when
  // it returns, tensors may be dropped and launches may overwrite them, though peers may still be
  // reading. Errors: kInvalidArgument, naming op and axis, for a group that is not ascending or
  // lacks this rank, a peer outside of it, a box outside of a tensor, and what no type can do (avg
  // of integers): the peers have not heard of such a call, and the communicator stays usable. The
  // world's failure.
  absl::Status Exchange(const Collective& collective, absl::Span<const ExchangePart> parts);

  // Exchange in two halves, to do something else between them. Begin says what this rank brings,
  // and waits for nobody. Finish waits, receives, and waits until the peers have what they read
  // from here, so until then sources must keep their values and results must not be read. A group
  // has one exchange on its way: Begin finishes the one that the same group began before, whose
  // Finish then returns what came of it. What `collective` and `parts` point to must outlive
  // Finish, which is told apart by the address of `collective`. Errors: as Exchange.
  absl::Status Begin(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Finish(const Collective& collective);

  // Called in place of Finish if this rank does not need the results after all; does not block. The
  // exchange is finished later: when the same group begins another one, or when the rank's function
  // returns OK. `owner` is held until then, or until the world ends: let it own whatever the
  // collective and its parts point to.
  void Drop(const Collective& collective, std::shared_ptr<const void> owner);
  // Finishes what was dropped, in the order in which it began: whoever is about to write to a
  // source of it. Errors: as Exchange.
  virtual absl::Status FinishDropped() = 0;

  // Collective over the whole world; no data moves. Errors: the world's failure.
  virtual absl::Status Barrier(absl::string_view what) = 0;

  // Marks the world as failed by this rank, unless it failed before; returns the world's failure.
  // Requires: `reason` is an error.
  virtual absl::Status Fail(const absl::Status& reason) = 0;
  virtual absl::Status failure() const = 0;  // OK while the world works

  const TrafficTable& traffic() const { return counter_->traffic_; }
  void ResetTraffic() { counter_->traffic_.clear(); }
  // Told of what begins from here on, in place of another; null: nobody. It outlives its time here.
  void set_observer(ExchangeObserver* observer) { observer_ = observer; }
  const ExchangeObserver* observer() const { return observer_; }

 protected:
  // Begin, Finish and Drop, of the backend.
  virtual absl::Status BeginExchange(const Collective& collective,
                                     absl::Span<const ExchangePart> parts) = 0;
  virtual absl::Status FinishExchange(const Collective& collective) = 0;
  virtual void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) = 0;

  // By the backend: an exchange, and what it has received in that from others.
  void Count(const Collective& collective, int64_t messages, int64_t bytes);
  // `part` carries out some exchanges of this one, and counts them here; this one outlives it.
  void CountFor(Communicator& part) { part.counter_ = this; }

 private:
  absl::Status BeginObserved(const Collective& collective, absl::Span<const ExchangePart> parts,
                             bool waits);

  TrafficTable traffic_;
  Communicator* counter_ = this;  // whose traffic() and observer have what this one counts
  ExchangeObserver* observer_ = nullptr;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_COMMUNICATOR_H_
