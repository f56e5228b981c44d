// The text form of plans and of the library's styles: reading and printing.
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

// Name("axis" and what follows).
std::string StyleText(absl::string_view name, absl::string_view axis, absl::string_view more = "") {
  return absl::StrCat(name, "(", Quoted(axis), more, ")");
}

std::string EdgeText(absl::string_view mark, const std::optional<Placement>& edge) {
  return edge ? absl::StrCat(", ", mark, edge->ToString()) : "";
}

// One line. Readers return false where the text does not go on as they expect.
class LineReader {
 public:
  explicit LineReader(absl::string_view text) : in_(text) {}

  // {"pattern", Style("axis", in S(1), out R)}
  bool Read(ParallelPlan& plan) {
    std::string pattern;
    std::optional<ParallelStyle> style;
    if (!in_.Eat("{") || !ReadQuoted(pattern) || !in_.Eat(",")) return false;
    if (!ReadStyle(style) || !in_.Eat("}") || !in_.AtEnd()) return false;
    plan.Add({std::move(pattern), *std::move(style)});
    return true;
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

  bool ReadStyle(std::optional<ParallelStyle>& style) {
    static constexpr struct {
      absl::string_view name;
      bool (LineReader::*read_rest)(std::string axis, std::optional<ParallelStyle>& style);
    } kStyles[] = {
        {"Colwise", &LineReader::ReadNothing<Colwise>},
        {"Rowwise", &LineReader::ReadRowwise},
        {"SequenceParallel", &LineReader::ReadNothing<SequenceParallel>},
        {"DataParallel", &LineReader::ReadNothing<DataParallel>},
        {"ContextParallel", &LineReader::ReadContextParallel},
        {"Edges", &LineReader::ReadEdges},
    };
    const absl::string_view name = in_.EatName();
    std::string axis;
    if (!in_.Eat("(") || !ReadQuoted(axis)) return false;
    for (const auto& known : kStyles) {
      if (known.name != name) continue;
      return (this->*known.read_rest)(std::move(axis), style) && in_.Eat(")");
    }
    return false;
  }

  // What follows a style's axis.
  template <typename S>
  bool ReadNothing(std::string axis, std::optional<ParallelStyle>& style) {
    style = S(std::move(axis));
    return true;
  }
  bool ReadRowwise(std::string axis, std::optional<ParallelStyle>& style) {
    std::optional<Placement> output;
    if (!ReadEdge("out ", output)) return false;
    style = Rowwise(std::move(axis), output.value_or(Replicate()));
    return true;
  }
  bool ReadContextParallel(std::string axis, std::optional<ParallelStyle>& style) {
    std::string pattern;
    if (!in_.Eat(",") || !ReadQuoted(pattern)) return false;
    style = ContextParallel(std::move(axis), std::move(pattern));
    return true;
  }
  bool ReadEdges(std::string axis, std::optional<ParallelStyle>& style) {
    std::optional<Placement> input, output;
    if (!ReadEdge("in ", input) || !ReadEdge("out ", output)) return false;
    style = Edges(std::move(axis), input, output);
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

std::string Colwise::ToString() const { return StyleText("Colwise", axis); }
std::string Rowwise::ToString() const {
  return StyleText("Rowwise", axis, EdgeText("out ", output));
}
std::string SequenceParallel::ToString() const { return StyleText("SequenceParallel", axis); }
std::string DataParallel::ToString() const { return StyleText("DataParallel", axis); }
std::string ContextParallel::ToString() const {
  return StyleText("ContextParallel", axis, absl::StrCat(", ", Quoted(pattern)));
}
std::string Edges::ToString() const {
  return StyleText("Edges", axis, EdgeText("in ", input) + EdgeText("out ", output));
}

std::string ParallelPlan::Line::ToString() const {
  return absl::StrCat("{", Quoted(pattern), ", ", style.ToString(), "}");
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
    if (!LineReader(line_text).Read(plan)) {
      return InvalidArgument({"cannot read the plan line ", line_text,
                              "; write {\"pattern\", Style(\"axis\")} with Colwise, Rowwise (and "
                              "out S(1)), SequenceParallel, DataParallel, ContextParallel (and a "
                              "pattern, \"zigzag\") or Edges (and in R, out S(1)), for example "
                              "{\"mlp.down\", Rowwise(\"tp\", out S(1))}"});
    }
  }
  return plan;
}

}  // namespace dtensor
