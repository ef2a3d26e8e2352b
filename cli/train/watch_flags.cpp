#include "cli/train/watch_flags.hpp"

#include <string_view>

#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

bool ends(const std::string& path, std::string_view ending) {
  return path.size() > ending.size() &&
         path.compare(path.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

void add_watch_flags(CLI::App& verb, WatchFlags& flags) {
  verb.add_option("--log",
                  flags.log,
                  "Write a record of every step to FILE.jsonl or FILE.csv: loss, norm, rates, and "
                  "every rank's time by cause; --resume goes on with it");
  verb.add_option("--metrics",
                  flags.metrics,
                  "Keep FILE.prom up to date in Prometheus' text format, replaced whole");
  verb.add_option("--report",
                  flags.report,
                  "Write the run as a page, FILE.html: curves, where the time of every rank went, "
                  "the last step's timeline and the bottleneck by cause");
  verb.add_flag("--inspect-gradients",
                flags.inspect_gradients,
                "Show the first step's gradients by layer: norm, zeros, not finite");
}

void check_watch(const WatchFlags& flags) {
  require(flags.log.empty() || ends(flags.log, ".jsonl") || ends(flags.log, ".csv"),
          "--log " + flags.log + ": must end in .jsonl (a JSON object per line) or .csv");
  require(flags.metrics.empty() || ends(flags.metrics, ".prom"),
          "--metrics " + flags.metrics +
              ": must end in .prom, as the files that Prometheus' node exporter collects do");
  require(flags.report.empty() || ends(flags.report, ".html"),
          "--report " + flags.report + ": must end in .html");
}

}  // namespace millrace::cli
