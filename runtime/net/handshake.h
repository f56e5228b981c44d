// How two processes of one job find out that they are that, before anything else is read.
//
//   listener   32 random bytes
//   caller     Hello: what it is, 32 random bytes of its own, and a proof
//   listener   a Verdict; if it is kWelcome, a proof of its own
//
// A proof is an HMAC-SHA256 of all that was said, by the job's secret: so neither side gives the
// secret away, and what was overheard is of no use again. What follows is neither hidden nor
// protected against change on its way: the network between the hosts of a job is trusted, those who
// can merely reach its ports are not.
#ifndef DTENSOR_RUNTIME_NET_HANDSHAKE_H_
#define DTENSOR_RUNTIME_NET_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/net/socket.h"

namespace DTENSOR_EXPORT dtensor {

// What two processes must agree about.
struct JobKey {
  std::string job;     // which of the jobs that may be at one address
  std::string secret;  // may be empty: then whoever knows the job is let in
  uint32_t size = 0;   // ranks of the world
};

// What a connection is for.
enum class LinkKind : uint8_t { kControl = 1, kData = 2 };

enum class Verdict : uint8_t {
  kWelcome = 0,
  kStranger = 1,   // another job, or another secret
  kWrongSize = 2,  // another number of ranks
  kWrongRank = 3,  // no rank of the world, or one that is there already
};

constexpr size_t kNonceBytes = 32, kProofBytes = 32;
std::string RandomNonce();

struct Hello {
  LinkKind kind = LinkKind::kControl;
  uint32_t rank = 0;
  std::string nonce;

  // What a caller sends, in answer to the listener's nonce.
  std::string Encode(const JobKey& key, absl::string_view listeners_nonce) const;
  static constexpr size_t kBytes = 8 + 1 + 4 + 4 + kNonceBytes + kProofBytes;
};

// What to answer to kBytes bytes; fills in `hello`. Any bytes may come.
Verdict ReadHello(absl::string_view bytes, const JobKey& key, absl::string_view listeners_nonce,
                  Hello& hello);
// The listener's proof, which follows kWelcome.
std::string WelcomeProof(const JobKey& key, const Hello& hello, absl::string_view listeners_nonce);

// The caller's side, whole. Errors: kPermissionDenied, kFailedPrecondition: what the listener said,
// or what it is not; kDeadlineExceeded; the socket's; those of `given_up`.
absl::Status Introduce(Socket& socket, LinkKind kind, uint32_t rank, const JobKey& key,
                       NetClock::time_point deadline, const GivenUp& given_up = nullptr);

// Connects to whoever listens there, and introduces itself; again, until `deadline`, where nobody
// listens yet, or where the connection closes before there is a verdict, as a listener that many
// strangers call may do. Errors: as ConnectTo and Introduce.
absl::StatusOr<Socket> ConnectAs(LinkKind kind, uint32_t rank, const JobKey& key,
                                 const HostPort& to, NetClock::time_point deadline,
                                 const GivenUp& given_up = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_HANDSHAKE_H_
