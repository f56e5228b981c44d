// JSON formatted for people: a line for each member, and for each object in a list.
#ifndef DTENSOR_TOOLS_CLI_JSON_TEXT_H_
#define DTENSOR_TOOLS_CLI_JSON_TEXT_H_

#include <string>

#include "nlohmann/json.hpp"

namespace dtensor::cli {

// Requires: an object. Ends with a line break.
std::string JsonText(const nlohmann::ordered_json& object);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_JSON_TEXT_H_
