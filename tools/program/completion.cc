#include "dtensor/tools/program/completion.h"

#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "dtensor/tools/program/flag_values.h"

namespace dtensor {
namespace {

// How the two shells differ: how they pass the word to complete and the one before it, and how they
// take the answer. FUNCTION stands for the function's name, PROGRAM for the program's.
constexpr absl::string_view kBash =
    R"sh(# Completion for bash; to have it now: source <(PROGRAM completion bash)
FUNCTION_words() { COMPREPLY=($(compgen -W "$*" -- "$cur")); }
FUNCTION_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
FUNCTION() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command="" word
  # --flag=value is three words here.
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $prev == "=" ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
)sh";
constexpr absl::string_view kZsh = R"sh(#compdef PROGRAM
# Completion for zsh; to have it now, after compinit: source <(PROGRAM completion zsh)
FUNCTION_words() { compadd -- "$@" }
FUNCTION_files() { _files }
FUNCTION() {
  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} command="" word
  if [[ $cur == --*=* ]]; then
    prev=${cur%%=*}
    compset -P '*='
  fi
  for word in "${(@)words[2,CURRENT-1]}"; do
)sh";
// The rest is the same for both shells.
constexpr absl::string_view kBody = R"sh(    case $word in
      (COMMANDS) command=$word; break ;;
    esac
  done
  case "$command $prev" in
VALUES  esac
  case $command in
FLAGS  esac
}
)sh";

std::string FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    if (option->get_positional()) {
      for (std::string& word : WordsOf(*option)) flags.push_back(std::move(word));
    }
  }
  return absl::StrJoin(flags, " ");
}

// The shell code that completes what comes after each flag that takes a value.
std::string ValuesOf(const CLI::App& app, const std::string& command) {
  std::string cases;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_items_expected_max() == 0) continue;
    const std::vector<std::string> words = WordsOf(*option);
    const std::string answer = !words.empty() ? "FUNCTION_words " + absl::StrJoin(words, " ") + "; "
                               : option->get_type_name() == "FILE" ? "FUNCTION_files; "
                                                                   : "";
    for (const std::string& name : option->get_lnames()) {
      absl::StrAppend(&cases, "    (\"", command, " --", name, "\") ", answer, "return ;;\n");
    }
  }
  return cases;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, Shell shell) {
  const std::string name = app.get_name();
  const std::string function = "_" + absl::StrReplaceAll(name, {{"-", "_"}});
  std::vector<std::string> commands;
  std::string values, flags;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
    values += ValuesOf(*command, command->get_name());
    absl::StrAppend(&flags, "    (", command->get_name(), ") FUNCTION_words ", FlagsOf(*command),
                    " ;;\n");
  }
  values += ValuesOf(app, "");
  absl::StrAppend(&flags, "    (*) FUNCTION_words ", absl::StrJoin(commands, " "), " ",
                  FlagsOf(app), " ;;\n");
  const std::string script =
      absl::StrReplaceAll(absl::StrCat(shell == Shell::kBash ? kBash : kZsh, kBody),
                          {{"COMMANDS", commands.empty() ? "''" : absl::StrJoin(commands, "|")},
                           {"VALUES", values},
                           {"FLAGS", flags}});
  return absl::StrCat(absl::StrReplaceAll(script, {{"FUNCTION", function}, {"PROGRAM", name}}),
                      shell == Shell::kBash ? "complete -F " : "compdef ", function, " ", name,
                      "\n");
}

}  // namespace dtensor
