// Sums over processes by ProcessGroup over shared memory: NAME is "millrace", or with a word more
// "millrace unchecked", without checksums of payloads, which the baselines do not have either.
#include <chrono>
#include <filesystem>
#include <memory>

#include "bench/all_reduce/processes.hpp"
#include "bench/all_reduce/sums.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/process_group.hpp"
#include "millrace/transport/shared_memory.hpp"

namespace {

using namespace millrace;

void work(const all_reduce::Job& job, int rank, const std::string& directory) {
  SharedMemoryOptions options;
  options.rank = Rank{rank};
  options.world = job.processes;
  options.directory = directory;
  options.hash_payloads = !job.name.ends_with("unchecked");
  const auto endpoint =
      meet({.url = "ipc://" + directory + "/rendezvous"}, SharedMemoryListener(options));
  ProcessGroup group(*endpoint);
  const auto sum = [&](std::span<float> numbers) {
    Tensor tensor(
        DType::F32, {static_cast<std::int64_t>(numbers.size())}, numbers.data(), nullptr, nullptr);
    group.all_reduce(tensor, ReduceOp::Sum, Label::Measurement);
  };
  all_reduce::run(job, rank, sum, [&] { group.barrier(Label::Measurement); });
  endpoint->leave(std::chrono::steady_clock::now() + std::chrono::minutes(1));
}

}  // namespace

int main(int count, char** arguments) {
  const all_reduce::Job job = all_reduce::job_of({arguments, static_cast<std::size_t>(count)});
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const bool ended_well =
      all_reduce::in_processes(job.processes, [&](int rank) { work(job, rank, directory.path()); });
  return ended_well ? 0 : 1;
}
