// A picture of an explanation: memory by kind, and what each module costs.
#ifndef DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_PICTURE_H_
#define DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_PICTURE_H_

#include <string>

#include "dtensor/parallel_plans/explain/explain.h"

namespace dtensor::cli {

// An SVG document: a bar for each kind of memory next to the peak; and a bar of time for each
// module, with identical layers combined, in which the time spent waiting for communication is
// marked.
std::string DrawExplanation(const Explanation& explanation, const std::string& title);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_EXPLAIN_EXPLAIN_PICTURE_H_
