// What a worker does when it measures: every pair of neighbouring ranks in turn sends tensors back
// and forth, and rank 0 prints one row for each.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iostream>
#include <sstream>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/numbers.hpp"
#include "cli/ranks/rank_work.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/ranks.hpp"

namespace millrace::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundTrips = 21;
constexpr int kInFlight = 32;  // tensors of one measurement of bandwidth
constexpr std::int64_t kSmall = 4096;
constexpr std::int64_t kLarge = std::int64_t{1} << 20U;

/// What one pair of ranks measured.
struct Speed {
  double small = 0;      ///< seconds of a round trip of 4 KiB, median
  double large = 0;      ///< of 1 MiB
  double bandwidth = 0;  ///< bytes per second, one way, 1 MiB each
};

Deadline within_a_minute() {
  return Clock::now() + std::chrono::seconds(60);
}

/// Sends and receives numbered tensors between two ranks; both call the same functions.
/// Thread-safety: thread-affine, as the endpoint.
class Pair {
 public:
  Pair(Endpoint& endpoint, Rank other, bool asks) : end_(endpoint), other_(other), asks_(asks) {}

  /// Median seconds of a round trip; 0 on the side that answers.
  double round_trip(std::int64_t bytes) {
    std::vector<double> seconds;
    for (int i = 0; i < kRoundTrips; ++i) {
      const auto start = Clock::now();
      if (asks_) send(bytes);
      receive();
      if (!asks_) send(bytes);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRoundTrips / 2, seconds.end());
    return asks_ ? seconds[kRoundTrips / 2] : 0;
  }

  /// Bytes per second from the one who asks, up to the answer that all have come.
  double bandwidth(std::int64_t bytes) {
    const auto start = Clock::now();
    for (int i = 0; i < kInFlight; ++i) asks_ ? send(bytes) : receive();
    asks_ ? receive() : send(0);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return asks_ ? static_cast<double>(kInFlight * bytes) / seconds : 0;
  }

 private:
  void send(std::int64_t bytes) {
    Tensor tensor(DType::U8, {bytes});
    end_.send(other_, tag(sent_), TensorList(std::move(tensor)));
  }

  void receive() { static_cast<void>(end_.receive(other_, tag(received_), within_a_minute())); }

  static MessageTag tag(std::uint64_t& number) {
    MessageTag tag;
    tag.step = number++;
    return tag;
  }

  Endpoint& end_;
  Rank other_;
  bool asks_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

Speed measure(Pair pair) {
  static_cast<void>(pair.round_trip(kLarge));  // connections and memory are warm after this
  Speed speed;
  speed.small = pair.round_trip(kSmall);
  speed.large = pair.round_trip(kLarge);
  speed.bandwidth = pair.bandwidth(kLarge);
  return speed;
}

/// Rank and next rank; of more than two ranks, the last and the first as well.
std::vector<std::pair<int, int>> neighbours(int world) {
  std::vector<std::pair<int, int>> pairs;
  for (int i = 0; i + 1 < world; ++i) pairs.emplace_back(i, i + 1);
  if (world > 2) pairs.emplace_back(world - 1, 0);  // schedules with chunks use it
  return pairs;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

std::string whole(double number) {
  return std::to_string(std::llround(number));
}

void print(const nlohmann::ordered_json& document, bool json) {
  if (json) {
    std::cout << document.dump(2) << std::endl;
    return;
  }
  std::vector<std::vector<std::string>> rows = {
      {"ranks", "hosts", "us for 4 KiB", "us for 1 MiB", "MB/s one way"}};
  for (const auto& pair : document.at("pairs")) {
    const auto name = [&](const char* side) { return pair.at(side).get<std::string>(); };
    rows.push_back({std::to_string(pair.at("from").get<int>()) + " - " +
                        std::to_string(pair.at("to").get<int>()),
                    name("from_host") + " - " + name("to_host"),
                    whole(1e6 * pair.at("round_trip_4_kib_seconds").get<double>()),
                    whole(1e6 * pair.at("round_trip_1_mib_seconds").get<double>()),
                    whole(1e-6 * pair.at("bytes_per_second").get<double>())});
  }
  std::cout << "millrace " << MILLRACE_VERSION << ": " << document.at("ranks") << " ranks agree on "
            << "version, processor, compiled code and products; round trips and bandwidth\n"
            << table(rows) << std::flush;
}

void examine(Endpoint& endpoint, ProcessGroup& group, bool json) {
  const int self = endpoint.rank().value;
  const std::vector<std::string> hosts = group.gather(host_name(), Label::Measurement);
  nlohmann::ordered_json document;
  document["ranks"] = endpoint.world();
  document["pairs"] = nlohmann::ordered_json::array();
  for (const auto& [from, to] : neighbours(endpoint.world())) {
    Speed speed;
    if (self == from || self == to)
      speed = measure({endpoint, Rank{self == from ? to : from}, self == from});
    // One pair at a time: the next begins when all know what this one measured.
    std::vector<double> figures = {speed.small, speed.large, speed.bandwidth};
    group.sum(figures, Label::Measurement);
    document["pairs"].push_back({{"from", from},
                                 {"to", to},
                                 {"from_host", hosts[static_cast<std::size_t>(from)]},
                                 {"to_host", hosts[static_cast<std::size_t>(to)]},
                                 {"round_trip_4_kib_seconds", figures[0]},
                                 {"round_trip_1_mib_seconds", figures[1]},
                                 {"bytes_per_second", figures[2]}});
  }
  if (self == 0) print(document, json);
}

}  // namespace

RankWork doctor_work(const std::vector<std::string>& options, int world) {
  const bool json = options == std::vector<std::string>{"--json"};
  require(options.empty() || json,
          "doctor as the work of ranks has one option, --json, but got '" +
              (options.empty() ? std::string() : options.front()) + "'");
  require(world >= 2, "doctor measures between ranks: there must be at least 2");
  HelloFields fields = build_fields();
  fields.emplace_back("work", "doctor");
  return {.fields = fields, .depths = {}, .run = [json](Endpoint& endpoint, ProcessGroup& group) {
            examine(endpoint, group, json);
          }};
}

}  // namespace millrace::cli
