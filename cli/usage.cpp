// The parser's errors in our words. It tells its kinds apart by class, and says the rest in what().
#include "cli/usage.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "millrace/core/edit_distance.hpp"

namespace millrace::cli {

namespace {

const CLI::App& verb_of(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? app : *verbs.front();
}

/// Options of the verb as typed: "-p", "--latency".
std::vector<std::string> option_names(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// The name that sentences use, the letter where there is one: "-p", "--latency".
std::string told(const CLI::Option& option) {
  return option.get_snames().empty() ? option.get_name() : "-" + option.get_snames().front();
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
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

/// What no option or verb took: the option among it, else the first word.
std::string surplus_of(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  const auto option = std::find_if(words.begin(), words.end(), is_option);
  if (option != words.end()) return option->substr(0, option->find('='));
  return words.empty() ? "" : words.front();
}

std::string surplus_sentence(const CLI::App& app, const std::string& word) {
  const CLI::App& verb = verb_of(app);
  if (is_option(word))
    return word + " is no option of " + verb.get_name() + suggestion(word, option_names(verb));
  return "'" + word + "' is one argument too many for " + verb.get_name();
}

std::string missing_verb(const CLI::App& app, const std::string& first) {
  if (is_option(first)) return surplus_sentence(app, first);
  std::string known = "; known are";
  for (const std::string& name : verb_names(app)) known += " " + name;
  if (first.empty()) return "a verb is missing" + known;
  const std::string nearest = suggestion(first, verb_names(app));
  return "'" + first + "' is no verb" + (nearest.empty() ? known : nearest);
}

/// The text between two marks of the parser's sentence; empty when they are not there.
std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t start = text.find(from);
  if (start == std::string::npos) return "";
  const std::size_t first = start + from.size();
  const std::size_t end = to.empty() ? text.size() : text.find(to, first);
  return end == std::string::npos ? "" : text.substr(first, end - first);
}

/// "Could not convert: --lr = abc".
std::string wrong_value(const CLI::App& verb, const std::string& what) {
  const std::string name = between(what, ": ", " = "), value = between(what, " = ", "");
  const CLI::Option* option = name.empty() ? nullptr : verb.get_option_no_throw(name);
  if (option == nullptr) return what;
  const std::string type = option->get_type_name();
  const std::string wanted = type == "INT" || type == "UINT"   ? "a whole number"
                             : type == "FLOAT"                 ? "a number"
                             : option->get_expected_min() == 0 ? "nothing, true or false"
                                                               : type;
  return told(*option) + " is '" + value + "'; expected " + wanted;
}

/// "--lr: 1 required FLOAT missing", "--ranks: At Most 1 required but received 2".
std::string wrong_count(const CLI::App& verb, const std::string& what) {
  const std::string typed = what.substr(0, what.find(':'));
  const CLI::Option* option = is_option(typed) ? verb.get_option_no_throw(typed) : nullptr;
  const std::string name = option == nullptr ? typed : told(*option);
  const std::string given = between(what, "but received ", "");
  if (given.empty()) return name + " needs a value";
  if (!is_option(name)) return given + " " + name + " are too many";
  return name + " is given " + given + " times; give it once";
}

/// "a schedule", but "schedules".
std::string with_article(const std::string& noun) {
  return (noun.ends_with('s') ? "" : "a ") + noun;
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

std::string suggested_option(const std::string& typed, const CLI::App& verb) {
  return suggestion(typed, option_names(verb));
}

void refuse_overlong_numbers(CLI::App& verb) {
  const auto check = [](const std::string& text) -> std::string {
    const char* first = text.data() + (text.starts_with('+') ? 1 : 0);
    std::int64_t value = 0;
    if (std::from_chars(first, text.data() + text.size(), value).ec !=
        std::errc::result_out_of_range)
      return "";
    return text + " has more digits than a number can have here (at most 9223372036854775807)";
  };
  for (CLI::Option* option : verb.get_options())
    if (option->get_type_name() == "INT") option->check(CLI::Validator(check, ""));
}

std::string usage_sentence(const CLI::App& app,
                           const CLI::ParseError& error,
                           const std::string& first) {
  const CLI::App& verb = verb_of(app);
  const std::string what = error.what();
  std::string sentence = what;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    sentence = surplus_sentence(app, surplus_of(app));
  else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
    sentence = wrong_value(verb, what);
  else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    sentence = wrong_count(verb, what);
  else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && &verb == &app)
    sentence = missing_verb(app, first);
  else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    sentence =
        verb.get_name() + " needs " + with_article(what.substr(0, what.find(" is required")));
  const std::string of = &verb == &app ? "" : " " + verb.get_name();
  return sentence + (sentence.back() == '?' ? " See " : "; see ") + app.get_name() + of + " --help";
}

}  // namespace millrace::cli
