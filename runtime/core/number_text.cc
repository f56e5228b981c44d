#include "dtensor/runtime/core/number_text.h"

#include <charconv>

namespace dtensor {

std::string ExactText(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string RoundedText(double value, int digits) {
  char text[32];
  char* const end = text + sizeof(text);
  return std::string(text, std::to_chars(text, end, value, std::chars_format::general, digits).ptr);
}

}  // namespace dtensor
