// Takes the component transport alone.
#include <millrace/transport/in_process.hpp>

int main() {
  using namespace millrace;
  const InProcessHub hub(2);
  return 0;
}
