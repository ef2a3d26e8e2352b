// What a rank says when its engine asks it to end while it waits for another one: engines kill soon
// after they have asked, and a job whose rank is stopped or gone would end without a word of why.
#pragma once

#include <thread>
#include <vector>

#include "millrace/transport/endpoint.hpp"

namespace millrace::cli {

/// From its construction on, a SIGTERM has what the ranks of this process do printed on standard
/// error. A process that does not stop when asked (StopSignals) ends by the signal then; one that
/// does says it half a second later, if its step has not ended by then. Thread-safety: one at a
/// time. Cost: 20 looks at a number per second.
class ExitReport {
 public:
  /// Of its ranks; they must outlive this. Without any nothing is done.
  explicit ExitReport(std::vector<const Endpoint*> endpoints);
  ExitReport(const ExitReport&) = delete;
  ExitReport& operator=(const ExitReport&) = delete;
  ~ExitReport();

 private:
  void say() const;
  void watch(const std::stop_token& stop) const;

  std::vector<const Endpoint*> endpoints_;
  std::jthread thread_;
};

}  // namespace millrace::cli
