// The parser's errors in our words. The kind of an error is its class; what was typed is read from
// the parser's state.
#include "cli/usage.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdexcept>
#include <system_error>

#include "core/edit_distance.hpp"

namespace millrace::cli {

namespace {

const CLI::App& subcommand_of(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

/// Options of the subcommand as typed: "-p", "--latency".
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// The name in messages, the letter where there is one: "-p", "--latency".
std::string name_of(const CLI::Option& option) {
  return option.get_snames().empty() ? option.get_name() : "-" + option.get_snames().front();
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands({}))
    names.push_back(subcommand->get_name());
  return names;
}

std::string suggestion(const std::string& typed, const std::vector<std::string>& names) {
  // "--p" is two letters from "-p", but nothing else is meant.
  const bool long_letter = typed.size() == 3 && typed.starts_with("--");
  const std::string letter = long_letter ? typed.substr(1) : "";
  const bool known = std::find(names.begin(), names.end(), letter) != names.end();
  const std::string nearest = known ? letter : nearest_name(typed, names);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word.find_first_of("0123456789.") != 1;
}

/// What no option and no subcommand took: the option among it, else the first word.
std::string surplus_of(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  const auto option = std::find_if(words.begin(), words.end(), is_option);
  if (option != words.end()) return option->substr(0, option->find('='));
  return words.empty() ? "" : words.front();
}

std::string surplus_message(const CLI::App& app, const std::string& word) {
  const CLI::App& subcommand = subcommand_of(app);
  if (!is_option(word))
    return fmt::format("{}: one argument too many for {}", word, subcommand.get_name());
  return fmt::format("{}: not an option of {}{}",
                     word,
                     subcommand.get_name(),
                     suggestion(word, option_names(subcommand)));
}

std::string missing_subcommand(const CLI::App& app, const std::string& first) {
  if (is_option(first)) return surplus_message(app, first);
  const std::vector<std::string> names = subcommand_names(app);
  const std::string nearest = first.empty() ? "" : suggestion(first, names);
  const std::string known = "; use " + fmt::format("{}", fmt::join(names, ", "));
  if (first.empty()) return "a subcommand is missing" + known;
  return first + ": not a subcommand" + (nearest.empty() ? known : nearest);
}

/// An option that takes one value and was given another number of them. `what` begins with the name
/// of one that has none.
std::string wrong_count(const CLI::App& subcommand, const std::string& what) {
  for (const CLI::Option* option : subcommand.get_options()) {
    const auto given = option->results().size();
    if (given <= static_cast<std::size_t>(option->get_items_expected_max())) continue;
    const std::string name = name_of(*option);
    return option->get_positional()
               ? fmt::format("{} {}: too many", given, name)
               : fmt::format("{} is given {} times; give it once", name, given);
  }
  const CLI::Option* option = subcommand.get_option_no_throw(what.substr(0, what.find(':')));
  return (option == nullptr ? what : name_of(*option)) + " needs a value";
}

/// The positional that was not given: "a schedule", but "schedules".
std::string missing_positional(const CLI::App& subcommand) {
  for (const CLI::Option* option : subcommand.get_options())
    if (option->get_required() && option->results().empty())
      return fmt::format("{} needs {}{}",
                         subcommand.get_name(),
                         option->get_name().ends_with('s') ? "" : "a ",
                         option->get_name());
  return subcommand.get_name() + " needs an argument";
}

/// A flag that is on or off, not one with a value of its own, as --recompute=all.
bool is_switch(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  return option.get_expected_min() == 0 && !names.empty() &&
         option.get_flag_value(names.front(), "") == "true";
}

/// Takes the texts that the parser takes: true, on, yes, 1 and their opposites.
void check_switch(const CLI::Option& option, const std::string& text) {
  try {
    (void)CLI::detail::to_flag_value(text);
  } catch (const std::invalid_argument&) {
    throw CLI::ParseError(fmt::format("{} {}: must be true or false", name_of(option), text),
                          CLI::ExitCodes::ConversionError);
  }
}

template <class Number>
void check_number(const CLI::Option& option, const std::string& text, const char* kind) {
  Number value{};
  const char* first = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc::result_out_of_range)
    throw CLI::ParseError(fmt::format("{} {}: is out of range", name_of(option), text),
                          CLI::ExitCodes::ConversionError);
  if (error != std::errc() || end != last)
    throw CLI::ParseError(fmt::format("{} {}: must be {}", name_of(option), text, kind),
                          CLI::ExitCodes::ConversionError);
}

}  // namespace

std::string nearest_name(const std::string& typed, const std::vector<std::string>& names) {
  std::string nearest;
  const std::size_t letters = typed.size() - std::min(typed.find_first_not_of('-'), typed.size());
  std::size_t least = letters / 2;  // one letter is as near to any other: nothing
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(typed, name);
    if (distance > least || least == 0 || (distance == least && !nearest.empty())) continue;
    least = distance;
    nearest = name;
  }
  return nearest;
}

std::string suggested_option(const std::string& typed, const CLI::App& subcommand) {
  return suggestion(typed, option_names(subcommand));
}

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const auto checked = [&](auto check) {
      option->check(CLI::Validator(
          [option, check](const std::string& text) {
            check(*option, text);
            return std::string();
          },
          ""));
    };
    if (type == "INT")
      checked([](auto& of, auto& text) { check_number<std::int64_t>(of, text, "an integer"); });
    if (type == "UINT")
      checked(
          [](auto& of, auto& text) { check_number<std::uint64_t>(of, text, "an integer from 0"); });
    if (type == "FLOAT")
      checked([](auto& of, auto& text) { check_number<double>(of, text, "a number"); });
    if (is_switch(*option)) checked(check_switch);
  }
  for (CLI::App* subcommand : app.get_subcommands({})) check_values(*subcommand);
}

std::string usage_message(const CLI::App& app,
                          const CLI::ParseError& error,
                          const std::string& first) {
  const CLI::App& subcommand = subcommand_of(app);
  std::string message = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    message = surplus_message(app, surplus_of(app));
  else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    message = wrong_count(subcommand, message);
  else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    message = &subcommand == &app ? missing_subcommand(app, first) : missing_positional(subcommand);
  const std::string of = &subcommand == &app ? "" : " " + subcommand.get_name();
  return fmt::format(
      "{}{}{}{} --help", message, message.back() == '?' ? " See " : "; see ", app.get_name(), of);
}

}  // namespace millrace::cli
