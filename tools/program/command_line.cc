#include "dtensor/tools/program/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <new>
#include <sstream>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/tools/program/nearest_word.h"
#include "dtensor/tools/program/output.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor {
namespace {

// Of the whole repository.
constexpr absl::string_view kVersion = "0.1.0-dev";

// Replaces a number by the text that CLI11 cannot take for another one (it would read 010 as 8);
// what is wrong, or nothing.
template <typename T>
std::string ReadWhole(std::string& text, absl::string_view wanted) {
  T value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::StrCat("\"", Shortened(text), "\" is no whole number ", wanted, ", such as 8");
  }
  text = absl::StrCat(value);
  return "";
}

std::string ReadReal(std::string& text) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && std::isfinite(value)) return "";
  return absl::StrCat("\"", Shortened(text), "\" is no finite number, such as 0.5 or 3e-4");
}

// CLI11 says of a text that is no number that it could not convert it.
void CheckNumbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "INT") {
      option->transform(CLI::Validator(
          [](std::string& text) { return ReadWhole<int64_t>(text, "from -2^63 to 2^63 - 1"); },
          ""));
    } else if (type == "UINT") {
      option->transform(CLI::Validator(
          [](std::string& text) { return ReadWhole<uint64_t>(text, "from 0 to 2^64 - 1"); }, ""));
    } else if (type == "FLOAT") {
      option->transform(CLI::Validator(ReadReal, ""));
    }
  }
  for (CLI::App* command : app.get_subcommands({})) CheckNumbers(*command);
}

// In reverse, as CLI11 takes them; the names of flags with hyphens.
std::vector<std::string> Arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    std::string& argument = arguments.emplace_back(argv[i]);
    if (!absl::StartsWith(argument, "--")) continue;
    const auto end = std::find(argument.begin(), argument.end(), '=');
    std::replace(argument.begin(), end, '_', '-');
  }
  return arguments;
}

// The command that was given, or the program.
const CLI::App& Given(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed[0];
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& words) {
  const std::string nearest = NearestWord(word, words);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
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

// An argument that no flag takes.
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

// What CLI11 says, where it can be understood.
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
  if (!CommandsOf(app).empty() && &given == &app) return ExplainCommand(app, unknown);
  // A flag that is misspelled may be the one that is missing.
  return absl::StrCat(unknown.empty() ? ExplainOther(error) : ExplainUnknown(given, unknown[0]),
                      "; `", CommandName(app), " --help` lists the flags");
}

int PrintAsked(const CLI::App& app, const CLI::Success& asked) {
  std::ostringstream out;
  app.exit(asked, out, out);
  const absl::Status printed = IsSpeaker() ? Print(out.str()) : absl::OkStatus();
  if (printed.ok()) return 0;
  PrintError(CommandName(app), printed.message());
  return 1;
}

}  // namespace

std::string CommandName(const CLI::App& app) {
  const CLI::App& given = Given(app);
  return &given == &app ? app.get_name() : absl::StrCat(app.get_name(), " ", given.get_name());
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", kVersion),
                       "Print the version and exit");
  CheckNumbers(app);
  std::vector<std::string> arguments = Arguments(argc, argv);
  try {
    app.parse(arguments);
    return std::nullopt;
  } catch (const CLI::Success& asked) {
    return PrintAsked(app, asked);
  } catch (const CLI::ParseError& error) {
    if (IsSpeaker()) PrintError(CommandName(app), Explain(app, error));
    return 2;
  }
}

int RunGuarded(const CLI::App& app, absl::FunctionRef<int()> run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    PrintError(CommandName(app), "memory ran out");
  } catch (const std::exception& error) {
    PrintError(CommandName(app), error.what());
  }
  return 1;
}

}  // namespace dtensor
