// What the subcommands offer, read from their own --help as a person reads it.
#pragma once

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.hpp"

namespace millrace::test {

/// An option as --help tells it.
struct Offer {
  std::string letter;  ///< "-p"; empty: none
  std::string name;    ///< "--ranks"
};

inline std::vector<Offer> offers_of(const std::string& subcommand) {
  static const std::regex kOption("^  (-[A-Za-z])?,?(--[a-z][a-z0-9-]*)?.*$");
  std::istringstream help(command(subcommand + " --help").text);
  std::vector<Offer> offers;
  std::smatch found;
  for (std::string line; std::getline(help, line);)
    if (std::regex_match(line, found, kOption) && (found[1].matched || found[2].matched))
      offers.push_back({found[1], found[2]});
  return offers;
}

inline std::vector<std::string> subcommands() {
  std::istringstream help(command("--help").text);
  std::vector<std::string> names;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (listed && line.starts_with("  ")) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    listed = listed || line.starts_with("Subcommands:");
  }
  return names;
}

inline std::set<std::string> names_of(const std::string& subcommand) {
  std::set<std::string> names;
  for (const Offer& offer : offers_of(subcommand)) names.insert(offer.name);
  return names;
}

}  // namespace millrace::test
