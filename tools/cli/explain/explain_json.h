// An explanation as JSON, and a comparison of two.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_JSON_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_JSON_H_

#include <string>
#include <vector>

#include "dtensor/parallel_plans/explain/explain.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {

nlohmann::ordered_json ExplanationJson(const Explanation& explanation);
// The whole step in the same form; instead of the lists of modules and of parameters, one list of
// modules with both.
nlohmann::ordered_json PlacedJson(const Explanation& explanation);

// Every figure of the whole step that at least one of two explanations has, under one name:
// "memory.peak", "forward.all-gather(tp).bytes", "backward.exposed_seconds". 0 if one lacks it.
struct ComparedFigure {
  std::string name;
  double first = 0, second = 0;
};
std::vector<ComparedFigure> Compare(const Explanation& first, const Explanation& second);
nlohmann::ordered_json ComparisonJson(const std::vector<ComparedFigure>& figures);
// A line for each figure that differs.
std::string ComparisonText(const std::vector<ComparedFigure>& figures);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_JSON_H_
