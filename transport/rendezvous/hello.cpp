#include "transport/rendezvous/hello.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <sys/random.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "transport/mailbox/rank_words.hpp"

namespace millrace {

namespace {

// What is compared begins with no "@".
constexpr const char* kAddress = "@address";
constexpr const char* kProcess = "@process";
constexpr const char* kWord = "@word";
constexpr const char* kAnswers = "@answers";

std::string seconds_since(std::chrono::steady_clock::time_point start) {
  std::array<char, 32> text{};
  std::snprintf(text.data(),
                text.size(),
                "%.1f s",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return text.data();
}

}  // namespace

std::string hello_text(const HelloFields& fields, const PeerAddress& address) {
  std::string text;
  for (const auto& [name, value] : fields) {
    require(name.find_first_of("=\n") == std::string::npos && value.find('\n') == std::string::npos,
            "hello field '" + name + "' must not hold a line break");
    text += name + "=" + value + "\n";
  }
  require(address.text.find('\n') == std::string::npos, "an address must not hold a line break");
  return text + kAddress + "=" + address.text + "\n";
}

HelloFields hello_fields(const std::string& text) {
  HelloFields fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = std::min(line.find('='), line.size());
    fields.emplace_back(line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
  }
  return fields;
}

PeerAddress hello_address(const HelloFields& fields) {
  return {hello_field(fields, kAddress)};
}

std::string unique_word() {
  std::uint64_t number = 0;
  if (::getentropy(&number, sizeof number) != 0)
    throw TransportError("the system has no random numbers");
  return std::to_string(number);
}

Claimant this_process() {
  return {words_of_this_process(), unique_word()};
}

std::string claimant_text(const Claimant& claimant) {
  std::string text =
      std::string(kProcess) + "=" + claimant.process + "\n" + kWord + "=" + claimant.word + "\n";
  if (!claimant.answers.empty()) text += std::string(kAnswers) + "=" + claimant.answers + "\n";
  return text;
}

Claimant hello_claimant(const HelloFields& fields) {
  return {hello_field(fields, kProcess), hello_field(fields, kWord), hello_field(fields, kAnswers)};
}

std::string missing_text(const std::string& missing, const std::string& question) {
  return question.empty() ? missing : missing + "\n" + question;
}

std::string question_of(const std::string& missing_text) {
  const std::size_t end = missing_text.find('\n');
  return end == std::string::npos ? std::string() : missing_text.substr(end + 1);
}

std::string list_of(const std::string& missing_text) {
  return missing_text.substr(0, missing_text.find('\n'));
}

std::string welcome_text(const std::vector<PeerAddress>& addresses) {
  std::string text;
  for (const PeerAddress& address : addresses) text += address.text + "\n";
  return text;
}

std::vector<PeerAddress> welcome_addresses(const std::string& text) {
  std::vector<PeerAddress> addresses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) addresses.push_back({line});
  return addresses;
}

std::string hello_field(const HelloFields& fields, const std::string& name) {
  for (const auto& [key, value] : fields)
    if (key == name) return value;
  return {};
}

std::string difference(const HelloFields& mine, const HelloFields& theirs, Rank rank) {
  const auto compared = [&](const std::string& name) -> std::string {
    const std::string own = hello_field(mine, name);
    const std::string said = hello_field(theirs, name);
    if (said == own || name.starts_with('@')) return {};
    return name + " differs: rank 0 has '" + own + "', rank " + std::to_string(rank.value) +
           " has '" + said + "'";
  };
  for (const HelloFields* fields : {&mine, &theirs})
    for (const auto& [name, value] : *fields)
      if (std::string text = compared(name); !text.empty()) return text;
  return {};
}

std::string not_all_came(const std::string& url,
                         const std::string& missing,
                         std::chrono::steady_clock::time_point since) {
  const std::string first = missing.substr(1, missing.find(' ', 6) - 1);
  return "not all ranks came to " + url + ": missing" + missing + "; everyone waits for " + first +
         ": its hello, since " + seconds_since(since);
}

bool HostAnswers::heard(const std::string& missing, Clock::time_point now) {
  heard_ = now;
  return std::exchange(missing_, missing) != missing;
}

std::string HostAnswers::complaint(const std::string& url, bool keyed) const {
  if (heard_ && !missing_.empty() && !silent_for(missed_))
    return not_all_came(url, missing_, since_);
  const char* const why =
      keyed && !heard_ ? " (it is not there, does not know our key, or all ranks have met before)"
                       : "";
  return "rank 0 does not answer at " + url + why +
         "; everyone waits for rank 0: its welcome, since " +
         seconds_since(heard_.value_or(since_));
}

}  // namespace millrace
