// The first message of a caller: as it is, which proves nothing; and as a caller that knows the
// secret would send it, with the input's kind, rank and nonce.
#include <cstdint>
#include <string>

#include "dtensor/runtime/net/handshake.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

constexpr size_t kSaid = Hello::kBytes - kProofBytes;

// No input proves that it knows the secret.
void TryStranger(absl::string_view input, const JobKey& key, const std::string& nonce) {
  Hello hello;
  Require(ReadHello(input, key, nonce, hello) == Verdict::kStranger, "a stranger stays outside");
}

// Any rank and nonce, by one who knows it.
void TryCaller(absl::string_view input, const JobKey& key, const std::string& nonce) {
  std::string said(input.substr(0, kSaid));
  said.resize(kSaid, 'x');
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(said[i]); };
  const uint32_t rank = byte(9) | byte(10) << 8 | byte(11) << 16 | uint32_t{byte(12)} << 24;
  const LinkKind kind = byte(8) % 2 == 0 ? LinkKind::kControl : LinkKind::kData;
  const Hello sent = {kind, rank, said.substr(kSaid - kNonceBytes)};
  const std::string bytes = sent.Encode(key, nonce);
  Hello read;
  const Verdict verdict = ReadHello(bytes, key, nonce, read);
  Require(verdict == (rank < key.size ? Verdict::kWelcome : Verdict::kWrongRank),
          "who knows the secret, and has a rank, comes in");
  Require(read.kind == sent.kind && read.rank == sent.rank && read.nonce == sent.nonce,
          "a hello is read as it was said");
  Require(read.Encode(key, nonce) == bytes, "a hello is written as it was read");
  if (!input.empty()) {  // the same with a bit that was changed on the way
    std::string changed = bytes;
    changed[input.size() % bytes.size()] ^= static_cast<char>(1 << (byte(0) % 8));
    TryStranger(changed, key, nonce);
  }
}

}  // namespace

void Try(absl::string_view input) {
  const JobKey key = {"job", "a secret", 8};
  const std::string nonce(kNonceBytes, 'n');
  TryStranger(input, key, nonce);
  TryCaller(input, key, nonce);
}

}  // namespace dtensor::fuzz
