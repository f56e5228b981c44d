// Command lines, the same in every program, around CLI11:
//
//   CLI::App app("Trains ...", "train");
//   app.add_option("--lr", lr, "learning rate");
//   if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
//
// Flags are spelled with hyphens (--kv-heads), and understood with underscores too. What values are
// taken, their types say (flag_values.h). There are --help and --version, and where a program has
// commands also `help COMMAND` and `completion bash|zsh`. What is refused is one line on stderr
// that says what was wanted, and names the nearest flag, command or word where one is unknown; exit
// status 2. Where a command has a flag --json, and it is given, errors are on stdout, too:
//
//   {"error":{"code":"NOT_FOUND","command":"dtensor plan","flag":"--links","message":"..."}}
//
// on one line, so that a program that reads stdout always gets JSON. "flag" is there if the message
// begins with one, and "code" is the name of an absl::StatusCode.
// Of the ranks of a world, which have the same command line, one prints (speaker.h).
#ifndef DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_
#define DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dtensor/tools/program/speaker.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dtensor {

// Parses into what the app's options name. An exit status, where the program is done: 0 after
// what was asked for was printed (--help and its like), 1 if it could not be, 2 for what is
// refused. `speaks`: whether this process prints. Requires: an app with a name, and with at most
// one command to be given.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv,
                                    bool speaks = IsSpeaker());

// The same of a program that starts another one. It is no rank itself, whatever ranks it was
// started among, and always prints. `command` becomes what follows the app's own flags, as it is,
// but for one `--` at its begin. Refused as well: no command. Requires: an app without positionals
// and commands.
std::optional<int> ParseLauncherLine(CLI::App& app, int argc, char** argv,
                                     std::vector<std::string>& command);

// As messages begin: "dtensor plan", or "dtensor" before a command is known.
std::string CommandName(const CLI::App& app);

// Prints an error: a line on stderr, and JSON on stdout if that was asked for.
void ReportError(const CLI::App& app, const absl::Status& error);

// What `run` returns; 1, after ReportError, for an exception, as when memory runs out.
int RunGuarded(const CLI::App& app, absl::FunctionRef<int()> run);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_
