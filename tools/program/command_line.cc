#include "dtensor/tools/program/command_line.h"

#include <algorithm>
#include <exception>
#include <new>
#include <sstream>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/tools/program/completion.h"
#include "dtensor/tools/program/flag_values.h"
#include "dtensor/tools/program/nearest_word.h"
#include "dtensor/tools/program/output.h"
#include "dtensor/version.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

// The option of the app that an argument names: --a_b=c names --a-b. Null if there is none.
const CLI::Option* OptionNamed(const CLI::App& app, const std::string& argument) {
  if (!absl::StartsWith(argument, "--")) return app.get_option_no_throw(argument.substr(0, 2));
  std::string flag = argument.substr(0, argument.find('='));
  std::replace(flag.begin(), flag.end(), '_', '-');
  return app.get_option_no_throw(flag);
}

// How many of the arguments are the launcher's own: those before the command, or before an argument
// that looks like a flag but is none of the launcher's.
int OwnArguments(const CLI::App& app, int argc, char** argv) {
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string argument = argv[i];
    const CLI::Option* const option = OptionNamed(app, argument);
    if (option == nullptr) break;
    const bool long_flag = absl::StartsWith(argument, "--");
    const bool attached = long_flag ? absl::StrContains(argument, '=') : argument.size() > 2;
    if (option->get_items_expected_max() > 0 && !attached) ++i;  // and its value
  }
  return std::min(i, argc);
}

// The arguments, with hyphens in the names of flags.
std::vector<std::string> Arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (std::string& argument : arguments) {
    if (!absl::StartsWith(argument, "--")) continue;
    const auto end = std::find(argument.begin(), argument.end(), '=');
    std::replace(argument.begin(), end, '_', '-');
  }
  return arguments;
}

// The innermost command that was given; without a command, the program.
const CLI::App& Given(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : Given(*parsed[0]);
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string ExplainCommand(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> commands = CommandsOf(app);
  std::string what = "no command is given";
  if (!words.empty()) {
    what = absl::StrCat("there is no command \"", Shortened(words[0]), "\"",
                        DidYouMean(words[0], commands));
  }
  const std::string last = commands.back();
  commands.pop_back();
  return absl::StrCat(what, "; take ", absl::StrJoin(commands, ", "), " or ", last,
                      " (--help explains them)");
}

// Explains an argument that belongs to no flag.
std::string ExplainUnknown(const CLI::App& app, const std::string& argument) {
  if (!absl::StartsWith(argument, "-")) {
    return absl::StrCat("\"", Shortened(argument),
                        "\" belongs to no flag; lists have commas and no spaces, as in dp=4,tp=8");
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back(absl::StrCat("--", name));
  }
  const std::string name = argument.substr(0, argument.find('='));
  return absl::StrCat("there is no flag ", Shortened(name), DidYouMean(name, flags));
}

// CLI11's message, or a clearer one.
std::string ExplainOther(const CLI::ParseError& error) {
  const std::string what = error.what();
  if (error.get_name() != "ArgumentMismatch") return what;
  const std::string flag = what.substr(0, what.find(':'));
  return absl::EndsWith(what, " missing") ? absl::StrCat(flag, ": a value is missing")
                                          : absl::StrCat(flag, ": it is given more than once");
}

std::string Explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& given = Given(app);
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const bool is_flag = &given != &app && !unknown.empty() && absl::StartsWith(unknown[0], "-");
  if (!CommandsOf(given).empty() && !is_flag) return ExplainCommand(given, unknown);
  // A misspelled flag comes first: it may be the one that is missing.
  return absl::StrCat(unknown.empty() ? ExplainOther(error) : ExplainUnknown(given, unknown[0]),
                      "; `", CommandName(app), " --help` lists the flags");
}

int PrintAsked(const CLI::App& app, absl::string_view text, bool speaks) {
  const absl::Status printed = speaks ? Print(text) : absl::OkStatus();
  if (printed.ok()) return 0;
  PrintError(CommandName(app), printed.message());
  return 1;
}

// "--mesh" of "--mesh: ..." and of "--mesh is ...".
std::string FlagOf(absl::string_view message) {
  if (!absl::StartsWith(message, "--")) return "";
  const size_t end = message.find_first_of(": ");
  return end > 2 && end != absl::string_view::npos ? std::string(message.substr(0, end)) : "";
}

std::string ErrorJson(const CLI::App& app, const absl::Status& error) {
  nlohmann::ordered_json json = {{"code", absl::StatusCodeToString(error.code())},
                                 {"command", CommandName(app)}};
  if (const std::string flag = FlagOf(error.message()); !flag.empty()) json["flag"] = flag;
  json["message"] = OneLine(error.message());
  const nlohmann::ordered_json object = {{"error", json}};
  // The user's text may not be UTF-8.
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void Report(const CLI::App& app, const absl::Status& error, bool json) {
  // The line on stderr has everything; if stdout fails, there is no other place to report it.
  if (json) Print(ErrorJson(app, error)).IgnoreError();
  PrintError(CommandName(app), error.message());
}

bool HasJson(const CLI::App& app) { return app.get_option_no_throw("--json") != nullptr; }

// Whether arguments that cannot be parsed ask for JSON.
bool AsksForJson(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::vector<const CLI::App*> commands =
      app.get_subcommands([](const CLI::App* command) { return HasJson(*command); });
  if (commands.empty() && !HasJson(app)) return false;
  return std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
}

void AddVersion(CLI::App& app) {
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", DTENSOR_VERSION),
                       "Print the version and exit");
}

void AddHelpers(CLI::App& app, std::string& shell, std::string& helped) {
  if (CommandsOf(app).empty()) return;
  app.add_subcommand("completion", "prints a script that completes this program's command lines")
      ->add_option("shell", shell, "that is to read it")
      ->type_name("bash|zsh")
      ->required();
  app.add_subcommand("help", "explains a command")->add_option("command", helped, "which one");
}

// Turns `help COMMAND` into `COMMAND --help`. Refuses unknown commands.
absl::Status Rewrite(const CLI::App& app, std::vector<std::string>& arguments) {
  const std::vector<std::string> commands = CommandsOf(app);
  if (commands.empty() || arguments.empty() || arguments[0] != "help") return absl::OkStatus();
  arguments.erase(arguments.begin());
  const bool asks = !arguments.empty() && !absl::StartsWith(arguments[0], "-");
  if (asks && std::find(commands.begin(), commands.end(), arguments[0]) == commands.end()) {
    return absl::InvalidArgumentError(ExplainCommand(app, arguments));
  }
  arguments.insert(arguments.begin() + (asks ? 1 : 0), "--help");
  return absl::OkStatus();
}

}  // namespace

std::string CommandName(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app.get_name()
                        : absl::StrCat(app.get_name(), " ", CommandName(*parsed[0]));
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv, bool speaks) {
  AddVersion(app);
  std::string shell, helped;
  AddHelpers(app, shell, helped);
  CheckValues(app);
  std::vector<std::string> arguments = Arguments(argc, argv);
  const bool json = AsksForJson(app, arguments);
  const auto refuse = [&](const absl::Status& why) {
    if (speaks) Report(app, why, json);
    return 2;
  };
  if (const absl::Status known = Rewrite(app, arguments); !known.ok()) return refuse(known);
  try {
    std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
    app.parse(arguments);
  } catch (const CLI::Success& asked) {
    std::ostringstream out;
    app.exit(asked, out, out);
    return PrintAsked(app, out.str(), speaks);
  } catch (const CLI::ParseError& error) {
    return refuse(absl::InvalidArgumentError(Explain(app, error)));
  }
  if (shell.empty()) return std::nullopt;
  const Shell of = shell == "zsh" ? Shell::kZsh : Shell::kBash;
  return PrintAsked(app, CompletionScript(app, of), speaks);
}

std::optional<int> ParseLauncherLine(CLI::App& app, int argc, char** argv,
                                     std::vector<std::string>& command) {
  AddVersion(app);
  const auto refuse = [&](const std::string& why) {
    PrintError(app.get_name(),
               absl::StrCat(why, "; `", app.get_name(), " --help` lists the flags"));
    return 2;
  };
  const int own = OwnArguments(app, argc, argv);
  const bool marked = own < argc && argv[own] == absl::string_view("--");
  if (own < argc && argv[own][0] == '-' && !marked) return refuse(ExplainUnknown(app, argv[own]));
  // CLI11 never sees the command: it would read "[a,b]" as two arguments.
  if (const auto status = ParseCommandLine(app, own, argv, /*speaks=*/true)) return status;
  command.assign(argv + own + (marked ? 1 : 0), argv + argc);
  if (command.empty()) return refuse("there is no program to start");
  return std::nullopt;
}

void ReportError(const CLI::App& app, const absl::Status& error) {
  const CLI::Option* const json = Given(app).get_option_no_throw("--json");
  Report(app, error, json != nullptr && json->count() > 0);
}

int RunGuarded(const CLI::App& app, absl::FunctionRef<int()> run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    ReportError(app, absl::ResourceExhaustedError("memory ran out"));
  } catch (const std::exception& error) {
    ReportError(app, absl::InternalError(error.what()));
  }
  return 1;
}

}  // namespace dtensor
