// The same sums by MPI_Allreduce; mpirun starts the processes.
#include <mpi.h>

#include "bench/all_reduce/sums.hpp"

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  const all_reduce::Job job = all_reduce::job_of({arguments, static_cast<std::size_t>(count)});
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto sum = [](std::span<float> numbers) {
    MPI_Allreduce(MPI_IN_PLACE,
                  numbers.data(),
                  static_cast<int>(numbers.size()),
                  MPI_FLOAT,
                  MPI_SUM,
                  MPI_COMM_WORLD);
  };
  all_reduce::run(job, rank, sum, [] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Finalize();
  return 0;
}
