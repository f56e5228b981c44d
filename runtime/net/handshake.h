// How two processes verify that they belong to one job, before anything else is read.
//
//   listener   32 random bytes
//   caller     Hello: kind and rank, 32 random bytes of its own, and a proof
//   listener   a Verdict; if it is kWelcome, a proof of its own
//
// A proof is an HMAC-SHA256 of everything said so far, keyed by the job's secret. So neither side
// reveals the secret, and what was overheard cannot be used again. What follows is neither
// encrypted nor protected against modification: the network between the hosts of a job is trusted;
// others that can merely reach its ports are not.
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
  std::string job;     // distinguishes jobs at one address
  std::string secret;  // may be empty: then everyone who knows the job is admitted
  uint32_t size = 0;   // ranks of the world
};

// What a connection is for.
enum class LinkKind : uint8_t { kControl = 1, kData = 2 };

enum class Verdict : uint8_t {
  kWelcome = 0,
  kStranger = 1,   // another job, or another secret
  kWrongSize = 2,  // another number of ranks
  kWrongRank = 3,  // no rank of the world, or one that has already joined
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

// Returns the answer to the kBytes bytes of a Hello, and fills in `hello`. Accepts any bytes.
Verdict ReadHello(absl::string_view bytes, const JobKey& key, absl::string_view listeners_nonce,
                  Hello& hello);
// The listener's proof, which follows kWelcome.
std::string WelcomeProof(const JobKey& key, const Hello& hello, absl::string_view listeners_nonce);

// The caller's whole part. Errors: kPermissionDenied, kFailedPrecondition: the listener's verdict,
// or that it is no such listener; kDeadlineExceeded; the socket's; those of `given_up`.
absl::Status Introduce(Socket& socket, LinkKind kind, uint32_t rank, const JobKey& key,
                       NetClock::time_point deadline, const GivenUp& given_up = nullptr);

// Connects to a listener and introduces itself. Repeats this until `deadline` if nobody listens
// yet, or if the connection closes before there is a verdict, as may happen if many strangers call
// the listener. Errors: as ConnectTo and Introduce.
absl::StatusOr<Socket> ConnectAs(LinkKind kind, uint32_t rank, const JobKey& key,
                                 const HostPort& to, NetClock::time_point deadline,
                                 const GivenUp& given_up = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_NET_HANDSHAKE_H_
