// Takes the component run alone.
#include <millrace/scheduler/run/executors.hpp>

int main() {
  using namespace millrace;
  return executor_kinds().size() == 3 ? 0 : 1;
}
