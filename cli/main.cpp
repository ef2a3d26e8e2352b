// The millrace command: registers the verbs, runs the one that was asked for, turns what it throws
// into one sentence on standard error and an exit code (README, exit codes).
#include <exception>
#include <iostream>
#include <string>

#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"

namespace {

using namespace millrace;

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kCorruptData = 65;
constexpr int kMismatch = 78;

int complain(const std::string& sentence, int code) {
  std::cerr << "millrace: " << sentence << '\n';
  return code;
}

int run(CLI::App& app, int count, const char* const* arguments) {
  try {
    app.parse(count, arguments);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return complain(std::string(error.what()) + "; see " + app.get_name() + " --help", kUsage);
  } catch (const cli::ExitCode& exit) {
    return exit.code;
  } catch (const InvalidArgument& error) {
    return complain(error.what(), kUsage);
  } catch (const DataError& error) {
    return complain(error.what(), kCorruptData);
  } catch (const Mismatch& error) {
    return complain(error.what(), kMismatch);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Pipeline-parallel training: schedules as data, proved, simulated, drawn and run"};
  app.name("millrace");
  app.require_subcommand(1);
  cli::add_list(app);
  cli::add_train(app);
  cli::add_show(app);
  cli::add_verify(app);
  cli::add_simulate(app);
  cli::add_compare(app);
  cli::add_search(app);
  return run(app, argc, argv);
}
