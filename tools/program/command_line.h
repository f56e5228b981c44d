// Command lines, the same in every program, around CLI11:
//
//   CLI::App app("Trains ...", "train");
//   app.add_option("--lr", lr, "learning rate");
//   if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
//
// Flags are spelled with hyphens (--kv-heads), and understood with underscores too. There are
// --help and --version. Numbers are decimal, and finite. What is refused is one line on stderr that
// says what was wanted, and names the nearest flag or command where one is unknown; exit status 2.
// Of several processes, which have the same command line, one prints (speaker.h).
#ifndef DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_
#define DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dtensor {

// Parses into what the app's options name. An exit status, where the program is done: 0 after
// --help and --version, 1 if they could not be printed, 2 for what is refused.
// Requires: an app with a name, and with at most one command to be given.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// As messages begin: "dtensor plan", or "dtensor" before a command is known.
std::string CommandName(const CLI::App& app);

// What `run` returns; 1, with a line on stderr, for an exception, as when memory runs out.
int RunGuarded(const CLI::App& app, absl::FunctionRef<int()> run);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_
