#include "transport/shared_memory/neighbourhood.hpp"

#include <array>
#include <cstdio>
#include <fstream>
#include <sys/random.h>
#include <unistd.h>

#include "millrace/transport/shared_memory.hpp"
#include "transport/shared_memory/descriptor_message.hpp"

namespace millrace::shared_memory {

std::string neighbourhood() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string system;
  if (!(file >> system) || shared_memory_problem()) return {};
  return system + "/" + std::to_string(::geteuid());
}

std::string nameless_socket() {
  std::array<unsigned char, 16> random{};
  if (::getentropy(random.data(), random.size()) != 0) refuse("name a socket");
  std::string name = std::string(1, kNameless) + "millrace-";
  for (const unsigned char byte : random) {
    std::array<char, 3> word{};
    std::snprintf(word.data(), word.size(), "%02x", byte);
    name += word.data();
  }
  return name;
}

}  // namespace millrace::shared_memory
