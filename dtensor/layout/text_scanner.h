// TextScanner: reads a text form (mesh, placement, layout, rule) piece by piece, skipping blanks.
//
//   TextScanner in("dp = 2");
//   in.EatName() == "dp";  in.Eat("=");  in.EatInt(&size);  in.AtEnd()
#ifndef DTENSOR_LAYOUT_TEXT_SCANNER_H_
#define DTENSOR_LAYOUT_TEXT_SCANNER_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Whether `name` is letters, digits and '_', does not start with a digit, and is not "_" alone
// (which in a layout's text stands for a factor that no axis splits).
bool IsName(absl::string_view name);

// Text that does not match is left unread. Keeps a view of `text`.
class TextScanner {
 public:
  explicit TextScanner(absl::string_view text) : rest_(text) {}

  bool Eat(absl::string_view token);
  bool EatInt(int64_t* value);  // decimal, with an optional '-'
  absl::string_view EatName();  // letters, digits and '_', not first a digit; empty if none
  bool AtEnd();                 // nothing but blanks is left
  absl::string_view rest() const { return rest_; }

 private:
  void SkipBlanks();
  absl::string_view rest_;
};

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_TEXT_SCANNER_H_
