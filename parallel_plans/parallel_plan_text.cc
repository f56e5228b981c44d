// The text form of plans: reading and printing.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

// What a style's author chooses; the rest follows from its name.
struct Choices {
  bool pattern = false, input = false, output = false;
};
Choices ChoicesOf(absl::string_view style) {
  const bool edges = style == "Edges";
  return {
      .pattern = style == "ContextParallel", .input = edges, .output = edges || style == "Rowwise"};
}

// One line. Readers return false where the text does not go on as they expect.
class LineReader {
 public:
  explicit LineReader(absl::string_view text) : in_(text) {}

  // {"pattern", Style("axis", in S(1), out R)}
  bool Read(ParallelPlan::Line& line) {
    return in_.Eat("{") && ReadQuoted(line.pattern) && in_.Eat(",") && ReadStyle(line.style) &&
           in_.Eat("}") && in_.AtEnd();
  }

 private:
  bool ReadQuoted(std::string& value) {
    if (!in_.Eat("\"")) return false;
    const absl::string_view rest = in_.rest();
    size_t end = 0;
    while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) return false;
    in_ = TextScanner(rest.substr(end + 1));
    return absl::CUnescape(rest.substr(0, end), &value);
  }

  bool ReadStyle(ParallelStyle& style) {
    const std::string name(in_.EatName());
    std::string axis;
    if (!in_.Eat("(") || !ReadQuoted(axis) || !MakeStyle(name, std::move(axis), style))
      return false;
    const Choices choices = ChoicesOf(name);
    if (choices.pattern && (!in_.Eat(",") || !ReadQuoted(style.pattern))) return false;
    if (choices.input && !ReadEdge("in ", style.input)) return false;
    if (choices.output && !ReadEdge("out ", style.output)) return false;
    return in_.Eat(")");
  }

  static bool MakeStyle(absl::string_view name, std::string axis, ParallelStyle& style) {
    if (name == "Colwise") {
      style = Colwise(std::move(axis));
    } else if (name == "Rowwise") {
      style = Rowwise(std::move(axis));
    } else if (name == "SequenceParallel") {
      style = SequenceParallel(std::move(axis));
    } else if (name == "DataParallel") {
      style = DataParallel(std::move(axis));
    } else if (name == "ContextParallel") {
      style = ContextParallel(std::move(axis), "");
    } else if (name == "Edges") {
      style = Edges(std::move(axis), std::nullopt, std::nullopt);
    } else {
      return false;
    }
    return true;
  }

  // ", out S(1)", or nothing: then `edge` stays as it is.
  bool ReadEdge(absl::string_view mark, std::optional<Placement>& edge) {
    TextScanner after_comma = in_;
    if (!after_comma.Eat(",") || !after_comma.Eat(mark)) return true;
    const absl::string_view rest = after_comma.rest();
    const size_t end = EndOfPlacement(rest);
    absl::StatusOr<Placement> placement = Placement::Parse(rest.substr(0, end));
    if (!placement.ok()) return false;
    edge = *placement;
    in_ = TextScanner(rest.substr(end));
    return true;
  }

  // The first ',' or ')' that belongs to no '(' in the text.
  static size_t EndOfPlacement(absl::string_view text) {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (depth == 0 && (text[i] == ',' || text[i] == ')')) return i;
      depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    }
    return text.size();
  }

  TextScanner in_;
};

}  // namespace

std::string ParallelPlan::Line::ToString() const {
  std::string text = absl::StrCat("{", Quoted(pattern), ", ", style.name, "(", Quoted(style.axis));
  const Choices choices = ChoicesOf(style.name);
  if (choices.pattern) absl::StrAppend(&text, ", ", Quoted(style.pattern));
  if (choices.input && style.input) absl::StrAppend(&text, ", in ", style.input->ToString());
  if (choices.output && style.output) absl::StrAppend(&text, ", out ", style.output->ToString());
  return absl::StrCat(text, ")}");
}

std::string ParallelPlan::ToString() const {
  return absl::StrJoin(lines_, "\n", [](std::string* out, const Line& line) {
    absl::StrAppend(out, line.ToString());
  });
}

absl::StatusOr<ParallelPlan> ParallelPlan::Parse(absl::string_view text) {
  ParallelPlan plan;
  for (absl::string_view line_text : absl::StrSplit(text, '\n')) {
    line_text = absl::StripAsciiWhitespace(line_text);
    if (line_text.empty()) continue;
    Line line;
    if (!LineReader(line_text).Read(line)) {
      return InvalidArgument({"cannot read the plan line ", line_text,
                              "; write {\"pattern\", Style(\"axis\")} with Colwise, Rowwise (and "
                              "out S(1)), SequenceParallel, DataParallel, ContextParallel (and a "
                              "pattern, \"zigzag\") or Edges (and in R, out S(1)), for example "
                              "{\"mlp.down\", Rowwise(\"tp\", out S(1))}"});
    }
    plan.Add(std::move(line));
  }
  return plan;
}

}  // namespace dtensor
