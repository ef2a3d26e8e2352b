// The flags of train by which a run is watched: a log, metrics for Prometheus, a page.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace millrace::cli {

struct WatchFlags {
  std::string log, metrics, report;
  bool inspect_gradients = false;

  /// Whether anything needs the records of steps.
  [[nodiscard]] bool records() const { return !log.empty() || !metrics.empty() || !report.empty(); }
};

/// `flags` must outlive the verb.
void add_watch_flags(CLI::App& verb, WatchFlags& flags);

/// Throws InvalidArgument, naming the option, for a file whose ending says another form.
void check_watch(const WatchFlags& flags);

}  // namespace millrace::cli
