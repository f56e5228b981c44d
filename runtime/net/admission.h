// Admission: who listens, and lets in the ranks of its job alone.
//
// Callers are heard side by side. One that says nothing, little or too much holds nobody up: it has
// 5 seconds and Hello::kBytes bytes, and where more than 256 wait, the one that came first goes:
// not before 100 ms, in which a rank answers. Others stay in the listener's queue until then.
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
  // `is_awaited(rank)`: whether a rank of the world may come now.
  Admission(Socket listener, LinkKind kind, JobKey key, std::function<bool(int)> is_awaited)
      : listener_(std::move(listener)),
        kind_(kind),
        key_(std::move(key)),
        is_awaited_(std::move(is_awaited)) {}

  // The next one that is let in, or nobody by `deadline`. Errors: of the listener.
  absl::StatusOr<std::optional<Admitted>> Next(NetClock::time_point deadline);
  // Who called so far and was not let in, for whoever says that a rank has not come: "; rank 2
  // called, ..." for each reason, with the last rank of it. Empty: nobody.
  std::string TurnedAway() const;

 private:
  static constexpr size_t kMostCallers = 256;
  struct Caller {
    Socket socket;
    std::string nonce, said;
    NetClock::time_point came;
  };

  // False if some may still wait for a place.
  absl::StatusOr<bool> AcceptAll();
  // Makes a place, unless all have just come. Requires: there are callers.
  bool LetFirstGo();
  // Whether the caller stays; fills in `admitted` if it is let in.
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
