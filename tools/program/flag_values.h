// The valid values of flags, by the type name that a program gives its option:
//
//   app.add_option("--dtype", dtype, "of the model")->type_name("f32|f64|bf16");
//   app.add_option("--memory", bytes, "of a rank")->type_name("BYTES");
//   app.add_option("--out", path, "results")->type_name("FILE");
//
//   a|b|c              one of these words
//   BYTES              a number of bytes (byte_size.h); the variable is an int64_t
//   FILE               a path
//   INT, UINT, FLOAT   numbers, as CLI11 names such variables by default: decimal, and finite
//
// Anything else is text and not checked here.
#ifndef DTENSOR_TOOLS_PROGRAM_FLAG_VALUES_H_
#define DTENSOR_TOOLS_PROGRAM_FLAG_VALUES_H_

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dtensor {

// Makes the options of `app` and its commands refuse invalid values, suggesting the nearest word if
// there is one.
void CheckValues(CLI::App& app);

// The words that an option takes; none if it takes something else.
std::vector<std::string> WordsOf(const CLI::Option& option);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_FLAG_VALUES_H_
