#include "dtensor/runtime/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

constexpr absl::string_view kMagic = "dtensor1";
constexpr std::chrono::milliseconds kLook(100);  // how often GivenUp is asked

std::string Hmac(absl::string_view key, absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  const void* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest, &length);
  DT_CHECK(made != nullptr && length == kProofBytes);
  return std::string(reinterpret_cast<const char*>(digest), length);
}

// Covers who speaks, of which job, and what is said. Each part has its length in front, so that
// different parts never give the same text.
std::string Proof(const JobKey& key, absl::string_view who, absl::string_view said,
                  absl::string_view answers) {
  WireWriter all;
  for (const absl::string_view part : {who, absl::string_view(key.job), said, answers}) {
    all.Text(part);
  }
  return Hmac(key.secret, all.bytes());
}

bool Equal(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Errors: those of `given_up`, which is called from time to time.
absl::StatusOr<std::string> Receive(Socket& socket, size_t size, NetClock::time_point deadline,
                                    const GivenUp& given_up) {
  while (!AwaitReadable(socket, std::min(deadline, NetClock::now() + kLook))) {
    if (NetClock::now() >= deadline) return absl::DeadlineExceededError("the peer says nothing");
    if (given_up) DT_RETURN_IF_ERROR(given_up());
  }
  std::string text(size, '\0');
  DT_RETURN_IF_ERROR(
      ReceiveAll(socket, {reinterpret_cast<std::byte*>(text.data()), text.size()}, deadline));
  return text;
}

absl::Status Refusal(Verdict verdict, const JobKey& key, uint32_t rank) {
  switch (verdict) {
    case Verdict::kStranger:
      return absl::PermissionDeniedError(
          "what listens there is of another job, or has another secret; give all ranks one job and "
          "one secret, and each job an address of its own");
    case Verdict::kWrongSize:
      return absl::FailedPreconditionError(
          absl::StrCat("its world has not ", key.size, " ranks, as this one"));
    case Verdict::kWrongRank:
      return absl::FailedPreconditionError(
          absl::StrCat("it has a rank ", rank, " already; two processes have the same rank"));
    default:
      return absl::PermissionDeniedError("what listens there is no rank of this library");
  }
}

}  // namespace

std::string RandomNonce() {
  std::string nonce(kNonceBytes, '\0');
  DT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceBytes) == 1);
  return nonce;
}

std::string Hello::Encode(const JobKey& key, absl::string_view listeners_nonce) const {
  WireWriter hello;
  hello.Raw(kMagic);
  hello.U8(static_cast<uint8_t>(kind));
  hello.U32(rank);
  hello.U32(key.size);
  hello.Raw(nonce);
  hello.Raw(Proof(key, "caller", hello.bytes(), listeners_nonce));
  return hello.bytes();
}

Verdict ReadHello(absl::string_view bytes, const JobKey& key, absl::string_view listeners_nonce,
                  Hello& hello) {
  WireReader in(bytes);
  const absl::string_view magic = in.Raw(kMagic.size());
  const uint8_t kind = in.U8();
  hello.kind = static_cast<LinkKind>(kind);
  hello.rank = in.U32();
  const uint32_t size = in.U32();
  hello.nonce = std::string(in.Raw(kNonceBytes));
  const absl::string_view proof = in.Raw(kProofBytes);
  if (!in.done() || magic != kMagic || kind < 1 || kind > 2) return Verdict::kStranger;
  const absl::string_view said = bytes.substr(0, bytes.size() - kProofBytes);
  if (!Equal(proof, Proof(key, "caller", said, listeners_nonce))) return Verdict::kStranger;
  if (size != key.size) return Verdict::kWrongSize;
  return hello.rank < size ? Verdict::kWelcome : Verdict::kWrongRank;
}

std::string WelcomeProof(const JobKey& key, const Hello& hello, absl::string_view listeners_nonce) {
  return Proof(key, "listener", listeners_nonce, hello.nonce);
}

absl::Status Introduce(Socket& socket, LinkKind kind, uint32_t rank, const JobKey& key,
                       NetClock::time_point deadline, const GivenUp& given_up) {
  DT_ASSIGN_OR_RETURN(const std::string listeners_nonce,
                      Receive(socket, kNonceBytes, deadline, given_up));
  const Hello hello = {kind, rank, RandomNonce()};
  DT_RETURN_IF_ERROR(SendAll(socket, Bytes(hello.Encode(key, listeners_nonce)), deadline));
  DT_ASSIGN_OR_RETURN(const std::string verdict, Receive(socket, 1, deadline, given_up));
  if (verdict[0] != static_cast<char>(Verdict::kWelcome)) {
    return Refusal(static_cast<Verdict>(verdict[0]), key, rank);
  }
  DT_ASSIGN_OR_RETURN(const std::string proof, Receive(socket, kProofBytes, deadline, given_up));
  if (Equal(proof, WelcomeProof(key, hello, listeners_nonce))) return absl::OkStatus();
  return Refusal(Verdict::kStranger, key, rank);
}

absl::StatusOr<Socket> ConnectAs(LinkKind kind, uint32_t rank, const JobKey& key,
                                 const HostPort& to, NetClock::time_point deadline,
                                 const GivenUp& given_up) {
  while (true) {
    DT_ASSIGN_OR_RETURN(Socket socket, ConnectTo(to, deadline, given_up));
    const absl::Status met = Introduce(socket, kind, rank, key, deadline, given_up);
    if (met.ok()) return socket;
    if (!absl::IsUnavailable(met) && !absl::IsDeadlineExceeded(met)) return met;
    if (given_up) DT_RETURN_IF_ERROR(given_up());
    if (NetClock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "what listens at ", to.ToString(), " does not let this rank in: ", met.message(),
          "; another program may have that port, or the rank there has been stopped"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace dtensor
