#include "dtensor/tools/cli/json_text.h"

namespace dtensor::cli {
namespace {

// Replaces bytes that are not UTF-8, which a file's name may have.
std::string Dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ValueText(const nlohmann::ordered_json& value) {
  if (!value.is_array() || value.empty() || !value[0].is_object()) return Dump(value);
  std::string text = "[";
  for (const nlohmann::ordered_json& element : value) {
    text += (text.size() > 1 ? ",\n    " : "\n    ") + Dump(element);
  }
  return text + "\n  ]";
}

}  // namespace

std::string JsonText(const nlohmann::ordered_json& object) {
  std::string text = "{";
  for (const auto& [key, value] : object.items()) {
    text += (text.size() > 1 ? ",\n  " : "\n  ") + Dump(key) + ": ";
    text += ValueText(value);
  }
  return text + "\n}\n";
}

}  // namespace dtensor::cli
