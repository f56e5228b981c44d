#include "dtensor/tools/cli/json_text.h"

namespace dtensor::cli {
namespace {

std::string ValueText(const nlohmann::ordered_json& value) {
  if (!value.is_array() || value.empty() || !value[0].is_object()) return value.dump();
  std::string text = "[";
  for (const nlohmann::ordered_json& element : value) {
    text += (text.size() > 1 ? ",\n    " : "\n    ") + element.dump();
  }
  return text + "\n  ]";
}

}  // namespace

std::string JsonText(const nlohmann::ordered_json& object) {
  std::string text = "{";
  for (const auto& [key, value] : object.items()) {
    text += (text.size() > 1 ? ",\n  " : "\n  ") + nlohmann::json(key).dump() + ": ";
    text += ValueText(value);
  }
  return text + "\n}\n";
}

}  // namespace dtensor::cli
