// An explanation, drawn: memory by kind, and what each module costs.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_PICTURE_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_PICTURE_H_

#include <string>

#include "dtensor/parallel_plans/explain/explain.h"

namespace dtensor::cli {

// An SVG document: a bar for each kind of memory beside the peak; and for each module, layers that
// are alike together, a bar of its time, of which the part is marked that waits for communication.
std::string DrawExplanation(const Explanation& explanation, const std::string& title);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_PICTURE_H_
