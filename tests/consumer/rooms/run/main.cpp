// Takes the component run alone.
#include <millrace/scheduler/run/executor.hpp>

int main() {
  using namespace millrace;
  return executor_kinds().size() == 3 ? 0 : 1;
}
