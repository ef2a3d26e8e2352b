// millrace keys: what ranks on several machines prove to each other who they are with.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>

#include "cli/ranks/core_dumps.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

void print_keys(int ranks, const std::string& directory) {
  keep_out_of_dumps(false);
  require(ranks >= 1 && ranks <= 4096, "-n " + std::to_string(ranks) + ": must be from 1 to 4096");
  std::error_code error;
  if (std::filesystem::create_directories(directory, error))
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  const std::string refusal = "--out " + directory + ": cannot be made: " + error.message();
  if (error == std::errc::no_space_on_device || error == std::errc::read_only_file_system)
    throw Error(refusal);
  require(!error, refusal);
  for (const std::string& path : write_key_files(directory, ranks)) std::cout << path << '\n';
}

}  // namespace

void add_keys(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "keys", "Make keys for ranks on several machines, a file for each: keys -n 4 --out DIR");
  auto ranks = std::make_shared<int>(0);
  auto directory = std::make_shared<std::string>();
  verb->add_option("-n,--processes", *ranks, "Number of processes, one per rank")->required();
  verb->add_option("--out", *directory, "Folder that gets keys-0, keys-1, ...; made if missing")
      ->required();
  verb->callback([ranks, directory] { print_keys(*ranks, *directory); });
}

}  // namespace millrace::cli
