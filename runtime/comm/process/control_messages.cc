#include "dtensor/runtime/comm/process/control_messages.h"

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/wire.h"

namespace dtensor {

std::string Encode(const RankStatus& message) {
  WireWriter out;
  out.U32(static_cast<uint32_t>(message.rank));
  out.U8(static_cast<uint8_t>(message.status.code()));
  out.Text(message.status.message());
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

std::string Encode(const std::vector<RankCard>& cards) {
  WireWriter out;
  for (const RankCard& card : cards) {
    out.Text(card.host);
    out.Text(card.text);
  }
  return out.bytes();
}

absl::StatusOr<std::vector<RankCard>> ReadCards(absl::string_view body, int size) {
  WireReader in(body);
  std::vector<RankCard> cards;
  for (int rank = 0; rank < size && in.ok(); ++rank) {
    RankCard card;
    card.host = in.Text();
    card.text = in.Text();
    cards.push_back(std::move(card));
  }
  if (!in.done()) {
    return InvalidArgument({"a message of ", absl::StrCat(body.size()), " bytes is no list of ",
                            absl::StrCat(size), " ranks"});
  }
  return cards;
}

}  // namespace dtensor
