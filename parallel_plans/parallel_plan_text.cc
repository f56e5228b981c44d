// Reads and prints the text of plans. For that of styles, see style_text.h.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/expert_parallel.h"
#include "dtensor/parallel_plans/fully_shard.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

template <typename S>
absl::StatusOr<ParallelStyle> ReadAs(const StyleText& text) {
  absl::StatusOr<S> style = S::Read(text);
  if (!style.ok()) return style.status();
  return ParallelStyle(*std::move(style));
}

const std::vector<StyleReader>& LibraryStyles() {
  static const auto& styles = *new std::vector<StyleReader>{
      {"Colwise", ReadAs<Colwise>},
      {"Rowwise", ReadAs<Rowwise>},
      {"VocabParallel", ReadAs<VocabParallel>},
      {"SequenceParallel", ReadAs<SequenceParallel>},
      {"Replicated", ReadAs<Replicated>},
      {"ShardParameters", ReadAs<ShardParameters>},
      {"DataParallel", ReadAs<DataParallel>},
      {"FullyShard", ReadAs<FullyShard>},
      {"ContextParallel", ReadAs<ContextParallel>},
      {"ExpertParallel", ReadAs<ExpertParallel>},
      {"ExpertTensorParallel", ReadAs<ExpertTensorParallel>},
      {"Stage", ReadAs<Stage>},
      {"Edges", ReadAs<Edges>},
      {"PrepareInput", ReadAs<PrepareInput>},
      {"PrepareOutput", ReadAs<PrepareOutput>},
  };
  return styles;
}

// One line of a plan's text.
class LineReader {
 public:
  LineReader(int number, absl::string_view text, absl::Span<const StyleReader> more)
      : number_(number), text_(text), in_(text), more_(more) {}

  // {"pattern", Style("axis", in S(1), out R)}
  absl::Status Read(ParallelPlan& plan) {
    std::string pattern;
    StyleText style;
    if (!in_.Eat("{") || !internal::ReadQuotedText(in_, pattern) || !in_.Eat(",")) return Stuck();
    const size_t rest = absl::StripLeadingAsciiWhitespace(in_.rest()).size();
    const std::string at = absl::StrCat("column ", text_.size() - rest + 1, ": ");
    if (!internal::ReadStyleText(in_, style) || !in_.Eat("}") || !in_.AtEnd()) return Stuck();
    const StyleReader* reader = ReaderOf(style.name);
    if (reader == nullptr) {
      return Error(
          absl::StrCat(at, "there is no style ", style.name, "; there are ", KnownNames()));
    }
    const absl::StatusOr<ParallelStyle> read = reader->read(style);
    if (!read.ok()) return Error(absl::StrCat(at, read.status().message()));
    plan.Add({std::move(pattern), *read});
    return absl::OkStatus();
  }

 private:
  const StyleReader* ReaderOf(absl::string_view name) const {
    for (const absl::Span<const StyleReader> readers :
         {more_, absl::MakeConstSpan(LibraryStyles())}) {
      const auto found = std::find_if(readers.begin(), readers.end(),
                                      [&](const StyleReader& one) { return one.name == name; });
      if (found != readers.end()) return &*found;
    }
    return nullptr;
  }

  std::string KnownNames() const {
    std::vector<std::string> names;
    for (const StyleReader& reader : LibraryStyles()) names.push_back(reader.name);
    for (const StyleReader& reader : more_) names.push_back(reader.name);
    return absl::StrJoin(names, ", ");
  }

  absl::Status Stuck() const {
    return Error(absl::StrCat("cannot be read from column ", text_.size() - in_.rest().size() + 1,
                              " on; write {\"pattern\", Style(\"axis\")}, where some styles take "
                              "more, as in {\"mlp.down\", "
                              "Rowwise(\"tp\", out S(1))}; there are ",
                              KnownNames()));
  }

  absl::Status Error(absl::string_view why) const {
    return InvalidArgument({"plan line ", absl::StrCat(number_), ", ", text_, ": ", why});
  }

  const int number_;
  const absl::string_view text_;
  TextScanner in_;
  const absl::Span<const StyleReader> more_;
};

}  // namespace

std::string ParallelPlan::Line::ToString() const {
  return absl::StrCat("{", internal::QuotedText(pattern), ", ", style.ToString(), "}");
}

std::string ParallelPlan::ToString() const {
  return absl::StrJoin(lines_, "\n", [](std::string* out, const Line& line) {
    absl::StrAppend(out, line.ToString());
  });
}

absl::StatusOr<ParallelPlan> ParallelPlan::Parse(absl::string_view text,
                                                 absl::Span<const StyleReader> more) {
  ParallelPlan plan;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view trimmed = absl::StripTrailingAsciiWhitespace(line);
    if (absl::StripLeadingAsciiWhitespace(trimmed).empty()) continue;
    DT_RETURN_IF_ERROR(LineReader(number, trimmed, more).Read(plan));
  }
  return plan;
}

}  // namespace dtensor
