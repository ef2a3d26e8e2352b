// Takes the component plan alone.
#include <millrace/scheduler/plan.hpp>

int main() {
  using namespace millrace;
  return !schedules().empty() ? 0 : 1;
}
