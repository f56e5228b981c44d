// StyleText: the text of a style, as plans print and read it.
//
//   Rowwise("tp", out S(1))    PrepareInput("tp", S(1), -)    ContextParallel("cp", "zigzag")
//
// A name, the axis, and arguments, each with a key or none: a placement, "-" for none, a quoted
// text, or a whole number. A style of your own that is to be read from plans' text prints itself by
// this and has a StyleReader: `SplitRows` with an `output`, say:
//
//   std::string ToString() const {
//     return StyleText{"SplitRows", axis, {{"out", output}}}.ToString();
//   }
//   static absl::StatusOr<ParallelStyle> Read(const StyleText& text) {
//     ArgumentReader arguments(text);
//     SplitRows style{text.axis, arguments.TakePlacement("out").value_or(Replicate())};
//     DT_RETURN_IF_ERROR(arguments.Done());
//     return style;
//   }
//   ParallelPlan::Parse(text, {{"SplitRows", SplitRows::Read}});
#ifndef DTENSOR_PARALLEL_PLANS_STYLE_TEXT_H_
#define DTENSOR_PARALLEL_PLANS_STYLE_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/placement.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct StyleArgument {
  std::string key;                                                      // empty: none
  std::variant<std::monostate, Placement, std::string, int64_t> value;  // monostate: "-"

  StyleArgument(std::string key, std::optional<Placement> placement);
  StyleArgument(std::string key, std::string text);
  StyleArgument(std::string key, int64_t number);
};

struct StyleText {
  std::string name, axis;
  std::vector<StyleArgument> arguments;

  std::string ToString() const;
};

// Takes a style's arguments out of its text, one after the other, in any order.
class ArgumentReader {
 public:
  explicit ArgumentReader(const StyleText& text) : text_(text) {}

  // The argument of this key; nothing where there is none, or "-". One of another kind is an error
  // of Done().
  std::optional<Placement> TakePlacement(absl::string_view key);
  std::optional<std::string> TakeString(absl::string_view key);
  std::optional<int64_t> TakeNumber(absl::string_view key);
  // The first that is left.
  std::optional<StyleArgument> TakeNext();

  // Errors: kInvalidArgument for arguments that nobody took, or of another kind than asked.
  absl::Status Done() const;

 private:
  template <typename T>
  std::optional<T> Take(absl::string_view key);
  StyleText text_;
  std::string wrong_;  // the first argument of another kind
};

// Makes a style of its text. Errors: kInvalidArgument, without the line.
struct StyleReader {
  std::string name;
  absl::StatusOr<ParallelStyle> (*read)(const StyleText& text);
};

namespace internal {

// "text", with \ before what would end it.
std::string QuotedText(absl::string_view text);
bool ReadQuotedText(TextScanner& in, std::string& value);
// Reads a style's text. False, with `in` where it could not be read on.
bool ReadStyleText(TextScanner& in, StyleText& text);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_STYLE_TEXT_H_
