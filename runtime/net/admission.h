// Admission: a listener that admits only the ranks of its job.
//
// Callers are handled concurrently. A caller that sends nothing, little or too much delays nobody:
// it has 5 seconds and Hello::kBytes bytes. If more than 256 are waiting, the first to come is
// disconnected, but not before 100 ms, in which a rank answers. Until then, others stay in the
// listener's queue.
#ifndef DTENSOR_RUNTIME_NET_ADMISSION_H_
#define DTENSOR_RUNTIME_NET_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/runtime/net/handshake.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

struct Admitted {
  int rank = 0;
  Socket socket;
};

class Admission {
 public:
  // `is_awaited(rank)` returns whether a rank of the world may come now.
  Admission(Socket listener, LinkKind kind, JobKey key, std::function<bool(int)> is_awaited)
      : listener_(std::move(listener)),
        kind_(kind),
        key_(std::move(key)),
        is_awaited_(std::move(is_awaited)) {}

  // Returns the next rank that is admitted, or none if none comes by `deadline`. Errors: the
  // listener's.
  absl::StatusOr<std::optional<Admitted>> Next(NetClock::time_point deadline);
  // Describes who called so far and was not admitted, for the error that says that a rank has not
  // come: "; rank 2 called, ..." for each reason, with the last rank for which it applied. Empty:
  // nobody.
  std::string TurnedAway() const;

 private:
  static constexpr size_t kMostCallers = 256;
  struct Caller {
    Socket socket;
    std::string nonce, said;
    NetClock::time_point came;
  };

  // Returns false if some may still be waiting for a place.
  absl::StatusOr<bool> AcceptAll();
  // Frees a place, unless all callers have only just come. Requires: there are callers.
  bool LetFirstGo();
  // Returns whether the caller stays; fills in `admitted` if it is admitted.
  bool Hear(Caller& caller, std::optional<Admitted>& admitted);

  const Socket listener_;
  const LinkKind kind_;
  const JobKey key_;
  const std::function<bool(int)> is_awaited_;
  std::list<Caller> callers_;
  int strangers_ = 0;
  std::optional<uint32_t> of_wrong_size_, of_wrong_rank_;  // the last one's rank
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_ADMISSION_H_
