#include "dtensor/placement.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/text_scanner.h"

namespace dtensor {
namespace {

constexpr absl::string_view kSpellings =
    "R, S(0), S(0,unit(16)), S(0,cyclic(2)), S(0,block(1)), S(0,zigzag) or "
    "P(sum) with sum, avg, max, min or product";

absl::string_view NameOf(Order::Kind kind) {
  switch (kind) {
    case Order::Kind::kContiguous:
      return "contiguous";
    case Order::Kind::kUnit:
      return "unit";
    case Order::Kind::kCyclic:
      return "cyclic";
    case Order::Kind::kBlock:
      return "block";
    case Order::Kind::kZigzag:
      return "zigzag";
  }
  return "?";
}

bool ReadOrder(TextScanner& in, Order& order) {
  for (Order::Kind kind : {Order::Kind::kUnit, Order::Kind::kCyclic, Order::Kind::kBlock}) {
    if (!in.Eat(NameOf(kind))) continue;
    order.kind = kind;
    return in.Eat("(") && in.EatInt(&order.n) && in.Eat(")");
  }
  order = Order::Zigzag();
  return in.Eat(NameOf(Order::Kind::kZigzag));
}

bool ReadShard(TextScanner& in, Placement& placement) {
  int64_t dim = 0;
  Order order;
  if (!in.EatInt(&dim) || dim != static_cast<int>(dim)) return false;
  if (in.Eat(",") && !ReadOrder(in, order)) return false;
  placement = Shard(static_cast<int>(dim), order);
  return in.Eat(")");
}

bool ReadPartial(TextScanner& in, Placement& placement) {
  const absl::StatusOr<ReduceOp> op = ParseReduceOp(in.EatName());
  if (!op.ok()) return false;
  placement = Partial(*op);
  return in.Eat(")");
}

bool ReadPlacement(TextScanner& in, Placement& placement) {
  placement = Replicate();
  if (in.Eat("R")) return true;
  if (in.Eat("S(")) return ReadShard(in, placement);
  return in.Eat("P(") && ReadPartial(in, placement);
}

// The end of the first part of "S(0,unit(2)),R": its first comma outside parentheses.
size_t EndOfPart(absl::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] == ',' && depth == 0) return i;
  }
  return text.size();
}

}  // namespace

std::string ToString(Order order) {
  const bool has_size =
      order.kind != Order::Kind::kContiguous && order.kind != Order::Kind::kZigzag;
  return has_size ? absl::StrCat(NameOf(order.kind), "(", order.n, ")")
                  : std::string(NameOf(order.kind));
}

std::string Placement::ToString() const {
  if (is_replicate()) return "R";
  if (is_partial()) return absl::StrCat("P(", dtensor::ToString(op_), ")");
  if (order_ == Order::Contiguous()) return absl::StrCat("S(", dim_, ")");
  return absl::StrCat("S(", dim_, ",", dtensor::ToString(order_), ")");
}

absl::StatusOr<Placement> Placement::Parse(absl::string_view text) {
  TextScanner in(text);
  Placement placement;
  if (ReadPlacement(in, placement) && in.AtEnd()) return placement;
  return InvalidArgument({"cannot read the placement \"", text, "\": write ", kSpellings});
}

std::string ToString(absl::Span<const Placement> placements) {
  return absl::StrJoin(placements, ",", [](std::string* out, const Placement& placement) {
    out->append(placement.ToString());
  });
}

absl::StatusOr<Placements> ParsePlacements(absl::string_view text) {
  Placements placements;
  if (absl::StripAsciiWhitespace(text).empty()) return placements;
  while (true) {
    const size_t end = EndOfPart(text);
    DT_ASSIGN_OR_RETURN(Placement placement, Placement::Parse(text.substr(0, end)));
    placements.push_back(placement);
    if (end == text.size()) return placements;
    text.remove_prefix(end + 1);
  }
}

}  // namespace dtensor
