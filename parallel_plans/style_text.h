// StyleText: the text of a style, as plans print and read it.
//
//   Rowwise("tp", out S(1))    PrepareInput("tp", S(1), -)    ContextParallel("cp", "zigzag")
//
// It consists of a name, the axis, and arguments, each with or without a key. An argument is a
// placement, "-" for none, a quoted text, or a whole number. If a style of your own is to be parsed
// from a plan's text, print it with StyleText and write a StyleReader. For example, for a style
// `SplitRows` with an `output`:
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

// Takes the arguments out of a style's text one by one, in any order.
class ArgumentReader {
 public:
  explicit ArgumentReader(const StyleText& text) : text_(text) {}

  // The argument with this key; nullopt if there is none or it is "-". If it is of another type,
  // Done() returns an error.
  std::optional<Placement> TakePlacement(absl::string_view key);
  std::optional<std::string> TakeString(absl::string_view key);
  std::optional<int64_t> TakeNumber(absl::string_view key);

  // Errors: kInvalidArgument if arguments were not taken, or were of another type than asked for.
  absl::Status Done() const;

 private:
  template <typename T>
  std::optional<T> Take(absl::string_view key);
  StyleText text_;
  std::string wrong_;  // the first argument of another kind
};

// Makes a style from its text. Errors: kInvalidArgument; the caller adds the line.
struct StyleReader {
  std::string name;
  absl::StatusOr<ParallelStyle> (*read)(const StyleText& text);
};

namespace internal {

// Reads a style that is made of an axis and an `out` (missing: R), and `in` if it has an `input`.
template <typename S>
absl::StatusOr<S> ReadOutput(const StyleText& text) {
  ArgumentReader arguments(text);
  S style(text.axis, arguments.TakePlacement("out").value_or(Replicate()));
  if constexpr (requires { style.input; }) style.input = arguments.TakePlacement("in");
  if (absl::Status status = arguments.Done(); !status.ok()) return status;
  return style;
}

// The text in quotes, with \ before each character that would end it.
std::string QuotedText(absl::string_view text);
bool ReadQuotedText(TextScanner& in, std::string& value);
// Reads a style's text. On failure returns false, and `in` is where reading stopped.
bool ReadStyleText(TextScanner& in, StyleText& text);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_STYLE_TEXT_H_
