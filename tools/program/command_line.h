// Command lines, the same in every program, based on CLI11:
//
//   CLI::App app("Trains ...", "train");
//   app.add_option("--lr", lr, "learning rate");
//   if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
//
// Flags are spelled with hyphens (--kv-heads), and accepted with underscores, too. Their types say
// which values are valid (flag_values.h). There are --help and --version, and, if a program has
// commands, also `help COMMAND` and `completion bash|zsh`. An invalid command line gives one line
// on stderr that says what was expected and names the nearest flag, command or word if one is
// unknown; exit status 2. If a command has a flag --json, and it is given, errors are printed on
// stdout, too:
//
//   {"error":{"code":"NOT_FOUND","command":"dtensor plan","flag":"--links","message":"..."}}
//
// on one line, so a program that reads stdout always gets JSON. "flag" is present if the message
// begins with one, and "code" is the name of an absl::StatusCode. Of the ranks of a world, which
// have the same command line, one prints (speaker.h).
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

// Parses into the variables of the app's options. Returns an exit status if the program is done: 0
// after printing what was asked for (--help and the like), 1 if that could not be printed, 2 for an
// invalid command line. `speaks`: whether this process prints. Requires: an app with a name, of
// which at most one command may be given.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv,
                                    bool speaks = IsSpeaker());

// The same for a program that starts another one. It is not a rank itself, whatever ranks it was
// started among, and always prints. `command` is set to what follows the app's own flags, unchanged
// except for one leading `--`. A missing command is refused as well. Requires: an app without
// positionals and commands.
std::optional<int> ParseLauncherLine(CLI::App& app, int argc, char** argv,
                                     std::vector<std::string>& command);

// How messages begin: "dtensor plan", or "dtensor" before a command is known.
std::string CommandName(const CLI::App& app);

// Prints an error: a line on stderr, and JSON on stdout if that was asked for.
void ReportError(const CLI::App& app, const absl::Status& error);

// Returns what `run` returns; for an exception, as when memory runs out, 1 after ReportError.
int RunGuarded(const CLI::App& app, absl::FunctionRef<int()> run);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_COMMAND_LINE_H_
