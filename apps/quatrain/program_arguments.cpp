#include "program_arguments.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

void execute_with_same_arguments(const char* program) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line{std::istreambuf_iterator<char>(file), {}};
  std::vector<char*> arguments;
  for (size_t at = 0; at < line.size(); at += std::string_view(line.data() + at).size() + 1)
    arguments.push_back(line.data() + at);
  if (arguments.empty()) return;
  arguments.push_back(nullptr);
  ::execv(program, arguments.data());
}

}  // namespace quatrain
