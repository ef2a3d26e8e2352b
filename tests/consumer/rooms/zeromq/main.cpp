// Takes the component zeromq alone.
#include <millrace/transport/zeromq.hpp>

int main() {
  using namespace millrace;
  return make_curve_keys().public_key.size() == 40 ? 0 : 1;
}
