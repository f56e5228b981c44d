#include "dtensor/layout/placement.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr absl::string_view kSpellings =
    "R, S(0), S(0,unit(16)), S(0,cyclic(2)), S(0,block(1)), S(0,zigzag) or "
    "P(sum) with sum, avg, max, min or product";

absl::string_view NameOf(ShardOrder::Kind kind) {
  switch (kind) {
    case ShardOrder::Kind::kContiguous:
      return "contiguous";
    case ShardOrder::Kind::kUnit:
      return "unit";
    case ShardOrder::Kind::kCyclic:
      return "cyclic";
    case ShardOrder::Kind::kBlock:
      return "block";
    case ShardOrder::Kind::kZigzag:
      return "zigzag";
  }
  return "?";
}

// The functions below return what they expected and did not find, or nothing if they succeeded.

absl::string_view ReadOrder(TextScanner& in, ShardOrder& order) {
  for (ShardOrder::Kind kind :
       {ShardOrder::Kind::kUnit, ShardOrder::Kind::kCyclic, ShardOrder::Kind::kBlock}) {
    if (!in.Eat(NameOf(kind))) continue;
    order.kind = kind;
    if (!in.Eat("(")) return "'(' and a size";
    if (!in.EatInt(&order.n)) return "a size, a whole number,";
    return in.Eat(")") ? "" : "')'";
  }
  order = ShardOrder::Zigzag();
  return in.Eat(NameOf(ShardOrder::Kind::kZigzag)) ? "" : "unit, cyclic, block or zigzag";
}

absl::string_view ReadShard(TextScanner& in, Placement& placement) {
  int64_t dim = 0;
  ShardOrder order;
  if (in.Eat("dim")) in.Eat("=");
  if (!in.EatInt(&dim) || dim != static_cast<int>(dim)) return "a dimension, a whole number,";
  if (in.Eat(",")) {
    const absl::string_view expected = ReadOrder(in, order);
    if (!expected.empty()) return expected;
  }
  placement = Shard(static_cast<int>(dim), order);
  return in.Eat(")") ? "" : "')'";
}

absl::string_view ReadPartial(TextScanner& in, Placement& placement) {
  absl::string_view name = in.EatName();
  if (name == "reduce_op" && in.Eat("=")) name = in.EatName();
  absl::string_view quote;
  for (const absl::string_view mark : {"\"", "'"}) {
    if (!name.empty() || !in.Eat(mark)) continue;
    quote = mark;
    name = in.EatName();
  }
  const absl::StatusOr<ReduceOp> op = ParseReduceOp(name);
  if (!op.ok()) return "sum, avg, max, min or product";
  if (!in.Eat(quote)) return "the closing quote";
  placement = Partial(*op);
  return in.Eat(")") ? "" : "')'";
}

// Reads the short spelling, or those of C++ and Python: Shard(dim=0), Replicate(), Partial("sum").
absl::string_view ReadPlacement(TextScanner& in, Placement& placement) {
  placement = Replicate();
  if (in.Eat("Replicate()") || in.Eat("R")) return "";
  if (in.Eat("Shard(") || in.Eat("S(")) return ReadShard(in, placement);
  if (in.Eat("Partial()")) {
    placement = Partial();
    return "";
  }
  if (in.Eat("Partial(") || in.Eat("P(")) return ReadPartial(in, placement);
  return "a placement";
}

// The content of a Python list or tuple, without a trailing comma; any other text as it is.
absl::string_view WithoutBrackets(absl::string_view text) {
  for (const auto& [open, close] : {std::pair("[", "]"), {"(", ")"}}) {
    absl::string_view list = absl::StripAsciiWhitespace(text);
    if (!absl::ConsumePrefix(&list, open) || !absl::ConsumeSuffix(&list, close)) continue;
    list = absl::StripAsciiWhitespace(list);
    if (list != ",") absl::ConsumeSuffix(&list, ",");
    return list;
  }
  return text;
}

// PyTorch's _StridedShard cannot be expressed as the placement of one axis alone.
absl::Status RefuseStrided(absl::string_view text) {
  return InvalidArgument({"cannot read the placement \"", text, "\": it says that a later axis of ",
                          "the mesh splits the dimension before this one; write the layout, with ",
                          "the axes of a dimension in the order in which they split it, as ",
                          "[tp,dp] []"});
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

std::string ToString(ShardOrder order) {
  const bool has_size =
      order.kind != ShardOrder::Kind::kContiguous && order.kind != ShardOrder::Kind::kZigzag;
  return has_size ? absl::StrCat(NameOf(order.kind), "(", order.n, ")")
                  : std::string(NameOf(order.kind));
}

std::string Placement::ToString() const {
  if (is_replicate()) return "R";
  if (is_partial()) return absl::StrCat("P(", dtensor::ToString(op_), ")");
  if (order_ == ShardOrder::Contiguous()) return absl::StrCat("S(", dim_, ")");
  return absl::StrCat("S(", dim_, ",", dtensor::ToString(order_), ")");
}

absl::StatusOr<Placement> Placement::Parse(absl::string_view text) {
  TextScanner in(text);
  Placement placement;
  absl::string_view expected = ReadPlacement(in, placement);
  if (expected.empty() && in.AtEnd()) return placement;
  if (expected.empty()) expected = "the end";
  for (const absl::string_view strided : {"_StridedShard(", "_S("}) {
    if (TextScanner(text).Eat(strided)) return RefuseStrided(text);
  }
  const bool named = absl::StrContains(text, ':');
  return InvalidArgument({"cannot read the placement \"", text, "\": expected ", expected, " at \"",
                          in.rest(), "\"; write ", kSpellings,
                          named ? ", without names of axes: placements stand in mesh order" : ""});
}

std::string ToString(absl::Span<const Placement> placements) {
  return absl::StrJoin(placements, ",", [](std::string* out, const Placement& placement) {
    out->append(placement.ToString());
  });
}

absl::StatusOr<Placements> ParsePlacements(absl::string_view text) {
  Placements placements;
  text = WithoutBrackets(text);
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
