#include "dtensor/runtime/comm/process/control_messages.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

constexpr size_t kLongestError = 1 << 16;  // bytes: frames have a largest size
constexpr uint64_t kMostMicroseconds = uint64_t{1000000000} * 1000000;

}  // namespace

std::string Encode(const RankStatus& message) {
  WireWriter out;
  out.U32(static_cast<uint32_t>(message.rank));
  out.U8(static_cast<uint8_t>(message.status.code()));
  const absl::string_view text = message.status.message();
  out.Text(text.size() <= kLongestError ? std::string(text) : Shortened(text));
  return out.bytes();
}

absl::StatusOr<RankStatus> ReadRankStatus(absl::string_view body, int size) {
  WireReader in(body);
  const uint32_t rank = in.U32();
  const uint8_t code = in.U8();
  const std::string text = in.Text();
  if (!in.done() || rank >= static_cast<uint32_t>(size) ||
      code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated)) {
    return InvalidArgument({"a message of ", absl::StrCat(body.size()), " bytes is no status"});
  }
  return RankStatus{static_cast<int>(rank),
                    absl::Status(static_cast<absl::StatusCode>(code), text)};
}

std::string Encode(const WorldCards& cards) {
  WireWriter out;
  out.U64(static_cast<uint64_t>(std::llround(cards.timeout_seconds * 1e6)));
  for (const RankCard& card : cards.ranks) {
    out.Text(card.host);
    out.Text(card.text);
  }
  return out.bytes();
}

absl::StatusOr<WorldCards> ReadCards(absl::string_view body, int size) {
  WireReader in(body);
  WorldCards cards;
  const uint64_t microseconds = in.U64();
  cards.timeout_seconds = static_cast<double>(microseconds) * 1e-6;
  for (int rank = 0; rank < size && in.ok(); ++rank) {
    RankCard card;
    card.host = in.Text();
    card.text = in.Text();
    cards.ranks.push_back(std::move(card));
  }
  if (!in.done() || microseconds == 0 || microseconds > kMostMicroseconds) {
    return InvalidArgument({"a message of ", absl::StrCat(body.size()), " bytes is no list of ",
                            absl::StrCat(size), " ranks"});
  }
  return cards;
}

}  // namespace dtensor
