// The words of a meeting: what a rank says in its hello, how two differ, who is missing, and what a
// peer knows of the rank that answers. No sockets.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// A hello as text: the fields, and the address, which is not compared. Throws InvalidArgument for
/// a name, value or address that the text cannot hold.
[[nodiscard]] std::string hello_text(const HelloFields& fields, const PeerAddress& address);

/// What a hello says.
[[nodiscard]] HelloFields hello_fields(const std::string& text);
[[nodiscard]] PeerAddress hello_address(const HelloFields& fields);

/// Which process says a hello.
struct Claimant {
  std::string process = {};  ///< "process 7 on host", for reports
  std::string word = {};     ///< that no other process has
  std::string answers = {};  ///< the question of rank 0 that it has read last
};

/// A random word, which no other process makes. Throws TransportError where the system has none.
[[nodiscard]] std::string unique_word();

/// This process, with a new word.
[[nodiscard]] Claimant this_process();

/// The lines that a hello ends with, and back.
[[nodiscard]] std::string claimant_text(const Claimant& claimant);
[[nodiscard]] Claimant hello_claimant(const HelloFields& fields);

/// Who has not come, and what the receiver shall answer, as text and back.
[[nodiscard]] std::string missing_text(const std::string& missing, const std::string& question);
[[nodiscard]] std::string question_of(const std::string& missing_text);
[[nodiscard]] std::string list_of(const std::string& missing_text);

/// The addresses of all ranks, a line each, and back.
[[nodiscard]] std::string welcome_text(const std::vector<PeerAddress>& addresses);
[[nodiscard]] std::vector<PeerAddress> welcome_addresses(const std::string& text);

/// The value of a field, or nothing.
[[nodiscard]] std::string hello_field(const HelloFields& fields, const std::string& name);

/// "world differs: rank 0 has '2', rank 1 has '3'"; empty when `theirs` says the same as `mine`. A
/// field that one of them does not have is empty there.
[[nodiscard]] std::string difference(const HelloFields& mine, const HelloFields& theirs, Rank rank);

/// The message for a rendezvous that not all came to. `missing` begins with the first that did not.
[[nodiscard]] std::string not_all_came(const std::string& url,
                                       const std::string& missing,
                                       std::chrono::steady_clock::time_point since);

/// What a peer knows of rank 0, which answers every hello with the list of those who have not
/// come. Thread-safety: externally synchronised.
class HostAnswers {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HostAnswers(Clock::duration hello_interval) : missed_(5 * hello_interval) {}

  /// Rank 0 said who is missing; true when that is news.
  bool heard(const std::string& missing, Clock::time_point now);

  /// This process was stopped for so long itself: timeouts restart.
  void suspended(Clock::duration time) {
    if (heard_) *heard_ += time;
  }

  /// Of a rank 0 that was there: one that was never heard may not have started yet.
  [[nodiscard]] bool silent_for(Clock::duration time) const {
    return heard_ && Clock::now() - *heard_ > std::max(time, missed_);
  }

  [[nodiscard]] std::string complaint(const std::string& url, bool keyed) const;

 private:
  Clock::duration missed_;
  Clock::time_point since_ = Clock::now();
  std::string missing_;
  std::optional<Clock::time_point> heard_;
};

}  // namespace millrace
