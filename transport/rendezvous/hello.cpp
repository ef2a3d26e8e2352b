// See hello.hpp.
#include "transport/rendezvous/hello.hpp"

#include <array>
#include <cstdio>
#include <sstream>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {

namespace {

constexpr const char* kAddress = "@address";  // what is compared begins with no "@"

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
    if (said == own || name == kAddress) return {};
    return name + " differs: rank 0 has '" + own + "', rank " + std::to_string(rank.value) +
           " has '" + said + "'";
  };
  for (const HelloFields* fields : {&mine, &theirs})
    for (const auto& [name, value] : *fields)
      if (std::string sentence = compared(name); !sentence.empty()) return sentence;
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
  const char* const why = keyed && !heard_ ? " (it is not there, or does not know our key)" : "";
  return "rank 0 does not answer at " + url + why +
         "; everyone waits for rank 0: its welcome, since " +
         seconds_since(heard_.value_or(since_));
}

}  // namespace millrace
