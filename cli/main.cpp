// The millrace command: registers the subcommands, runs the given one, and turns what it throws
// into one message on standard error and an exit code (README, exit codes).
#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <system_error>
#include <vector>

#include "cli/exit_codes.hpp"
#include "cli/signal_thread.hpp"
#include "cli/standard_streams.hpp"
#include "cli/subcommands.hpp"
#include "cli/usage.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/transport/endpoint.hpp"
#ifdef MILLRACE_MPI
#include "millrace/transport/mpi.hpp"
#endif

namespace millrace::cli {

namespace {

int complain(const std::string& message, int code) {
  std::cerr << "millrace: " << message << '\n';
  return code;
}

/// Why the system refuses a thread: it has one number for all reasons. One that has no room for its
/// stack came to the limit of this process's addresses.
std::string why_no_thread() {
  rlimit addresses{}, stack{};
  ::getrlimit(RLIMIT_AS, &addresses);
  ::getrlimit(RLIMIT_STACK, &stack);
  constexpr rlim_t kUsualStack = rlim_t{8} << 20U;
  const rlim_t needed = stack.rlim_cur == RLIM_INFINITY ? kUsualStack : stack.rlim_cur;
  rlim_t peak = 0;  // KiB
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word && peak == 0;)
    if (word == "VmPeak:") status >> peak;
  const bool limited =
      addresses.rlim_cur != RLIM_INFINITY && 1024 * peak + 2 * needed > addresses.rlim_cur;
  return limited ? "there is not enough memory for another thread (ulimit -v)"
                 : "the system starts no more threads for this user (ulimit -u)";
}

/// Also where a failure has wrapped another one's words.
std::string words_of(const std::exception& error) {
  std::string text = spelled(error);
  const std::string memory = std::bad_alloc().what();
  if (const auto at = text.find(memory); at != std::string::npos)
    text.replace(at, memory.size(), "there is not enough memory");
  const auto* refusal = dynamic_cast<const std::system_error*>(&error);
  if (refusal != nullptr && refusal->code() == std::errc::resource_unavailable_try_again)
    text = why_no_thread() + ": " + text;
  return text;
}

/// That ranks can be connected by.
std::string libraries_of_engines() {
#ifdef MILLRACE_MPI
  return ", ranks of mpirun by " + mpi_library();
#else
  return {};
#endif
}

int run(CLI::App& app, const std::vector<std::string>& words) {
  const std::string subcommand = words.empty() ? "" : words.front();
  try {
    std::optional<SignalThread> signals;
    if (subcommand == "train" || subcommand == "worker") signals.emplace();
    if (subcommand == "train" && train_as_rank(words)) return 0;
    app.parse(std::vector(words.rbegin(), words.rend()));  // CLI11 takes them from the last
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return complain(usage_message(app, error, subcommand), kUsage);
  } catch (const ExitCode& exit) {
    return exit.code;
  } catch (const InvalidArgument& error) {
    return complain(spelled(error), kUsage);
  } catch (const std::exception& error) {
    return complain(words_of(error), exit_code_of(error));
  }
}

/// Output that cannot be written makes the command fail, even where its work succeeded.
int run_and_print(CLI::App& app, const std::vector<std::string>& words) {
  StandardOutput output;
  const int code = run(app, words);
  const int reason = output.finish();
  if (reason == 0) return code;
  const int said = complain(
      "standard output cannot be written: " + std::generic_category().message(reason), kFailed);
  return code == kDone ? said : code;
}

}  // namespace

int run_command(int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  CLI::App app{"Pipeline-parallel training: schedules as data, proved, simulated, drawn and run"};
  app.name("millrace");
  app.set_version_flag("--version",
                       "millrace " MILLRACE_VERSION ", compiled by " + compiled_code() +
                           ", products by " + product_libraries() + libraries_of_engines(),
                       "Print the version and exit");
  app.require_subcommand(1);
  add_list(app);
  add_train(app);
  add_checkpoint(app);
  add_generate(app);
  add_show(app);
  add_verify(app);
  add_simulate(app);
  add_compare(app);
  add_sweep(app);
  add_search(app);
  add_import(app);
  add_split(app);
  add_launch(app, words);
  add_worker(app);
  add_keys(app);
  add_doctor(app);
  check_values(app);
  return run_and_print(app, words);
}

}  // namespace millrace::cli

int main(int argc, char** argv) {
  millrace::cli::occupy_standard_streams();
  millrace::cli::take_failed_writes_as_errors();
  return millrace::cli::run_command(argc, argv);
}
