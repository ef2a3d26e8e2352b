// The same sums by gloo::allreduce over its TCP transport on the loopback, the only one that it has
// between processes of a host here. NAME is "gloo ring" or "gloo bcube", its two algorithms.
#include <filesystem>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>

#include "bench/all_reduce/processes.hpp"
#include "bench/all_reduce/sums.hpp"
#include "millrace/transport/private_directory.hpp"

namespace {

void work(const all_reduce::Job& job, int rank, const std::string& directory) {
  gloo::transport::tcp::attr loopback;
  loopback.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(loopback);
  gloo::rendezvous::FileStore store(directory);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, job.processes);
  context->connectFullMesh(store, device);
  const auto sum = [&](std::span<float> numbers) {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(job.name.ends_with("bcube") ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                     : gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(numbers.data(), numbers.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  };
  all_reduce::run(job, rank, sum, [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  });
}

}  // namespace

int main(int count, char** arguments) {
  const all_reduce::Job job = all_reduce::job_of({arguments, static_cast<std::size_t>(count)});
  const millrace::PrivateDirectory directory(std::filesystem::temp_directory_path());
  const bool ended_well =
      all_reduce::in_processes(job.processes, [&](int rank) { work(job, rank, directory.path()); });
  return ended_well ? 0 : 1;
}
