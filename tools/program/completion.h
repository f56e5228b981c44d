// Completion of a program's command line by a shell.
#ifndef DTENSOR_TOOLS_PROGRAM_COMPLETION_H_
#define DTENSOR_TOOLS_PROGRAM_COMPLETION_H_

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace dtensor {

enum class Shell { kBash, kZsh };

// A script that the shell reads when it starts: it completes commands, the flags of each, and
// values that are words or files (flag_values.h). Requires: a name of letters, digits, '-' and '_'.
std::string CompletionScript(const CLI::App& app, Shell shell);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_COMPLETION_H_
